"""Bytes and seconds of a step on a target, predicted before anything is compiled; plain Python, no jax.

Read in this order: `rates` (what a device can do), `row_fusion` and `fusion` (which values a compiler really writes to
memory), `roofline` (the arithmetic of each op), `transfers` (between device and host, while kernels run) and `clock`,
`kernels`, `loop_liveness` (what loops add), `buffer_liveness`, `peak`, `replay` (bytes alive after every step of a
schedule, and the seconds that it takes).
"""

from jaxckpt.cost.fusion import Fusion, fuse, strip_views
from jaxckpt.cost.rates import Rates
from jaxckpt.cost.replay import Replay, replay
from jaxckpt.cost.roofline import ArithmeticCosts, arithmetic_costs
from jaxckpt.cost.transfers import HostLinkQueue

__all__ = [
    "ArithmeticCosts", "Fusion", "HostLinkQueue", "Rates", "Replay", "arithmetic_costs", "fuse", "replay",
    "strip_views",
]  # fmt: skip
