"""The input of every solver: a graph, the cost of its ops, and the decisions that are fixed.

A solver is a function from a `Problem` to a `GraphPlan`, with a budget as a second argument where the plan depends on
one. If no plan fits the budget, the solver returns its plan of least memory. Read after `jaxckpt.cost`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from jaxckpt.cost import ArithmeticCosts, Fusion, Rates, Replay, arithmetic_costs, fuse, replay
from jaxckpt.ir import Decision, Graph, GraphPlan, LoopTiling, Phase, Prediction, Recompute, RowChunk, Save
from jaxckpt.ir.regions import END
from jaxckpt.schedule import Barrier, Run, Schedule, decisions_with_axes, schedule
from jaxckpt.solve.effort import Effort, default_effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Offloading:
    """Options of offloading.

    Attributes:
      bandwidth_bytes_per_s: Between device and host, in each direction at the same time; None for the target's own.
      prefetch: Prefetch distance in layers, for values whose rule has none; None to choose it from bandwidths.
      min_bytes: The planner neither offloads nor shards smaller values: the start of a copy or a gather costs more than
        their bytes. For shards 64 KiB, 1 MiB and 16 MiB give the same plans (`python -m benchmarks.constants`).
      last_layers_kept: The number of last layers, including the head, whose values the planner does not offload: their
        backward begins before a store would end.
      most_host_bytes: Host memory that the planner may use; None for no limit.

    Example:
      >>> Offloading(bandwidth_bytes_per_s=50e9).prefetch is None
      True
    """

    bandwidth_bytes_per_s: float | None = None
    prefetch: int | None = None
    min_bytes: int = 2**20
    last_layers_kept: int = 0
    most_host_bytes: int | None = None

    def rates(self, rates: Rates) -> Rates:
        """Rates of a device with the bandwidth of these options."""
        if self.bandwidth_bytes_per_s is None:
            return rates
        return replace(rates, host_bandwidth_bytes_per_s=self.bandwidth_bytes_per_s)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A step to plan.

    Attributes:
      required: Decisions that no solver may change, by value.
      may_offload: True if a solver may offload values by itself.
      may_offload_loop_values: True if a solver that may offload may also offload values produced in loop bodies.
      may_partition: True if a solver may save values as shards by itself.
      is_full_step: True if the graph is a step, and not a subgraph taken out of one.
      loop_tilings: Loops of the step that are tiled in the graph.
      row_chunks: Regions of the step that run in pieces of rows in the graph.
      fingerprint: Fingerprint of the graph as it was traced, which plans carry; None if `graph` is that graph.
      effort: Bounds of the solvers' work.
    """

    graph: Graph
    rates: Rates
    required: Mapping[int, Decision] = field(default_factory=dict)
    offloading: Offloading = field(default_factory=Offloading)
    may_offload: bool = False
    may_offload_loop_values: bool = True
    may_partition: bool = False
    is_full_step: bool = True
    loop_tilings: tuple[LoopTiling, ...] = ()
    row_chunks: tuple[RowChunk, ...] = ()
    fingerprint: str | None = None
    effort: Effort = field(default_factory=default_effort)

    @cached_property
    def fusion(self) -> Fusion:
        """Which values each kernel writes to memory."""
        return fuse(self.graph, self.rates)

    @cached_property
    def arithmetic(self) -> ArithmeticCosts:
        """Arithmetic of each op and its seconds."""
        return arithmetic_costs(self.graph, self.rates)

    @cached_property
    def needed(self) -> frozenset[int]:
        """Values that backward or update read from memory: the residuals and the sources they are fused from."""
        graph, found = self.graph, set()
        for value in self.read_after_forward:
            found.add(value)
            found.update(self.fusion.sources[value])
        return frozenset(v for v in found if graph.producer[v] is not None)

    @cached_property
    def solver_cache(self) -> dict[str, Any]:
        """Results about this problem that several solvers need, by name."""
        return {}

    @property
    def read_after_forward(self) -> frozenset[int]:
        """Residuals: forward values that backward or update read."""
        return self.graph.read_after_forward

    @cached_property
    def worth_saving(self) -> frozenset[int]:
        """Values that a plan may save: materialised or much smaller than their sources, never argument-derived."""
        free = (self.fusion.materialised | self.fusion.optional) - self.fusion.argument_derived - self.graph.results
        return free - {v for v, decision in self.required.items() if isinstance(decision, Recompute)}

    @cached_property
    def memberships(self) -> tuple[tuple[bool, ...], ...]:
        """For each value the sets of this problem that it is in: equal for values with the same options."""
        sets = (
            self.worth_saving,
            self.read_after_forward,
            self.needed,
            self.fusion.materialised,
            self.graph.results,
            self.fusion.rules.rows.values,
        )
        values = range(len(self.graph.values))
        return tuple(zip(*(map(each.__contains__, values) for each in sets), strict=True))

    @cached_property
    def reach(self) -> Mapping[int, tuple[int, int]]:
        """For each value worth saving its producer and its last reader in the forward pass, fused ones too.

        The end of a loop is no reader: it hands the last iteration's carry on, and each iteration is given its own.
        """
        graph, sources = self.graph, self.fusion.sources
        readers = (op for op in graph.forward if graph.ops[op].primitive != END)
        last = {source: op for op in readers for read in graph.ops[op].reads for source in sources[read]}
        produced = ((v, op) for op in graph.forward for v in graph.ops[op].writes)
        return {v: (op, last[v]) for v, op in produced if v in last and v in self.worth_saving}

    @cached_property
    def written_with_effects(self) -> frozenset[int]:
        """Values that forward ops with effects write: these ops never run twice."""
        ops = (self.graph.ops[op] for op in self.graph.forward)
        return frozenset(v for op in ops if op.effects for v in op.writes)

    @property
    def never_recomputed(self) -> frozenset[int]:
        """Values that no plan recomputes: a required decision saves, offloads or shards them."""
        return frozenset(v for v, decision in self.required.items() if not isinstance(decision, Recompute))

    @property
    def allows_empty_plan(self) -> bool:
        """True if the step as written satisfies all required decisions."""
        return all(isinstance(decision, Save) for decision in self.required.values())

    @property
    def may_move(self) -> bool:
        """True if a solver may offload or shard values by itself."""
        return self.may_offload or self.may_partition

    def moves(self, plan: GraphPlan) -> bool:
        """True if a plan offloads or shards a value without a required decision."""
        moved = (v for v, decision in plan.decisions.items() if decision.moves)
        return any(v not in self.required for v in moved)

    @cached_property
    def op_s(self) -> tuple[float, ...]:
        """Seconds of the kernel that each op starts, with all ops fused into it."""
        op_s = [0.0] * len(self.graph.ops)
        replayed = self.replay(GraphPlan(fingerprint=self.graph.fingerprint))
        for step, seconds in zip(replayed.steps, replayed.seconds, strict=True):
            if isinstance(step, Run):
                op_s[step.op] = seconds
        return tuple(op_s)

    def plan(
        self, decisions: Mapping[int, Decision], stages: tuple[int, ...], strategy: str, *, layers: tuple[int, ...] = ()
    ) -> GraphPlan:
        """The plan of some decisions with its prediction.

        A `Save` that neither a clone nor an op after the forward pass reads is dropped.
        """
        return self.plan_and_replay(decisions, stages, strategy, layers=layers)[0]

    def plan_and_replay(
        self, decisions: Mapping[int, Decision], stages: tuple[int, ...], strategy: str, *, layers: tuple[int, ...] = ()
    ) -> tuple[GraphPlan, Replay]:
        """The same plan, and the replay that its prediction comes from."""
        plan, scheduled = self.plan_and_schedule(decisions, stages, strategy, layers=layers)
        replayed = self.replay_schedule(scheduled)
        return replace(plan, prediction=self.prediction(plan, scheduled, replayed)), replayed

    def plan_and_schedule(
        self, decisions: Mapping[int, Decision], stages: tuple[int, ...], strategy: str, *, layers: tuple[int, ...] = ()
    ) -> tuple[GraphPlan, Schedule]:
        """The same plan without its prediction, and its schedule. Plans of different decisions can have equal ones."""
        # A pin of what nobody reads later would be predicted and not carried out.
        decisions = decisions_with_axes(self.graph, decisions)
        may_be_read = self._read_later_at_most(decisions)
        plan = GraphPlan(
            fingerprint=self.fingerprint or self.graph.fingerprint,
            decisions={v: d for v, d in decisions.items() if not isinstance(d, Save) or v in may_be_read},
            stages=stages,
            layers=layers,
            strategy=strategy,
            loop_tilings=self.loop_tilings,
            row_chunks=self.row_chunks,
        )
        scheduled = schedule(self.graph, plan)
        reads = self._read_later(scheduled)
        used = {v: d for v, d in plan.decisions.items() if isinstance(d, Recompute) or v in reads}
        if len(used) < len(plan.decisions):  # only in loops, and of moved values
            plan = replace(plan, decisions=used)
            scheduled = schedule(self.graph, plan)
        return plan, scheduled

    @cached_property
    def _read_by_later_ops(self) -> frozenset[int]:
        """Values that the ops after the forward pass read, of any phase."""
        return frozenset(v for op in self.graph.ops if op.phase is not Phase.FORWARD for v in op.reads)

    def _read_later(self, scheduled: Schedule) -> frozenset[int]:
        """Values that clones, ops after the forward pass, and the barriers before them read."""
        instances = (
            instance
            for step in scheduled.steps
            if (isinstance(step, Run) and step.is_clone) or (isinstance(step, Barrier) and step.is_in_backward)
            for instance in step.reads
        )
        return self._read_by_later_ops.union(map(scheduled.origin.__getitem__, instances))

    def _read_later_at_most(self, decisions: Mapping[int, Decision]) -> set[int]:
        """At least the values that `_read_later` finds, without a schedule; the same ones in a step without loops.

        Where loops read slices and invariants is left to the schedule.
        """
        graph, found = self.graph, set(self._read_by_later_ops)
        available, slices = graph.available, graph.slices
        pending = list(found)
        while pending:
            value = pending.pop()
            decision = decisions.get(value)
            is_saved = value in available if decision is None else not isinstance(decision, Recompute)
            op = graph.producer[value]
            if op is not None and (not is_saved or value in slices):
                unseen = [v for v in graph.ops[op].reads if v not in found]
                found.update(unseen)
                pending.extend(unseen)
        return found

    def replay(self, plan: GraphPlan) -> Replay:
        """Predicted memory and time of a plan, step by step."""
        return self.replay_schedule(schedule(self.graph, plan))

    def replay_schedule(self, scheduled: Schedule) -> Replay:
        """Predicted memory and time of a schedule, step by step."""
        return replay(
            self.graph,
            scheduled,
            fusion=self.fusion,
            arithmetic=self.arithmetic,
            rates=self.rates,
            is_full_step=self.is_full_step,
        )

    def predict(self, plan: GraphPlan) -> Prediction:
        """Predicted memory and time of a plan, in the figures that users see."""
        scheduled = schedule(self.graph, plan)
        return self.prediction(plan, scheduled, self.replay_schedule(scheduled))

    def prediction(self, plan: GraphPlan, scheduled: Schedule, replayed: Replay) -> Prediction:
        """The figures that users see, of a plan that was scheduled and replayed."""
        graph = self.graph
        runs = (step for step in scheduled.steps if isinstance(step, Run))
        clones = (s for s in runs if s.is_clone or (s.loop is not None and graph.is_in_clone(s.loop)))
        host_bytes = graph.size_bytes(plan.host_arguments)
        return Prediction(
            argument_bytes=graph.argument_bytes - host_bytes,
            output_bytes=unaliased_output_bytes(graph),
            temp_bytes=replayed.heap_bytes,
            step_s=replayed.step_s,
            recompute_s=replayed.recompute_s,
            saved_bytes=self.saved_bytes(plan),
            recomputed_ops=sum(1 for _ in clones),
            host_bytes=replayed.host_bytes,
            stall_s=replayed.stall_s,
        )

    def saved_bytes(self, plan: GraphPlan) -> int:
        """Bytes of the values that a plan saves."""
        return sum(self.graph.residual_bytes(v) for v, d in plan.decisions.items() if isinstance(d, Save))


def unaliased_output_bytes(graph: Graph) -> int:
    """Bytes of results for which no donated argument has the same shape and type."""
    return graph.size_bytes(graph.outputs[position] for position in graph.unaliased_outputs)


def solve_none(problem: Problem) -> GraphPlan:
    """The empty plan: the compiler keeps every residual."""
    return problem.plan({}, (0,), "none")


def decide(
    problem: Problem,
    saved: frozenset[int],
    stages: tuple[int, ...],
    strategy: str,
    untouched: frozenset[int] = frozenset(),
) -> GraphPlan:
    """The plan that saves `saved` and recomputes every other residual except `untouched`, with its prediction."""
    return problem.plan(decisions_saving(problem, saved, untouched), stages, strategy)


def decisions_saving(
    problem: Problem, saved: frozenset[int], untouched: frozenset[int] = frozenset()
) -> dict[int, Decision]:
    """`Save` for `saved`, `Recompute` for every other residual that can be recomputed, except for `untouched`."""
    graph = problem.graph
    decisions: dict[int, Decision] = {v: Save() for v in saved}
    for v in problem.read_after_forward - saved - untouched - graph.results:
        op = graph.producer[v]
        if op is not None and not graph.ops[op].effects:
            decisions[v] = Recompute()
    return {**decisions, **problem.required}
