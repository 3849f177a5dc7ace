"""Stage subproblems: the forward ops of one stage and their part of the backward, as a small graph of its own.

An option of a stage changes bytes and seconds while the stage is active, and nowhere else, except for the bytes that
stay live until the stage's backward. So options are tried on a subproblem, which is quick to replay; stages of equal
structure share one. If an earlier stage produces an input by a chain of elementwise ops, these are part of it too.

One stage is active at each step of a replay. A stage's backward begins with the first op after the forward pass that
reads a value from inside the stage. Reads of a boundary decide nothing, since neighbouring stages read it too. Clones
right before that op belong to the same stage.

Read after `jaxckpt.solve.stages`. Complexity: linear in the ops of the stages.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxckpt.cost import Replay
from jaxckpt.ir import GraphPlan, Offload, Partition, Phase, Save
from jaxckpt.schedule import Run, ScheduleStep, partition_with_axes
from jaxckpt.schedule.subgraph import Subgraph, induced_subgraph
from jaxckpt.schedule.validate import reason_not_offloadable, values_in_loops
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries, members, stage_index

ActiveStage = tuple[str, int]
"""An interval of the schedule: "forward" or "backward", and the index of the active stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageActivity:
    """For each step of a replay its interval, and the stages in the order in which their backward begins."""

    of_steps: tuple[ActiveStage, ...]
    order: tuple[int, ...]

    def holding_stages(self, active: ActiveStage, count: int) -> tuple[int, ...]:
        """Those of `count` stages, except the active one, whose saved values are live in an interval."""
        part, stage = active
        if part == "forward":
            return tuple(range(stage))
        done = set(self.order[: self.order.index(stage) + 1])
        return tuple(t for t in range(count) if t not in done)


@dataclass(frozen=True, kw_only=True, eq=False)
class StageProblem:
    """The subproblem of one stage.

    Attributes:
      problem: The full step, whose ids `ops` and `saved` are.
      induced_subgraph: Of ops of earlier stages, the stage's own ops, and its part of the backward, in this order.
      ops: The stage's own forward ops.
      saved: The values that cross stages of the cut: saved under every option.
      replayed: Replays so far, by the arguments of `replay` as positions.
    """

    problem: Problem
    induced_subgraph: Subgraph
    ops: tuple[int, ...]
    saved: frozenset[int]
    num_earlier: int
    replayed: dict[tuple[frozenset[int], ...], Replay] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for stages that have the same options, position by position."""
        problem, values = self.problem, self.induced_subgraph.values
        saved, of_values = tuple(map(self.saved.__contains__, values)), problem.memberships
        memberships = tuple([of_values[v] for v in values])
        required = tuple((i, problem.required[v]) for i, v in enumerate(values) if v in problem.required)
        return self.induced_subgraph.structure, len(self.ops), self.num_earlier, saved, memberships, required

    @cached_property
    def subproblem(self) -> Problem:
        """The subgraph as a problem."""
        position, required = self.induced_subgraph.position, self.problem.required
        return Problem(
            graph=self.induced_subgraph.graph,
            rates=self.problem.rates,
            is_full_step=False,
            required={position[v]: decision for v, decision in required.items() if v in position},
        )

    def offloaded_in_loops(self, offloaded: Collection[int]) -> frozenset[int]:
        """Positions of the values that are on the host even while the stage is active: those of loop bodies."""
        if not offloaded:
            return frozenset()
        graph = self.induced_subgraph.graph
        inside = self._positions(offloaded, first=self.induced_subgraph.given) & values_in_loops(graph)
        return frozenset(v for v in inside if reason_not_offloadable(graph, v) is None)

    def sharded_here(self, saved: Collection[int], sharded: Collection[int]) -> frozenset[int]:
        """Positions of the values that are sharded even while the stage is active: its own, and those of loop bodies.

        Other values that cross into the next stage stay replicated until that stage has read them.
        """
        if not sharded:
            return frozenset()
        given = self.induced_subgraph.given
        own = self._positions(frozenset(sharded).intersection(saved) - self.saved, first=given)
        return own | self._positions(sharded, first=given) & values_in_loops(self.induced_subgraph.graph)

    def compiler_residuals(self, untouched: Collection[int]) -> frozenset[int]:
        """Values besides the boundary that stay live until the stage's backward if some residuals have no decision.

        Residual stacks of loops are not among them: they are no buffers of a replay.
        """
        subgraph, replayed = self.induced_subgraph, self.replay((), untouched)
        ops, steps = subgraph.graph.ops, replayed.steps
        after_forward = (i for i, s in enumerate(steps) if isinstance(s, Run) and ops[s.op].phase is not Phase.FORWARD)
        first = next(after_forward, len(steps))
        live = {v for v in replayed.alive_at(first) if replayed.births[v] < first}
        written = (v for op in self.ops for v in self.problem.graph.ops[op].writes)
        return frozenset(v for v in written if subgraph.position[v] in live) & self.problem.needed - self.saved

    def replay(
        self,
        saved: Collection[int],
        untouched: Collection[int] = (),
        offloaded: Collection[int] = (),
        sharded: Collection[int] = (),
    ) -> Replay:
        """Memory and time of the stage if it saves some values besides its boundary; ids are those of the full step."""
        graph = self.induced_subgraph.graph
        in_loops, cut = self.offloaded_in_loops(offloaded), self.sharded_here(saved, sharded)
        key = self._positions((*saved, *self.saved)), self._positions(untouched), in_loops, cut
        if key not in self.replayed:
            decisions = decisions_saving(self.subproblem, *key[:2])
            decisions.update((v, decisions.get(v, Save())) for v in range(self.induced_subgraph.given))
            decisions.update(dict.fromkeys(in_loops, Offload(prefetch=0)))
            decisions.update((v, partition_with_axes(graph, v, Partition())) for v in cut)
            stages = (0, self.induced_subgraph.first + self.num_earlier)
            self.replayed[key] = self.subproblem.replay(GraphPlan(fingerprint="", decisions=decisions, stages=stages))
        return self.replayed[key]

    def _positions(self, values: Collection[int], *, first: int = 0) -> frozenset[int]:
        position = self.induced_subgraph.position
        return frozenset(position[v] for v in values if v in position and position[v] >= first)


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedProblem:
    """A problem split into the subproblems of its stages.

    Attributes:
      baseline: The replay of the step in which every stage saves its boundary only.
      activity: The active stage at each step of the baseline.
    """

    problem: Problem
    stages: StageStarts
    baseline: Replay
    activity: StageActivity
    subproblems: tuple[StageProblem, ...]


def split_into_stages(problem: Problem, stages: StageStarts, baseline: Replay | None = None) -> StagedProblem:
    """Splits a problem into the subproblems of a cut's stages; computes the baseline unless it is known."""
    graph, saved = problem.graph, boundaries(problem, stages)
    if baseline is None:
        baseline = problem.replay(GraphPlan(fingerprint="", decisions=decisions_saving(problem, saved), stages=stages))
    activity = active_stages(problem, stages, baseline.steps)
    forward = stage_index(graph, stages)
    results = frozenset(v for v in graph.results if graph.producer[v] in forward)
    available = saved | problem.written_with_effects | results
    subproblems = []
    after_forward = _ops_after_forward(problem, saved, forward, baseline, activity)
    for stage, ops in enumerate(members(graph, stages)):
        earlier = _earlier_ops(problem, ops, available)
        subgraph = induced_subgraph(graph, sorted({*earlier, *ops, *after_forward.get(stage, ())}), available)
        subproblems.append(
            StageProblem(problem=problem, induced_subgraph=subgraph, ops=ops, saved=saved, num_earlier=len(earlier))
        )
    return StagedProblem(
        problem=problem, stages=stages, baseline=baseline, activity=activity, subproblems=tuple(subproblems)
    )


def _ops_after_forward(
    problem: Problem, saved: frozenset[int], forward: Mapping[int, int], baseline: Replay, activity: StageActivity
) -> Mapping[int, set[int]]:
    """For each stage the backward ops while it is active, and all readers of its residuals after the forward pass."""
    graph = problem.graph
    found: defaultdict[int, set[int]] = defaultdict(set)
    for step, (_, stage) in zip(baseline.steps, activity.of_steps, strict=True):
        if isinstance(step, Run) and graph.ops[step.op].phase is Phase.BACKWARD:
            found[stage].add(step.op)
    for value in problem.read_after_forward - saved:
        producer = graph.producer[value]
        if producer is not None and producer in forward:
            found[forward[producer]].update(r for r in graph.readers[value] if graph.ops[r].phase is not Phase.FORWARD)
    return found


def _earlier_ops(problem: Problem, ops: Sequence[int], available: frozenset[int]) -> set[int]:
    """Ops of earlier stages that compute the inputs of some ops from available values."""
    graph, free = problem.graph, available | problem.fusion.argument_derived
    own, earlier = frozenset(ops), set[int]()
    pending = [v for op in ops for v in graph.ops[op].reads]
    while pending:
        value = pending.pop()
        producer = graph.producer[value]
        if producer is None or producer in own or producer in earlier or value in free:
            continue
        earlier.add(producer)
        pending.extend(graph.ops[producer].reads)
    return earlier


def active_stages(problem: Problem, stages: StageStarts, steps: Sequence[ScheduleStep]) -> StageActivity:
    """The active stage of a cut at each of some steps."""
    graph = problem.graph
    forward = stage_index(graph, stages)
    inside = _inside_stages(problem, forward, boundaries(problem, stages))
    of_steps: list[ActiveStage] = []
    begun: dict[int, None] = {}
    now: ActiveStage = ("forward", 0)
    clones = 0
    for step in steps:
        if not isinstance(step, Run) or step.is_clone:
            clones += 1
            of_steps.append(now)
            continue
        op = graph.ops[step.op]
        if op.phase is Phase.FORWARD:
            now = ("forward", forward[op.id])
        else:
            for stage in (inside[value] for value in op.reads if value in inside):
                if stage not in begun:
                    begun[stage] = None
                    now = ("backward", stage)
                    of_steps[len(of_steps) - clones :] = [now] * clones
        clones = 0
        of_steps.append(now)
    return StageActivity(of_steps=tuple(of_steps), order=tuple(begun))


def _inside_stages(problem: Problem, forward: Mapping[int, int], boundary: frozenset[int]) -> dict[int, int]:
    """The stage of each forward value that is neither on a boundary nor argument-derived."""
    written = ((v, stage) for op, stage in forward.items() for v in problem.graph.ops[op].writes)
    shared = boundary | problem.fusion.argument_derived
    return {v: stage for v, stage in written if v not in shared}
