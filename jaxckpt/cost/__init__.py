"""Bytes and seconds of a step on a target, predicted before anything is compiled; plain Python, no jax.

Read in this order: `merged_products` and `padding` (what a compiler makes of matrix products), `rates` (what a device
can do, and the arithmetic of each op), `fusion_rules`, `row_kernels`, `shared_sources`, `fusion_analysis` and `fusion`
(which values a compiler really writes to memory), `clock` (copies between device and host that run beside kernels),
`load_starts` (when they begin), `kernel_chains` (the ops that one kernel computes), `shared_passes` (loops that share a
kernel), `kernels`, `loop_liveness` (what loops add), `buffer_liveness`, `peak`, `heap` (places in memory), `replay`
(bytes alive after every step of a schedule, and the seconds that it takes).
"""

from jaxckpt.cost.clock import HostLinkQueue as HostLinkQueue
from jaxckpt.cost.fusion import Fusion as Fusion, fuse as fuse, strip_views as strip_views
from jaxckpt.cost.rates import (
    ArithmeticCosts as ArithmeticCosts,
    Rates as Rates,
    arithmetic_costs as arithmetic_costs,
    exchange_s as exchange_s,
)
from jaxckpt.cost.replay import Replay as Replay, replay as replay
