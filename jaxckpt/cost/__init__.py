"""What a step takes in bytes and seconds on a target, before any compiler is asked; plain Python, no jax.

Read in this order: `rates` (what a device can do), `rows`, `orders`, `strides` and `fusion` (which values a compiler
really writes to memory), `price` (the arithmetic of each op), `copies` (between device and host, beside the kernels),
`turns` (what loops add) and `turning` (copies in their bodies), `replay` (bytes alive after every step of a schedule,
and the seconds that it takes).
"""

from jaxckpt.cost.fusion import Fusion, behind_views, fuse
from jaxckpt.cost.rates import Rates
from jaxckpt.cost.replay import Replay, replay
from jaxckpt.cost.roofline import Prices, price
from jaxckpt.cost.transfers import Copies

__all__ = [
    "Copies", "Fusion", "Prices", "Rates", "Replay", "behind_views", "fuse", "price", "replay",
]  # fmt: skip
