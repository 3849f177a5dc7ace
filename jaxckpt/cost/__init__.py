"""Bytes and seconds of a step on a target, predicted before anything is compiled; plain Python, no jax.

Read in this order: `rates` (what a device can do, and the arithmetic of each op), `fusion_rules`, `fusion_analysis` and
`fusion` (which values a compiler really writes to memory), `clock` (copies between device and host that run beside
kernels), `kernels`, `loop_liveness` (what loops add), `buffer_liveness`, `peak`, `replay` (bytes alive after every step
of a schedule, and the seconds that it takes).
"""

from jaxckpt.cost.clock import HostLinkQueue
from jaxckpt.cost.fusion import Fusion, fuse, strip_views
from jaxckpt.cost.rates import ArithmeticCosts, Rates, arithmetic_costs
from jaxckpt.cost.replay import Replay, replay

__all__ = [
    "ArithmeticCosts", "Fusion", "HostLinkQueue", "Rates", "Replay", "arithmetic_costs", "fuse", "replay",
    "strip_views",
]  # fmt: skip
