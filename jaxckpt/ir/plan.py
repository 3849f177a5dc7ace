"""A plan: decisions for one graph, with where they came from and what was predicted.

The narrow waist of the package: solvers, policies and plan files all return a `GraphPlan`, and everything after them
(schedule, cost model, rewriter) takes only a `GraphPlan`.

Decisions. A value is saved, recomputed, offloaded or partitioned between the forward and the backward pass. A decision
is one of four small types rather than a flag, so that a recomputation cannot have the fields of an offload (memory
space, prefetch distance).

Loop splitting (index-set splitting): consecutive iterations become loops of their own, with their own decisions. Each
part is a loop in the graph of the split step, with its own values, so a decision for a residual holds for the
iterations of one part. Loops that share values of iterations (a forward loop and its backward) are split at the same
iterations. Parameters are not split.

Loop tiling (strip mining, nested checkpointing of a scan): an outer loop over groups, an inner one over iterations. The
forward loop saves only the carry at the start of each group. The backward loop runs over the groups too, and in each
group recomputes the forward iterations before its own, so that residuals are saved for one group and not for all
iterations. A loop of T iterations whose every value is recomputed saves T carries; tiled into O groups of I iterations
it saves O + I, for one more forward pass of its body (Chen et al. 2016, section 3, of equal segments).

Rows in pieces: a region that treats rows alike (a loss head, rows are tokens) runs for one piece of rows at a time,
forward and backward together, so that its large values exist for one piece. Sums over rows are taken in another order.

Optimiser state in host memory: an argument that only the update reads can stay on the host between steps. It passes
through the device in groups, each as its gradients are finished (`schedule.host_state`).

Read after `regions`.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """The value stays in device memory until the backward pass has read it."""

    word: ClassVar[str] = "save"
    participle: ClassVar[str] = "saved"
    moves: ClassVar[bool] = False
    on_host: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """The value is dropped after the forward pass and recomputed before the backward reads it."""

    word: ClassVar[str] = "recompute"
    participle: ClassVar[str] = "recomputed"
    moves: ClassVar[bool] = False
    on_host: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The value is stored in another memory and loaded back.

    Attributes:
      space: The memory space, as JAX names it.
      prefetch: Prefetch distance of the load: it starts so many layers of the backward pass before the one that reads
        the value. None: chosen from bandwidths, and 1 where no solver chooses (0 in the body of a loop). In the body of
        a loop 0 loads the value in the iteration that reads it; more loads it an iteration ahead, and stores it an
        iteration later.
      leave: Distance of the store: so many layers of the forward pass, after its own, it may take. None: as `prefetch`.
        Ignored in the body of a loop.
      shard: True if the value is sharded first, as by `Partition`, so that each device stores its own part of a
        replicated value; where no axis divides it, it is stored whole.
      axis: Mesh axis of the shards; see `Partition`.
      dim: Dimension of the shards; see `Partition`.
    """

    word: ClassVar[str] = "offload"
    participle: ClassVar[str] = "offloaded"
    moves: ClassVar[bool] = True
    on_host: ClassVar[bool] = True
    space: str = "pinned_host"
    prefetch: int | None = None
    leave: int | None = None
    shard: bool = False
    axis: str | None = None
    dim: int | None = None

    def __post_init__(self) -> None:
        if not self.shard and (self.axis is not None or self.dim is not None):
            raise ValueError("an offload is cut over an axis or in a dimension only with shard = true")

    @property
    def partition(self) -> "Partition | None":
        """The partition before the store; None where the value is stored whole."""
        return Partition(axis=self.axis, dim=self.dim) if self.shard else None

    @property
    def load_distance(self) -> int:
        """Layers that the load may take."""
        return 1 if self.prefetch is None else self.prefetch

    @property
    def store_distance(self) -> int:
        """Layers that the store may take."""
        return self.load_distance if self.leave is None else self.leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The value is kept sharded over a mesh axis on which it is replicated, and gathered again.

    Attributes:
      axis: The mesh axis; None: the largest one that the value is replicated over and that divides it.
      dim: The dimension that is sharded; None: the first one that is not yet and that the axis divides.
    """

    word: ClassVar[str] = "partition"
    participle: ClassVar[str] = "sharded"
    moves: ClassVar[bool] = True
    on_host: ClassVar[bool] = False
    axis: str | None = None
    dim: int | None = None

    @property
    def partition(self) -> None:
        """No other partition comes before this one; see `Offload.partition`."""
        return None


Moved = Offload | Partition
"""Decisions that move a value between the forward and the backward pass."""
Decision = Save | Recompute | Moved
"""Every decision has the same four facts: its word in files, the participle for a value, whether the value is moved
(`moves`), and whether the value is in host memory (`on_host`). Code that needs no more reads these, not the type."""
DECISIONS: Mapping[str, type[Decision]] = {each.word: each for each in (Save, Recompute, Offload, Partition)}
"""By their words in files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSplit:
    """The parts of a loop, and of all loops that share values of iterations with it.

    Attributes:
      loop: Its position in `Graph.loops` of the step as it was traced.
      lengths: Trip count of each part, in the order of the slices, in whichever direction the loop runs.
    """

    loop: int
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTiling:
    """The groups of a loop, and of all loops that share values of iterations with it.

    Attributes:
      loop: Its position in `Graph.loops` of the step as it was traced; where the plan splits loops, of the split step.
      outer: Number of groups.
      inner: Iterations in each.
    """

    loop: int
    outer: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChunk:
    """A region that treats rows alike and runs in pieces of rows.

    Attributes:
      value: Id of the region's largest value in the step as it was traced; for every chunk of a plan but the first, in
        the step with the earlier chunks carried out.
      dimension: The dimension of this value that holds the rows.
      pieces: Number of pieces, a divisor of the number of rows.
    """

    value: int
    dimension: int
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The cost of a plan by the model, before any compiler has run.

    Attributes:
      argument_bytes: Arguments and constants, bytes per device.
      output_bytes: Results that do not take over the memory of a donated argument.
      temp_bytes: Of the heap that holds everything else.
      step_s: Estimated seconds of one step.
      recompute_s: The part of `step_s` that is spent on recomputation.
      saved_bytes: Bytes held from forward to backward by decision.
      recomputed_ops: How many ops run a second time.
      host_bytes: The largest number of bytes on the host at once.
      stall_s: The part of `step_s` that is spent on waiting for copies between device and host.
      bound_s: No combination of the options that the solver composed takes less within the same memory, by the same
        model; None where the solver knows no bound.
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
        """Share of the step that another combination of the options could save at most: 0.01 is one percent."""
        if self.bound_s is None or not self.step_s:
            return None
        return max(0.0, 1 - self.bound_s / self.step_s)

    @property
    def total_bytes(self) -> int:
        """Arguments, results and temporaries: the bytes that are compared with a budget."""
        return self.argument_bytes + self.output_bytes + self.temp_bytes


@dataclass(frozen=True, kw_only=True)
class GraphPlan:
    """Decisions for the values of one graph. Two plans are equal if they do the same, whoever decided.

    Attributes:
      fingerprint: `Graph.fingerprint` of the graph that it is for, before rows are divided and loops split or tiled.
      decisions: By value id; where rows are divided, or loops are split or tiled, by value ids of the step with such
        pieces and loops. A residual that has no decision is left to the compiler.
      stages: Ids of the first forward op of each stage, ascending. A stage recomputes all its values at once, when the
        backward first needs any of them.
      layers: Ids of the forward ops at which stores to the host can be waited for, ascending: the unit of distances in
        `Offload`. Empty where the stages are the unit.
      loop_splits: Loops that are split, in the order of their ids.
      loop_tilings: Loops that are tiled, in the order of their ids.
      row_chunks: Regions that run in pieces of rows, in the order in which they are carried out, before any loop is
        split or tiled.
      host_arguments: Arguments, by value id, that are in host memory between steps: optimiser state, which is loaded
        for the update and stored again. Results take over their memory, and are in host memory too.
      strategy: The solver or policy that decided.
      prediction: What the model expects, if it was asked.
    """

    fingerprint: str
    decisions: Mapping[int, Decision] = field(default_factory=dict)
    stages: tuple[int, ...] = (0,)
    strategy: str = field(default="none", compare=False)
    prediction: Prediction | None = field(default=None, compare=False)
    layers: tuple[int, ...] = ()
    loop_splits: tuple[LoopSplit, ...] = ()
    loop_tilings: tuple[LoopTiling, ...] = ()
    row_chunks: tuple[RowChunk, ...] = ()
    host_arguments: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        ordered = dict(sorted(self.decisions.items()))
        object.__setattr__(self, "decisions", MappingProxyType(ordered))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the fields, so that a plan can be sent to another process."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return partial(type(self), **values | {"decisions": dict(self.decisions)}), ()

    def __hash__(self) -> int:
        decided = tuple(self.decisions.items())
        changes = self.row_chunks, self.loop_splits, self.loop_tilings, self.host_arguments
        return hash((self.fingerprint, decided, self.stages, self.layers, changes))

    @property
    def transformations(self) -> tuple[tuple[RowChunk, ...], tuple[LoopSplit, ...], tuple[LoopTiling, ...]]:
        """How the step is changed before the plan decides on its values; the plan has the ids of the changed step."""
        return self.row_chunks, self.loop_splits, self.loop_tilings

    @cached_property
    def offloads(self) -> bool:
        """True if some value is offloaded."""
        return any(decision.on_host for decision in self.decisions.values())

    @property
    def copies(self) -> bool:
        """True if arrays are copied between device and host: offloaded values, or optimiser state."""
        return self.offloads or bool(self.host_arguments)

    @property
    def predicted(self) -> Prediction:
        """The prediction, of a plan that has one."""
        if self.prediction is None:
            raise AttributeError("this plan has no prediction: it was not made by a solver")
        return self.prediction


def stage_at(starts: Sequence[int], op: int | None) -> int:
    """The index of the stage, or layer, that a forward op is in, by the first ops of all; 0 for None, for arguments."""
    return 0 if op is None else max(0, bisect_right(starts, op) - 1)
