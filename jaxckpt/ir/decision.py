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
      prefetch: How many stages ahead of its first backward reader the value is fetched.
    """

    space: str = "pinned_host"
    prefetch: int = 1


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
