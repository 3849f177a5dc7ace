"""A plan: decisions for one graph, with where they came from and what was predicted.

The narrow waist of the package: solvers, policies and plan files all return a `GraphPlan`, and everything after them
(schedule, cost model, rewriter) takes only a `GraphPlan`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jaxckpt.ir.decision import Decision, Offload
from jaxckpt.ir.loop_transforms import LoopSplit, LoopTiling


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The cost of a plan by the model, before any compiler has run.

    Attributes:
      argument_bytes: Arguments and constants, bytes per device.
      output_bytes: Results that do not take over the memory of a donated argument.
      temp_bytes: Peak of everything else.
      step_s: Estimated seconds of one step.
      recompute_s: The part of `step_s` that is spent on recomputation.
      saved_bytes: Bytes held from forward to backward by decision.
      recomputed_ops: How many ops run a second time.
      host_bytes: The largest number of bytes on the host at once.
      stall_s: The part of `step_s` that is spent on waiting for copies between device and host.
      bound_s: No plan of the kind that the solver looked for takes less within the same memory, by the same model;
        None where the solver knows no bound.
    """

    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    step_s: float
    recompute_s: float
    saved_bytes: int
    recomputed_ops: int
    host_bytes: int = 0
    stall_s: float = 0.0
    bound_s: float | None = field(default=None, compare=False)

    @property
    def gap(self) -> float | None:
        """Share of the step that the best plan could save at most: 0.01 is one percent."""
        if self.bound_s is None or not self.step_s:
            return None
        return max(0.0, 1 - self.bound_s / self.step_s)

    @property
    def total_bytes(self) -> int:
        """Arguments, results and temporaries: the bytes that are compared with a budget."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """Decisions for the values of one graph.

    Attributes:
      fingerprint: `Graph.fingerprint` of the graph that it is for, before loops are split or tiled.
      decisions: By value id; where loops are split or tiled, by value ids of the step with such loops. A residual that
        has no decision is left to the compiler.
      stages: Ids of the first forward op of each stage, ascending. A stage recomputes all its values at once, when the
        backward first needs any of them.
      layers: Ids of the forward ops at which stores to the host can be waited for, ascending: the unit of distances in
        `Offload`. Empty where the stages are the unit.
      loop_splits: Loops that are split, in the order of their ids.
      loop_tilings: Loops that are tiled, in the order of their ids.
      strategy: The solver or policy that decided.
      prediction: What the model expects, if it was asked.
    """

    fingerprint: str
    decisions: Mapping[int, Decision] = field(default_factory=dict)
    stages: tuple[int, ...] = (0,)
    strategy: str = "none"
    prediction: Prediction | None = None
    layers: tuple[int, ...] = ()
    loop_splits: tuple[LoopSplit, ...] = ()
    loop_tilings: tuple[LoopTiling, ...] = ()

    def __post_init__(self) -> None:
        ordered = dict(sorted(self.decisions.items()))
        object.__setattr__(self, "decisions", MappingProxyType(ordered))

    def __hash__(self) -> int:
        decided = tuple(self.decisions.items())
        return hash((self.fingerprint, decided, self.stages, self.layers, self.loop_splits, self.loop_tilings))

    @property
    def offloads(self) -> bool:
        """True if some value is offloaded."""
        return any(isinstance(decision, Offload) for decision in self.decisions.values())

    @property
    def predicted(self) -> Prediction:
        """The prediction, of a plan that has one."""
        if self.prediction is None:
            raise AttributeError("this plan has no prediction: it was not made by a solver")
        return self.prediction
