"""What can happen to one value between the forward and the backward pass.

A decision is one of four small types rather than a flag, so that what belongs to an offload (where to, how
early it comes back) cannot be said of a recomputation.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """The value stays in device memory until the backward pass has read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """The value is dropped after the forward pass and computed again before the backward reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """The value waits in another memory and is fetched back.

    Attributes:
      space: The memory space, as JAX names it.
      prefetch: How many layers of the backward pass the copy back may take: it starts so many layers before the one
        that reads the value. None: chosen from bandwidths, or one where nobody chooses. In the body of a loop 0 copies
        within the turn, as None does where nobody chooses; more copies while the turn before is at work, and out while
        the next one is.
      leave: How many layers of the forward pass, after its own, the copy out may take. None: as `prefetch`. It means
        nothing in the body of a loop.
      shard: Whether the value is cut first, as `Partition` does, so that each device sends its own part of what all of
        them hold; where nothing divides it, it goes whole.
      axis: Of the cut; see `Partition`.
      dim: Of the cut; see `Partition`.

    Raises:
      ValueError: An axis or a dimension is named for what is not cut.
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
        """How the value is cut before it is sent; None where it goes whole."""
        return Partition(axis=self.axis, dim=self.dim) if self.shard else None

    @property
    def load_distance(self) -> int:
        """Layers that the copy back may take."""
        return 1 if self.prefetch is None else self.prefetch

    @property
    def store_distance(self) -> int:
        """Layers that the copy out may take."""
        return self.load_distance if self.leave is None else self.leave


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """The value is kept sharded over a mesh axis on which it is replicated, and gathered again.

    Attributes:
      axis: The mesh axis; None: the largest one that the value is whole over and that divides it.
      dim: The dimension that is split; None: the first one that is whole on each device and that the axis divides.
    """

    axis: str | None = None
    dim: int | None = None


Decision = Save | Recompute | Offload | Partition
