"""Decisions: a value is saved, recomputed, offloaded or partitioned between the forward and the backward pass.

A decision is one of four small types rather than a flag, so that a recomputation cannot have the fields of an offload
(memory space, prefetch distance).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """The value stays in device memory until the backward pass has read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """The value is dropped after the forward pass and recomputed before the backward reads it."""


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

    axis: str | None = None
    dim: int | None = None


Decision = Save | Recompute | Offload | Partition
