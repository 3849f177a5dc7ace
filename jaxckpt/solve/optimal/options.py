"""What one stage can keep: sets of values from nothing to all that the backward needs, each the cheapest of its size.

For one stage the choice is an integer programme. Each value worth saving has a variable S_v (kept), each op of the
stage a variable R_o (run again):

    minimise    sum_o seconds_o R_o  +  sum_v pin_v S_v
    subject to  S_v + R_p(v) >= 1          for each v that the backward reads, p(v) being what makes it
                S_u + R_p(u) >= R_o        for each u of the stage that o reads
                sum_v bytes_v S_v <= limit
                S_v in {0, 1},  0 <= R_o <= 1

Seconds are those of two replays of the stage by itself, one that keeps nothing and one that keeps everything:
seconds_o is what the copy of o takes when all copies run, pin_v what making v takes more in the forward pass when it
has to be written for itself (a softmax's maximum costs a pass over its rows). With S fixed, the least R that satisfies
the rest is 0 or 1 by itself, so only S is integer. Lowering the limit below what the last solution took walks down the
frontier of bytes against seconds. Values that the stage reads from earlier stages, and its own boundary values, are
there anyway and cost nothing here.

Values inside kernels that hold rows are no candidates. The last option of a stage is to leave it untouched: the
compiler keeps what it likes, nothing is pinned.

Stages of the same structure have the same options: one of them is solved.

Read after `subproblems`. The programme is Checkmate's (Jain et al. 2020) for a single backward visit to the stage;
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
from jaxckpt.solve.silenced import quiet

_DENSER_BELOW = 1.7
"""Limits are the powers of equal steps: where memory is short, a few bytes decide."""
_BYTES_WEIGHT = 1e-9
"""Microseconds a byte, to break ties towards keeping less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A set of values that a stage keeps besides its boundary.

    Attributes:
      saved: Value ids.
      saved_bytes: Bytes that the stage holds on the device until its backward.
      recompute_s: Seconds that the stage then spends on copies and pins, as the integer programme counts them.
      untouched: Residuals about which nothing is decided: all of the stage, or none.
      away: Those of `saved` that wait on the host; see `hosted`.
      away_bytes: Bytes of these.
      shards: Those of `saved`, and of the boundary, that wait as shards; see `shards`.
      gather_s: Seconds in which the boundary is cut and gathered, which no replay of the stage by itself counts.
    """

    saved: frozenset[int]
    saved_bytes: int
    recompute_s: float
    untouched: frozenset[int] = frozenset()
    away: frozenset[int] = frozenset()
    away_bytes: int = 0
    shards: frozenset[int] = frozenset()
    gather_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShape:
    """A stage as the integer programme sees it.

    Attributes:
      ops: Its ops.
      values: What they write, in order; everything below counts positions in here or in `ops`.
      candidates: Positions of values that may be kept, with their bytes.
      pin_s: For each candidate the seconds that keeping it costs.
      needed: Positions of values that the backward reads and that are not there anyway.
      reads: For each op the positions of values of this stage that it reads, unless they are there anyway.
      producer: For each value the position of its op.
      again_s: For each op the seconds of running it again.
    """

    ops: tuple[int, ...]
    values: tuple[int, ...]
    candidates: tuple[tuple[int, int], ...]
    pin_s: tuple[float, ...]
    needed: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    producer: tuple[int, ...]
    again_s: tuple[float, ...]


SolvedStages = dict[tuple[object, ...], tuple[StageProblem, tuple["Option", ...]]]
"""Stages that were solved, with their options, by `StageProblem.key`."""


def stage_options(
    cut: StagedProblem, *, most: int = 12, known: SolvedStages | None = None
) -> tuple[tuple[Option, ...], ...]:
    """The options of every stage, from the one that keeps nothing more to the one that keeps most.

    Args:
      cut: Where the forward pass is cut.
      most: How many options a stage may have.
      known: Stages of the same step that were solved before; those solved now are added.

    Returns:
      For each stage at least one option, by rising bytes and falling seconds, and last, where there is anything to
      decide, the stage untouched.
    """
    known = {} if known is None else known
    options = []
    for stage in cut.subproblems:
        if stage.key not in known:
            known[stage.key] = stage, _solved(stage, most)
        like, own = known[stage.key]
        options.append(own if like is stage else tuple(_moved(option, like, stage) for option in own))
    return tuple(options)


def _solved(stage: StageProblem, most: int) -> tuple[Option, ...]:
    shape = stage_shape(stage)
    return (*(_option(stage.problem, shape, kept) for kept in _frontier(shape, most)), *_untouched(stage, shape))


def _moved(option: Option, like: StageProblem, stage: StageProblem) -> Option:
    """The option of a stage as one of another stage of the same structure."""
    position, values = like.induced_subgraph.position, stage.induced_subgraph.values
    saved, untouched = (frozenset(values[position[v]] for v in some) for some in (option.saved, option.untouched))
    return replace(option, saved=saved, untouched=untouched)


def _untouched(stage: StageProblem, shape: StageShape) -> Iterator[Option]:
    """The stage as its author wrote it, where there is something to decide."""
    problem = stage.problem
    residuals = frozenset(shape.values[i] for i in shape.needed) - problem.required.keys()
    if residuals:
        candidates = frozenset(shape.values[i] for i, _ in shape.candidates)
        stacked = candidates & values_in_loops(problem.graph) & problem.needed & problem.fusion.materialised
        waiting_bytes = sum(map(problem.graph.residual_bytes, stage.waiting(residuals) | stacked))
        yield Option(saved=frozenset(), saved_bytes=waiting_bytes, recompute_s=0.0, untouched=residuals)


def stage_shape(stage: StageProblem) -> StageShape:
    """A stage reduced to what decides its options."""
    problem = stage.problem
    graph, seconds = problem.graph, _in_context(stage)
    effects = (v for op in stage.ops if graph.ops[op].effects for v in graph.ops[op].writes)
    there = stage.saved.union(graph.results, effects)
    ops = _wanted(problem, stage.ops, there)
    values = tuple(v for op in ops for v in graph.ops[op].writes)
    inside = {v: i for i, v in enumerate(values) if v not in there}
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
        again_s=tuple(seconds.again.get(op, 0.0) for op in ops),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seconds:
    """By op: of its copy, and what its results take more in the forward pass where they are kept."""

    again: Mapping[int, float]
    pins: Mapping[int, float]


def _in_context(stage: StageProblem) -> _Seconds:
    """The seconds of copies where nothing is kept, and of pins where everything is."""
    problem = stage.problem
    nothing = _by_op(stage, frozenset())
    everything = _by_op(stage, problem.needed & problem.worth_saving)
    again = {op: round(seconds, 12) for (op, again), seconds in nothing.items() if again}
    pins = {
        op: round(max(0.0, seconds - nothing[op, False]), 12)
        for (op, again), seconds in everything.items()
        if not again
    }
    return _Seconds(again=again, pins=pins)


def _by_op(stage: StageProblem, kept: frozenset[int]) -> dict[tuple[int, bool], float]:
    """Seconds of each of the stage's forward ops, and of its copy, if it keeps `kept`."""
    replayed, first = stage.replay(kept), stage.induced_subgraph.first
    found = {}
    for step, seconds in zip(replayed.steps, replayed.seconds, strict=True):
        if isinstance(step, Run) and step.op >= first:
            found[stage.induced_subgraph.ops[step.op - first], step.is_clone] = seconds
    own = frozenset(stage.ops)
    return {key: seconds for key, seconds in found.items() if key[0] in own}


def _wanted(problem: Problem, ops: tuple[int, ...], there: frozenset[int]) -> tuple[int, ...]:
    """Those ops of a stage whose results can be wanted again."""
    graph = problem.graph
    wanted = {v for op in ops for v in graph.ops[op].writes if v in problem.read_after_forward and v not in there}
    kept = []
    for op in reversed(ops):
        if any(v in wanted for v in graph.ops[op].writes):
            kept.append(op)
            wanted.update(v for v in graph.ops[op].reads if v not in there)
    return tuple(reversed(kept))


def _option(problem: Problem, shape: StageShape, kept: tuple[int, ...]) -> Option:
    saved = frozenset(shape.values[i] for i in kept)
    again = _again(shape, frozenset(kept))
    pin_s = sum(s for (i, _), s in zip(shape.candidates, shape.pin_s, strict=True) if i in kept)
    return Option(
        saved=saved,
        saved_bytes=sum(map(problem.graph.residual_bytes, saved)),
        recompute_s=sum(shape.again_s[k] for k in again) + pin_s,
    )


def _again(shape: StageShape, kept: frozenset[int]) -> frozenset[int]:
    """The ops that run again when `kept` is there."""
    again: set[int] = set()
    pending = [i for i in shape.needed if i not in kept]
    while pending:
        op = shape.producer[pending.pop()]
        if op not in again:
            again.add(op)
            pending.extend(i for i in shape.reads[op] if i not in kept)
    return frozenset(again)


def _frontier(shape: StageShape, most: int) -> tuple[tuple[int, ...], ...]:
    """Kept positions, by rising bytes: the cheapest in seconds, and the cheapest within less and less, down to none."""
    if not shape.candidates or not shape.needed:
        return ((),)
    programme = _Programme(shape)
    size_bytes = dict(shape.candidates)
    kept = programme.solve(limit_bytes=sum(size_bytes.values()))
    found = [kept]
    whole_bytes = sum(size_bytes[i] for i in kept)
    for left in reversed(range(1, most - 1)):
        if not kept:
            break
        share_bytes = int(whole_bytes * (left / (most - 1)) ** _DENSER_BELOW)
        taken_bytes = sum(size_bytes[i] for i in kept)
        if share_bytes < taken_bytes:
            kept = programme.solve(limit_bytes=share_bytes)
            found.append(kept)
    if kept:
        found.append(())
    return tuple(reversed(found))


class _Programme:
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
        seconds = np.array(shape.again_s)
        self.cost = np.concatenate([self.size_bytes * _BYTES_WEIGHT + np.array(shape.pin_s) * 1e6, seconds * 1e6])
        self.integrality = np.concatenate([np.ones(kept), np.zeros(ops)])
        self.bytes_row = csr_array(np.concatenate([self.size_bytes / 2**20, np.zeros(ops)])[None, :])

    def solve(self, *, limit_bytes: int) -> tuple[int, ...]:
        """The positions kept by the cheapest solution within the limit."""
        limit = LinearConstraint(self.bytes_row, ub=limit_bytes / 2**20 + 1e-9)
        with quiet():
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
