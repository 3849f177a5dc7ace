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
bytes and seconds. Inputs from earlier stages, and boundary values, are available and cost nothing here.

Values inside kernels that hold rows are no candidates. The last option of a stage is to leave it untouched: no decision
at all, so that the compiler keeps what it likes.

Stages of the same structure have the same options: one of them is solved.

Read after `stage_problem`. The programme is Checkmate's (Jain et al. 2020) for a single backward visit to the stage;
HiGHS, through scipy, solves it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from jaxckpt.schedule import Run
from jaxckpt.schedule.validate import values_in_loops
from jaxckpt.solve.optimal.stage_problem import StagedProblem, StageProblem
from jaxckpt.solve.problem import Problem
from jaxckpt.solve.silenced import silenced_stdout

_LIMIT_EXPONENT = 1.7
"""Exponent of the byte limits: limits are denser for few bytes, where memory is short. Any value above 1 does that; no
benchmark fixed the exact value."""
_BYTES_WEIGHT = 1e-9
"""Microseconds a byte, to break ties towards saving less: a GiB counts as much as one microsecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set of values that a stage saves besides its boundary.

    Attributes:
      saved: Value ids.
      saved_bytes: Bytes that are live on the device until the stage's backward.
      recompute_s: Seconds of clones and pins, as the integer programme counts them.
      untouched: Residuals without a decision: all of the stage, or none.
      offloaded: Those of `saved`, and of the boundary, that are offloaded; see `offload_options`.
      offloaded_bytes: Bytes of these.
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
      ops: Ops that may be recomputed.
      values: The values that these write; all fields below hold positions in here or in `ops`.
      candidates: Positions of values that may be saved, with their bytes.
      pin_s: For each candidate the seconds of materialising it.
      needed: Positions of values that the backward reads and that are not available.
      reads: For each op the positions of the stage's values that it reads and that are not available.
      producer: For each value the position of its op.
      clone_s: For each op the seconds of its clone.
    """

    ops: tuple[int, ...]
    values: tuple[int, ...]
    candidates: tuple[tuple[int, int], ...]
    pin_s: tuple[float, ...]
    needed: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    producer: tuple[int, ...]
    clone_s: tuple[float, ...]


SolvedStages = dict[tuple[object, ...], tuple[StageProblem, tuple["Option", ...]]]
"""Solved stages with their options, by `StageProblem.key`."""


def stage_options(
    staged: StagedProblem, *, most: int = 12, known: SolvedStages | None = None
) -> tuple[tuple[Option, ...], ...]:
    """The options of every stage, from saving the boundary only to saving most.

    Args:
      staged: The step, split into stages.
      most: Upper bound of the number of options of a stage. 12 bounds the integer programmes of one stage, and the
        columns of `compose`; no benchmark fixed the exact number.
      known: Solved stages of the same step; new ones are added.

    Returns:
      For each stage at least one option, by rising bytes and falling seconds; last, if the stage has residuals to
      decide about, the untouched stage.
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
    return (*(_option(stage.problem, shape, kept) for kept in _frontier(shape, most)), *_untouched(stage, shape))


def _moved(option: Option, like: StageProblem, stage: StageProblem) -> Option:
    """The option of a stage, with the values of another stage of the same structure."""
    position, values = like.induced_subgraph.position, stage.induced_subgraph.values
    saved, untouched = (frozenset(values[position[v]] for v in some) for some in (option.saved, option.untouched))
    return replace(option, saved=saved, untouched=untouched)


def _untouched(stage: StageProblem, shape: StageShape) -> Iterator[Option]:
    """The option without decisions, if the stage has residuals to decide about."""
    problem = stage.problem
    residuals = frozenset(shape.values[i] for i in shape.needed) - problem.required.keys()
    if residuals:
        candidates = frozenset(shape.values[i] for i, _ in shape.candidates)
        stacked = candidates & values_in_loops(problem.graph) & problem.needed & problem.fusion.materialised
        saved_bytes = sum(map(problem.graph.residual_bytes, stage.compiler_residuals(residuals) | stacked))
        yield Option(saved=frozenset(), saved_bytes=saved_bytes, recompute_s=0.0, untouched=residuals)


def stage_shape(stage: StageProblem) -> StageShape:
    """The integer programme's coefficients for a stage."""
    problem = stage.problem
    graph, seconds = problem.graph, _seconds(stage)
    effects = (v for op in stage.ops if graph.ops[op].effects for v in graph.ops[op].writes)
    available = stage.saved.union(graph.results, effects)
    ops = _recomputable(problem, stage.ops, available)
    values = tuple(v for op in ops for v in graph.ops[op].writes)
    inside = {v: i for i, v in enumerate(values) if v not in available}
    worth_saving = problem.worth_saving - problem.fusion.rules.rows.values
    candidates = {v: i for v, i in inside.items() if v in worth_saving}
    return StageShape(
        ops=ops,
        values=values,
        candidates=tuple((i, graph.residual_bytes(v)) for v, i in candidates.items()),
        pin_s=tuple(seconds.pins.get(graph.producer[v] or 0, 0.0) for v in candidates),
        needed=tuple(i for v, i in inside.items() if v in problem.read_after_forward),
        reads=tuple(tuple(sorted({inside[v] for v in graph.ops[op].reads if v in inside})) for op in ops),
        producer=tuple(k for k, op in enumerate(ops) for _ in graph.ops[op].writes),
        clone_s=tuple(seconds.clones.get(op, 0.0) for op in ops),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seconds:
    """By op: seconds of its clone, and the additional seconds of materialising its results in the forward pass."""

    clones: Mapping[int, float]
    pins: Mapping[int, float]


def _seconds(stage: StageProblem) -> _Seconds:
    """Seconds of clones in a replay that saves nothing, and of pins in one that saves everything."""
    problem = stage.problem
    baseline = _by_op(stage, frozenset())
    everything = _by_op(stage, problem.needed & problem.worth_saving)
    clones = {op: round(seconds, 12) for (op, is_clone), seconds in baseline.items() if is_clone}
    pins = {
        op: round(max(0.0, seconds - baseline[op, False]), 12)
        for (op, is_clone), seconds in everything.items()
        if not is_clone
    }
    return _Seconds(clones=clones, pins=pins)


def _by_op(stage: StageProblem, saved: frozenset[int]) -> dict[tuple[int, bool], float]:
    """Seconds of each of the stage's forward ops, and of its clone (True), if the stage saves `saved`."""
    replayed, first = stage.replay(saved), stage.induced_subgraph.first
    found = {}
    for step, seconds in zip(replayed.steps, replayed.seconds, strict=True):
        if isinstance(step, Run) and step.op >= first:
            found[stage.induced_subgraph.ops[step.op - first], step.is_clone] = seconds
    own = frozenset(stage.ops)
    return {key: seconds for key, seconds in found.items() if key[0] in own}


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


def _option(problem: Problem, shape: StageShape, kept: tuple[int, ...]) -> Option:
    saved = frozenset(shape.values[i] for i in kept)
    recomputed = _recomputed_ops(shape, frozenset(kept))
    pin_s = sum(s for (i, _), s in zip(shape.candidates, shape.pin_s, strict=True) if i in kept)
    return Option(
        saved=saved,
        saved_bytes=sum(map(problem.graph.residual_bytes, saved)),
        recompute_s=sum(shape.clone_s[k] for k in recomputed) + pin_s,
    )


def _recomputed_ops(shape: StageShape, kept: frozenset[int]) -> frozenset[int]:
    """The ops that are recomputed if the values at `kept` are saved."""
    recomputed: set[int] = set()
    pending = [i for i in shape.needed if i not in kept]
    while pending:
        op = shape.producer[pending.pop()]
        if op not in recomputed:
            recomputed.add(op)
            pending.extend(i for i in shape.reads[op] if i not in kept)
    return frozenset(recomputed)


def _frontier(shape: StageShape, most: int) -> tuple[tuple[int, ...], ...]:
    """Positions of saved values, by rising bytes: from none to the fastest choice without a limit."""
    if not shape.candidates or not shape.needed:
        return ((),)
    programme = _SaveProgramme(shape)
    size_bytes = dict(shape.candidates)
    kept = programme.solve(limit_bytes=sum(size_bytes.values()))
    found = [kept]
    full_bytes = sum(size_bytes[i] for i in kept)
    for step in reversed(range(1, most - 1)):
        if not kept:
            break
        limit_bytes = int(full_bytes * (step / (most - 1)) ** _LIMIT_EXPONENT)
        if limit_bytes < sum(size_bytes[i] for i in kept):
            kept = programme.solve(limit_bytes=limit_bytes)
            found.append(kept)
    if kept:
        found.append(())
    return tuple(reversed(found))


class _SaveProgramme:
    """The integer programme of the module's docstring, built once and solved for several limits."""

    def __init__(self, shape: StageShape):
        self.shape = shape
        self.size_bytes = np.array([size_bytes for _, size_bytes in shape.candidates], dtype=float)
        column = {i: k for k, (i, _) in enumerate(shape.candidates)}
        kept, ops = len(column), len(shape.ops)
        rows: list[int] = []
        columns: list[int] = []
        entries: list[float] = []
        lower: list[float] = []

        def at_least(value: int, reader: int | None) -> None:
            row = len(lower)
            terms = [(kept + shape.producer[value], 1.0)]
            if value in column:
                terms.append((column[value], 1.0))
            if reader is not None:
                terms.append((kept + reader, -1.0))
            for where, factor in terms:
                rows.append(row)
                columns.append(where)
                entries.append(factor)
            lower.append(1.0 if reader is None else 0.0)

        for value in shape.needed:
            at_least(value, None)
        for op, reads in enumerate(shape.reads):
            for value in reads:
                at_least(value, op)
        matrix = csr_array((entries, (rows, columns)), shape=(len(lower), kept + ops))
        self.closure = LinearConstraint(matrix, lb=np.array(lower))
        seconds = np.array(shape.clone_s)
        self.cost = np.concatenate([self.size_bytes * _BYTES_WEIGHT + np.array(shape.pin_s) * 1e6, seconds * 1e6])
        self.integrality = np.concatenate([np.ones(kept), np.zeros(ops)])
        self.bytes_row = csr_array(np.concatenate([self.size_bytes / 2**20, np.zeros(ops)])[None, :])

    def solve(self, *, limit_bytes: int) -> tuple[int, ...]:
        """Positions of the values that the cheapest solution within a limit saves."""
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
            return ()
        kept = len(self.shape.candidates)
        return tuple(i for (i, _), x in zip(self.shape.candidates, result.x[:kept], strict=True) if x > 0.5)
