"""A stage by itself: its forward ops and its part of the backward, as a small step that is quick to replay.

What a stage keeps changes bytes and seconds while the stage is at work and nowhere else, but for the bytes that wait.
So a stage is taken out of the step, and its options are tried there; stages of one structure are tried once. What
crosses from other stages is given; where a chain of elementwise work comes from an earlier stage, its ops come along.

Read after `activity`. Complexity: linear in the ops of the stages.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from jaxckpt.cost import Replay
from jaxckpt.ir import GraphPlan, Offload, Partition, Phase, Save
from jaxckpt.schedule import Run, Subgraph, induced_subgraph, partition_with_axes
from jaxckpt.schedule.validate import reason_not_offloadable, values_in_loops
from jaxckpt.solve.optimal.active_stage import StageActivity, active_stages
from jaxckpt.solve.problem import Problem, decisions_saving
from jaxckpt.solve.stages import StageStarts, boundaries, members, stage_index


@dataclass(frozen=True, kw_only=True, eq=False)
class StageProblem:
    """A stage by itself.

    Attributes:
      problem: The whole step.
      excerpt: The stage's ops: those of chains from earlier stages, its own, and its part of the backward.
      ops: Its own ops of the forward pass.
      saved: Its boundary: what is kept whatever the stage's option.
      chained: How many ops of the excerpt come from earlier stages.
      replayed: What was asked before, by what is kept, untouched, away and cut.
    """

    problem: Problem
    induced_subgraph: Subgraph
    ops: tuple[int, ...]
    saved: frozenset[int]
    chained: int
    replayed: dict[tuple[frozenset[int], ...], Replay] = field(default_factory=dict)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for stages of one step that have the same options, place by place."""
        problem = self.problem
        sets = (
            self.saved,
            problem.worth_saving,
            problem.read_after_forward,
            problem.needed,
            problem.fusion.materialised,
        )
        results, rows = problem.graph.results, problem.fusion.rules.rows.values
        marks = tuple(tuple(v in some for some in (*sets, results, rows)) for v in self.induced_subgraph.values)
        required_decisions = tuple(
            (i, problem.required[v]) for i, v in enumerate(self.induced_subgraph.values) if v in problem.required
        )
        return self.induced_subgraph.structure, len(self.ops), self.chained, marks, required_decisions

    @cached_property
    def own(self) -> Problem:
        """The excerpt as a step to plan."""
        position, required = self.induced_subgraph.position, self.problem.required
        return Problem(
            graph=self.induced_subgraph.graph,
            rates=self.problem.rates,
            is_full_step=False,
            required={position[v]: decision for v, decision in required.items() if v in position},
        )

    def turning(self, away: Collection[int]) -> frozenset[int]:
        """Positions of those of some values that wait on the host while the stage is at work: what turns make."""
        if not away:
            return frozenset()
        graph, position = self.induced_subgraph.graph, self.induced_subgraph.position
        inside = frozenset(position[v] for v in away if v in position) & values_in_loops(graph)
        return frozenset(
            v for v in inside if v >= self.induced_subgraph.given and reason_not_offloadable(graph, v) is None
        )

    def cut(self, kept: Collection[int], shards: Collection[int]) -> frozenset[int]:
        """Positions of those of some values that wait as shards while the stage is at work.

        That is what the stage keeps for itself, and all that turns make: what else crosses into the next stage is whole
        until that one has read it.
        """
        if not shards:
            return frozenset()
        graph, position = self.induced_subgraph.graph, self.induced_subgraph.position
        own = frozenset(position[v] for v in frozenset(shards).intersection(kept) - self.saved if v in position)
        turned = frozenset(position[v] for v in shards if v in position) & values_in_loops(graph)
        return frozenset(v for v in own | turned if v >= self.induced_subgraph.given)

    def waiting(self, untouched: Collection[int]) -> frozenset[int]:
        """What the stage leaves for its backward besides its boundary, if nothing is decided about some residuals.

        Loops' turns leave stacks, which are no buffers of a replay: these are not in it.
        """
        ops, replayed = self.induced_subgraph.graph.ops, self.replay((), untouched)
        late = (isinstance(step, Run) and ops[step.op].phase is not Phase.FORWARD for step in replayed.steps)
        first = next((i for i, is_late in enumerate(late) if is_late), len(replayed.steps))
        made = (v for op in self.ops for v in self.problem.graph.ops[op].writes)
        alive = {v for v in replayed.alive_at(first) if replayed.births[v] < first}
        return (
            frozenset(v for v in made if self.induced_subgraph.position[v] in alive) & self.problem.needed - self.saved
        )

    def replay(
        self,
        kept: Collection[int],
        untouched: Collection[int] = (),
        away: Collection[int] = (),
        shards: Collection[int] = (),
    ) -> Replay:
        """What the stage takes if it keeps some values besides its boundary; ids are those of the whole step.

        Of those that are away, what loops' turns make is on the host, the rest still on the device. Of those that wait
        as shards, what crosses into the next stage is still whole.
        """
        position = self.induced_subgraph.position
        saved = frozenset(position[v] for v in (*kept, *self.saved) if v in position)
        free = frozenset(position[v] for v in untouched if v in position)
        turning, cut = self.turning(away), self.cut(kept, shards)
        asked = saved, free, turning, cut
        if asked not in self.replayed:
            decisions = decisions_saving(self.own, saved, free)
            decisions.update((v, decisions.get(v, Save())) for v in range(self.induced_subgraph.given))
            decisions.update(dict.fromkeys(turning, Offload(prefetch=0)))
            decisions.update((v, partition_with_axes(self.induced_subgraph.graph, v, Partition())) for v in cut)
            stages = (0, self.induced_subgraph.first + self.chained)
            self.replayed[asked] = self.own.replay(GraphPlan(fingerprint="", decisions=decisions, stages=stages))
        return self.replayed[asked]


@dataclass(frozen=True, kw_only=True, eq=False)
class StagedProblem:
    """A cut of the forward pass, taken apart.

    Attributes:
      problem: The step.
      stages: The cut.
      nothing: The replay of the step where stages keep their boundaries alone.
      labels: Which stage is at work at each step of it.
      alone: The stages, each by itself.
    """

    problem: Problem
    stages: StageStarts
    nothing: Replay
    activity: StageActivity
    subproblems: tuple[StageProblem, ...]


def split_into_stages(problem: Problem, stages: StageStarts, nothing: Replay | None = None) -> StagedProblem:
    """Takes the stages of a cut out of their step.

    Args:
      problem: The step.
      stages: The cut.
      nothing: The replay of the step where stages keep their boundaries alone, if it is known.
    """
    graph, fixed = problem.graph, boundaries(problem, stages)
    if nothing is None:
        nothing = problem.replay(GraphPlan(fingerprint="", decisions=decisions_saving(problem, fixed), stages=stages))
    activity = active_stages(problem, stages, nothing.steps)
    home = stage_index(graph, stages)
    late: list[set[int]] = [set() for _ in stages]
    for step, (_, stage) in zip(nothing.steps, activity.of_steps, strict=True):
        if isinstance(step, Run) and graph.ops[step.op].phase is Phase.BACKWARD:
            late[stage].add(step.op)
    for value in problem.read_after_forward - fixed:
        made = graph.producer[value]
        if made is not None and made in home:
            late[home[made]].update(r for r in graph.readers[value] if graph.ops[r].phase is not Phase.FORWARD)
    effects = frozenset(v for op in home if graph.ops[op].effects for v in graph.ops[op].writes)
    there = fixed | effects | frozenset(v for v in graph.results if graph.producer[v] in home)
    subproblems = []
    for ops, later in zip(members(graph, stages), late, strict=True):
        chained = _chained(problem, ops, there)
        taken = induced_subgraph(graph, sorted({*chained, *ops, *later}), there)
        subproblems.append(
            StageProblem(problem=problem, induced_subgraph=taken, ops=ops, saved=fixed, chained=len(chained))
        )
    return StagedProblem(
        problem=problem, stages=stages, nothing=nothing, activity=activity, subproblems=tuple(subproblems)
    )


def _chained(problem: Problem, ops: Sequence[int], there: frozenset[int]) -> set[int]:
    """Ops of earlier stages that make what these read, from what is there."""
    graph, derived = problem.graph, problem.fusion.argument_derived
    own, chained = frozenset(ops), set[int]()
    pending = [v for op in ops for v in graph.ops[op].reads]
    while pending:
        value = pending.pop()
        made = graph.producer[value]
        if made is None or made in own or made in chained or value in there or value in derived:
            continue
        chained.add(made)
        pending.extend(graph.ops[made].reads)
    return chained
