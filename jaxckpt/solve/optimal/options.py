"""Options of a stage: sets of values that it may save, from nothing to all residuals, each the cheapest of its size.

For one stage the choice is an integer programme. Each value worth saving has a variable S_v (saved), each op of the
stage a variable R_o (recomputed):

    minimise    sum_o seconds_o R_o  +  sum_v pin_v S_v
    subject to  S_v + R_p(v) >= 1          for each v that the backward reads, p(v) being its producer
                S_u + R_p(u) >= R_o        for each u of the stage that o reads
                sum_v bytes_v S_v <= limit
                S_v in {0, 1},  0 <= R_o <= 1

Seconds come from two replays of the subproblem, one that saves nothing and one that saves everything: seconds_o is the
time of o's clone if all clones run, pin_v the time that the producer of v takes more in the forward pass if v must be
materialised (the maximum of a softmax then costs one more pass over its rows). For a fixed S the least R is integral,
so only S is declared integer. Lowering the limit below the last solution's bytes walks down the Pareto frontier of
bytes and seconds. Inputs from earlier stages, and boundary values, are available and cost nothing here. Values inside
kernels that hold rows are no candidates. Stages of the same structure have the same options: one of them is solved.

Read after `stage_problem`. The programme is Checkmate's (Jain et al. 2020) for a single backward visit to the stage.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from jaxckpt.schedule import Run
from jaxckpt.schedule.validate import values_in_loops
from jaxckpt.solve.milp import Rows, silenced_stdout
from jaxckpt.solve.optimal.stage_problem import StagedProblem, StageProblem
from jaxckpt.solve.problem import Problem

_LIMIT_EXPONENT = 1.7
"""Exponent of the byte limits: limits are denser for few bytes, where memory is short. Any value above 1 does that; no
benchmark fixed the exact value."""
_BYTES_WEIGHT = 1e-9
"""Microseconds a byte, to break ties towards saving less: a GiB counts as much as one microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set of values that a stage saves besides its boundary.

    Attributes:
      saved_bytes: Bytes that are live on the device until the stage's backward.
      recompute_s: Seconds of clones and pins, as the integer programme counts them.
      untouched: Residuals without a decision: all of the stage, or none.
      offloaded: Those of `saved`, and of the boundary, that are offloaded; see `offload_options`.
      sharded: Those of `saved`, and of the boundary, that are sharded; see `shard_options`.
      gather_s: Seconds of slicing and gathering boundary values, which no replay of the subproblem counts.
    """

    saved: frozenset[int]
    saved_bytes: int
    recompute_s: float
    untouched: frozenset[int] = frozenset()
    offloaded: frozenset[int] = frozenset()
    offloaded_bytes: int = 0
    sharded: frozenset[int] = frozenset()
    gather_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """Coefficients of a stage's integer programme.

    Attributes:
      candidates: Values that may be saved, with their bytes.
      pin_s: For each candidate the seconds of materialising it.
      needed: Values that the backward reads and that are not available.
      producer: For each value that is not available the op that writes it.
      reads: For each op that may be recomputed the values of `producer` that it reads.
      clone_s: For each of these ops the seconds of its clone.
    """

    candidates: tuple[tuple[int, int], ...]
    pin_s: tuple[float, ...]
    needed: tuple[int, ...]
    producer: Mapping[int, int]
    reads: Mapping[int, tuple[int, ...]]
    clone_s: Mapping[int, float]


SolvedStages = dict[tuple[object, ...], tuple[StageProblem, tuple["Option", ...]]]
"""Solved stages with their options, by `StageProblem.key`."""


def stage_options(
    staged: StagedProblem, *, most: int = 12, known: SolvedStages | None = None
) -> tuple[tuple[Option, ...], ...]:
    """The options of every stage by rising bytes and falling seconds; last, if it has residuals, the untouched stage.

    At most 12 bounds the integer programmes of one stage, and the columns of `compose`; no benchmark fixed the exact
    number. Solved stages are added to `known`.
    """
    known = {} if known is None else known
    options = []
    for stage in staged.subproblems:
        if stage.key not in known:
            known[stage.key] = stage, _solved(stage, most)
        like, own = known[stage.key]
        options.append(own if like is stage else tuple(_moved(option, like, stage) for option in own))
    return tuple(options)


def _solved(stage: StageProblem, most: int) -> tuple[Option, ...]:
    shape = stage_shape(stage)
    return (*(_option(shape, saved) for saved in _frontier(shape, most)), *_untouched(stage, shape))


def _moved(option: Option, like: StageProblem, stage: StageProblem) -> Option:
    """The option of a stage, with the values of another stage of the same structure."""
    position, values = like.induced_subgraph.position, stage.induced_subgraph.values
    saved, untouched = (frozenset(values[position[v]] for v in some) for some in (option.saved, option.untouched))
    return replace(option, saved=saved, untouched=untouched)


def _untouched(stage: StageProblem, shape: StageShape) -> Iterator[Option]:
    """The option without decisions, if the stage has residuals to decide about."""
    problem = stage.problem
    residuals = frozenset(shape.needed) - problem.required.keys()
    if residuals:
        candidates = frozenset(v for v, _ in shape.candidates)
        stacked = candidates & values_in_loops(problem.graph) & problem.needed & problem.fusion.materialised
        saved_bytes = sum(map(problem.graph.residual_bytes, stage.compiler_residuals(residuals) | stacked))
        yield Option(saved=frozenset(), saved_bytes=saved_bytes, recompute_s=0.0, untouched=residuals)


def stage_shape(stage: StageProblem) -> StageShape:
    """The integer programme's coefficients for a stage."""
    problem = stage.problem
    graph = problem.graph
    nothing, everything = _seconds(stage, frozenset()), _seconds(stage, problem.needed & problem.worth_saving)
    effects = (v for op in stage.ops if graph.ops[op].effects for v in graph.ops[op].writes)
    available = stage.saved.union(graph.results, effects)
    ops = _recomputable(problem, stage.ops, available)
    producer = {v: op for op in ops for v in graph.ops[op].writes if v not in available}
    position = {v: k for k, v in enumerate(producer)}
    rows = problem.fusion.rules.rows.values
    candidates = [v for v in producer if v in problem.worth_saving and v not in rows]
    return StageShape(
        candidates=tuple((v, graph.residual_bytes(v)) for v in candidates),
        pin_s=tuple(_pin_s(nothing, everything, producer[v]) for v in candidates),
        needed=tuple(v for v in producer if v in problem.read_after_forward),
        producer=producer,
        reads={op: tuple(sorted(producer.keys() & graph.ops[op].reads, key=position.__getitem__)) for op in ops},
        clone_s={op: round(nothing.get((op, True), 0.0), 12) for op in ops},
    )


_Seconds = dict[tuple[int, bool], float]
"""Seconds of each of a stage's forward ops (False), and of its clone (True)."""


def _pin_s(nothing: _Seconds, everything: _Seconds, op: int) -> float:
    """Seconds that an op takes more where its results are saved."""
    return round(max(0.0, everything[op, False] - nothing[op, False]), 12) if (op, False) in everything else 0.0


def _seconds(stage: StageProblem, saved: frozenset[int]) -> _Seconds:
    """Seconds of ops and clones if the stage saves some values."""
    replayed, subgraph = stage.replay(saved), stage.induced_subgraph
    return {
        (subgraph.ops[step.op - subgraph.first], step.is_clone): seconds
        for step, seconds in zip(replayed.steps, replayed.seconds, strict=True)
        if isinstance(step, Run) and step.op >= subgraph.first
    }


def _recomputable(problem: Problem, ops: tuple[int, ...], available: frozenset[int]) -> tuple[int, ...]:
    """The ops of a stage from which residuals that are not available are computed."""
    graph = problem.graph
    needed = {v for op in ops for v in graph.ops[op].writes if v in problem.read_after_forward and v not in available}
    found = []
    for op in reversed(ops):
        if any(v in needed for v in graph.ops[op].writes):
            found.append(op)
            needed.update(v for v in graph.ops[op].reads if v not in available)
    return tuple(reversed(found))


def _option(shape: StageShape, saved: frozenset[int]) -> Option:
    pin_s = sum(s for (v, _), s in zip(shape.candidates, shape.pin_s, strict=True) if v in saved)
    return Option(
        saved=saved,
        saved_bytes=_bytes_of(shape, saved),
        recompute_s=sum(shape.clone_s[op] for op in sorted(_recomputed_ops(shape, saved))) + pin_s,
    )


def _bytes_of(shape: StageShape, saved: frozenset[int]) -> int:
    return sum(size_bytes for v, size_bytes in shape.candidates if v in saved)


def _recomputed_ops(shape: StageShape, saved: frozenset[int]) -> frozenset[int]:
    """The ops that are recomputed if some values are saved."""
    recomputed: set[int] = set()
    pending = [v for v in shape.needed if v not in saved]
    while pending:
        op = shape.producer[pending.pop()]
        if op not in recomputed:
            recomputed.add(op)
            pending.extend(v for v in shape.reads[op] if v not in saved)
    return frozenset(recomputed)


def _frontier(shape: StageShape, most: int) -> tuple[frozenset[int], ...]:
    """Sets of saved values, by rising bytes: from none to the fastest choice without a limit."""
    if not shape.candidates or not shape.needed:
        return (frozenset(),)
    programme = _SaveProgramme(shape)
    saved = programme.solve(limit_bytes=sum(size_bytes for _, size_bytes in shape.candidates))
    found, full_bytes = [saved], _bytes_of(shape, saved)
    for step in reversed(range(1, most - 1)):
        if not saved:
            break
        limit_bytes = int(full_bytes * (step / (most - 1)) ** _LIMIT_EXPONENT)
        if limit_bytes < _bytes_of(shape, saved):
            saved = programme.solve(limit_bytes=limit_bytes)
            found.append(saved)
    if saved:
        found.append(frozenset())
    return tuple(reversed(found))


class _SaveProgramme:
    """The integer programme of the module's docstring, built once and solved for several limits."""

    def __init__(self, shape: StageShape):
        self.shape = shape
        column = {v: k for k, (v, _) in enumerate(shape.candidates)}
        column_of_op = {op: k for k, op in enumerate(shape.reads, len(column))}
        saved_or_recomputed = {
            v: {column_of_op[op]: 1.0, **({column[v]: 1.0} if v in column else {})} for v, op in shape.producer.items()
        }
        rows = Rows()
        for value in shape.needed:
            rows.add(saved_or_recomputed[value], lower=1.0)
        for op, reads in shape.reads.items():
            for value in reads:
                rows.add({**saved_or_recomputed[value], column_of_op[op]: -1.0}, lower=0.0)
        saved, ops = len(column), len(column_of_op)
        self.closure = rows.constraint(saved + ops)
        size_bytes = np.array([size_bytes for _, size_bytes in shape.candidates], dtype=float)
        clone_s = np.array(list(shape.clone_s.values()))
        self.cost = np.concatenate([size_bytes * _BYTES_WEIGHT + np.array(shape.pin_s) * 1e6, clone_s * 1e6])
        self.integrality = np.concatenate([np.ones(saved), np.zeros(ops)])
        self.bytes_row = np.concatenate([size_bytes / 2**20, np.zeros(ops)])

    def solve(self, *, limit_bytes: int) -> frozenset[int]:
        """The values that the cheapest solution within a limit saves."""
        limit = LinearConstraint(self.bytes_row, ub=limit_bytes / 2**20 + 1e-9)
        with silenced_stdout():
            result = milp(
                self.cost,
                constraints=[self.closure, limit],
                integrality=self.integrality,
                bounds=Bounds(0, 1),
                options={"mip_rel_gap": 1e-3, "node_limit": 200},
            )
        if result.x is None:
            return frozenset()
        return frozenset(v for (v, _), x in zip(self.shape.candidates, result.x, strict=False) if x > 0.5)
