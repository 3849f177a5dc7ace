"""What a solver is asked: a graph, what its ops cost, and how many bytes its temporaries may take.

Read after `jaxckpt.cost`. Every solver is a function from a `Problem` to a `GraphPlan`; where the budget cannot be met
it returns the plan of least memory that it knows, and the plan's prediction says so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from jaxckpt.cost import ArithmeticCosts, Fusion, Rates, Replay, arithmetic_costs, fuse, replay
from jaxckpt.ir import Decision, Graph, GraphPlan, LoopTiling, Offload, Partition, Phase, Prediction, Recompute, Save
from jaxckpt.schedule import Barrier, Run, Schedule, Step, decisions_with_axes, schedule
from jaxckpt.solve.offloading import Offloading


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A step to plan.

    Attributes:
      graph: The step.
      rates: What the target can do.
      temp_budget_bytes: What temporaries may take, bytes per device; None for no limit.
      required: Decisions that no solver may change, by value.
      offloading: What is asked of what goes to the host.
      may_offload: True if a solver may offload values by itself.
      may_offload_loop_values: True if a solver that may offload may also offload values produced in loop bodies.
      may_partition: True if a solver may save values as shards by itself.
      is_full_step: True if the graph is a step, and not a subgraph taken out of one.
      loop_tilings: Loops of the step that are tiled in the graph.
      fingerprint: Of the graph of that step, for plans; None where it is the graph itself.
    """

    graph: Graph
    rates: Rates
    temp_budget_bytes: int | None = None
    required: Mapping[int, Decision] = field(default_factory=dict)
    offloading: Offloading = field(default_factory=Offloading)
    may_offload: bool = False
    may_offload_loop_values: bool = True
    may_partition: bool = False
    is_full_step: bool = True
    loop_tilings: tuple[LoopTiling, ...] = ()
    fingerprint: str | None = None

    @cached_property
    def fusion(self) -> Fusion:
        """Which values are in memory."""
        return fuse(self.graph)

    @cached_property
    def arithmetic(self) -> ArithmeticCosts:
        """The arithmetic of each op."""
        return arithmetic_costs(self.graph, self.rates)

    @cached_property
    def needed(self) -> frozenset[int]:
        """Values that are read from memory after the forward pass: each late read with its sources."""
        graph, found = self.graph, set()
        for value in self.read_after_forward:
            found.add(value)
            found.update(self.fusion.sources[value])
        return frozenset(v for v in found if graph.producer[v] is not None)

    @property
    def read_after_forward(self) -> frozenset[int]:
        """Forward values that a later op than the forward pass reads."""
        return self.graph.read_after_forward

    @cached_property
    def worth_saving(self) -> frozenset[int]:
        """Values that a plan may save: in memory, or much smaller than their sources; never argument-derived ones."""
        free = (self.fusion.materialised | self.fusion.optional) - self.fusion.argument_derived - self.graph.results
        return free - {v for v, decision in self.required.items() if isinstance(decision, Recompute)}

    @cached_property
    def reach(self) -> Mapping[int, tuple[int, int]]:
        """For values worth saving that the forward pass makes and reads the op that makes each and the last to read it.

        It reads them from memory, directly or through a chain.
        """
        graph, sources = self.graph, self.fusion.sources
        last = {source: op for op in graph.forward for read in graph.ops[op].reads for source in sources[read]}
        made = ((v, op) for op in graph.forward for v in graph.ops[op].writes)
        return {v: (op, last[v]) for v, op in made if v in last and v in self.worth_saving}

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
        moved = (v for v, decision in plan.decisions.items() if isinstance(decision, Offload | Partition))
        return any(v not in self.required for v in moved)

    @cached_property
    def op_s(self) -> tuple[float, ...]:
        """Seconds of the kernel that each op starts, with all that is fused into it."""
        replayed = self.replay(GraphPlan(fingerprint=self.graph.fingerprint))
        op_s = [0.0] * len(self.graph.ops)
        for step, seconds in zip(replayed.steps, replayed.seconds, strict=True):
            if isinstance(step, Run):
                op_s[step.op] = seconds
        return tuple(op_s)

    def plan(
        self,
        decisions: Mapping[int, Decision],
        stages: tuple[int, ...],
        strategy: str,
        *,
        layers: tuple[int, ...] = (),
    ) -> GraphPlan:
        """A plan with its prediction, without saves that nothing reads."""
        return self.plan_and_replay(decisions, stages, strategy, layers=layers)[0]

    def plan_and_replay(
        self,
        decisions: Mapping[int, Decision],
        stages: tuple[int, ...],
        strategy: str,
        *,
        layers: tuple[int, ...] = (),
    ) -> tuple[GraphPlan, Replay]:
        """As `plan`, with the replay that the prediction is of."""
        decisions = decisions_with_axes(self.graph, decisions)
        plan = GraphPlan(
            fingerprint=self.fingerprint or self.graph.fingerprint,
            decisions=decisions,
            stages=stages,
            layers=layers,
            strategy=strategy,
            loop_tilings=self.loop_tilings,
        )
        laid_out = schedule(self.graph, plan)
        plan = replace(plan, decisions=dict(self._alive(plan, laid_out)))
        replayed = self._replay(laid_out)
        return replace(plan, prediction=self._prediction(plan, laid_out, replayed)), replayed

    def _alive(self, plan: GraphPlan, laid_out: Schedule) -> Iterable[tuple[int, Decision]]:
        """Decisions less those `Save`s that neither the backward nor a copy reads."""
        read_late = {laid_out.origin[i] for step in laid_out.steps if _is_late(self.graph, step) for i in step.reads}
        for value, decision in plan.decisions.items():
            if isinstance(decision, Recompute) or value in read_late:
                yield value, decision

    def replay(self, plan: GraphPlan) -> Replay:
        """What the plan takes."""
        return self._replay(schedule(self.graph, plan))

    def _replay(self, laid_out: Schedule) -> Replay:
        return replay(
            self.graph,
            laid_out,
            fusion=self.fusion,
            arithmetic=self.arithmetic,
            rates=self.rates,
            is_full_step=self.is_full_step,
        )

    def predict(self, plan: GraphPlan) -> Prediction:
        """What the plan takes, in the figures that users see."""
        laid_out = schedule(self.graph, plan)
        return self._prediction(plan, laid_out, self._replay(laid_out))

    def _prediction(self, plan: GraphPlan, laid_out: Schedule, replayed: Replay) -> Prediction:
        graph = self.graph
        saved = [v for v, d in plan.decisions.items() if isinstance(d, Save)]
        return Prediction(
            argument_bytes=graph.argument_bytes,
            output_bytes=unaliased_output_bytes(graph),
            temp_bytes=replayed.peak_bytes,
            step_s=replayed.step_s,
            recompute_s=replayed.recompute_s,
            saved_bytes=sum(map(graph.residual_bytes, saved)),
            recomputed_ops=sum(
                isinstance(step, Run) and (step.is_clone or graph.is_in_clone(step.loop)) for step in laid_out.steps
            ),
            host_bytes=replayed.host_bytes,
            stall_s=replayed.stall_s,
        )


def unaliased_output_bytes(graph: Graph) -> int:
    """Bytes of results that find no donated argument of their shape and type to take over."""
    return sum(graph.values[graph.outputs[position]].size_bytes for position in graph.unaliased_outputs)


def decide(
    problem: Problem,
    saved: frozenset[int],
    stages: tuple[int, ...],
    strategy: str,
    untouched: frozenset[int] = frozenset(),
) -> GraphPlan:
    """The plan that saves `saved` and computes every other residual but `untouched` again, with its prediction."""
    return problem.plan(decisions_saving(problem, saved, untouched), stages, strategy)


def decisions_saving(
    problem: Problem, saved: frozenset[int], untouched: frozenset[int] = frozenset()
) -> dict[int, Decision]:
    """`Save` for the values given, `Recompute` for every other residual that can be computed again.

    Args:
      problem: The step.
      saved: Values to pin.
      untouched: Residuals about which nothing is decided: they are left to the compiler, which keeps them.
    """
    graph = problem.graph
    decisions: dict[int, Decision] = {v: Save() for v in saved}
    for v in problem.read_after_forward - saved - untouched - graph.results:
        op = graph.producer[v]
        if op is not None and not graph.ops[op].effects:
            decisions[v] = Recompute()
    return {**decisions, **problem.required}


def _is_late(graph: Graph, step: Step) -> bool:
    if isinstance(step, Run):
        return step.is_clone or graph.ops[step.op].phase is not Phase.FORWARD
    return isinstance(step, Barrier) and step.trigger is not None
