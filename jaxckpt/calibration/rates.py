"""Derives rates from measured figures: a line through products of all sizes, a median over memory-bound kernels.

A matrix product takes a constant, the ramp, and its FLOPs over the asymptotic rate: two unknowns, fitted in relative
error over all sizes of a dtype. Kernels of a training step are slower than those of a microbenchmark, which are large
and alike; the difference was found on one H200 and is taken to be the same elsewhere.

Read after `kernels`. No jax here.
"""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from jaxckpt.machine import Measured

STEP_BANDWIDTH = 0.76
"""Share of the bandwidth of large elementwise kernels that kernels of 68 training steps reached: 3.1e12 of 4.06e12
bytes/s (docs/measured.md)."""
STEP_LAUNCH = 1.6
"""Fixed time of a kernel in these steps over that of an empty kernel: 1.4 to 0.86 microseconds."""


def ramp_and_rate(flops: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Ramp of a matrix product in FLOPs, and the FLOP/s that large products tend to: a fit by least squares.

    The seconds of each product are without its launch.

    Example:
      >>> ramp, rate = ramp_and_rate([1e9, 1e10, 1e11], [3e-6, 12e-6, 102e-6])
      >>> round(ramp / 1e9, 3), round(rate / 1e15, 3)
      (2.0, 1.0)
    """
    work, took = np.asarray(flops), np.asarray(seconds)
    if len(work) > 1:
        # min over (a, b) of sum(((a * flops + b) / seconds - 1) ** 2), with a = 1 / rate and b = ramp / rate
        (a, b), *_ = np.linalg.lstsq(np.stack([work / took, 1 / took], axis=1), np.ones(len(work)), rcond=None)
        if a > 0 and b > 0:
            return float(b / a), float(1 / a)
    return 0.0, float(np.median(work / took))


def derived_rates(measured: Sequence[Measured]) -> dict[str, Any]:
    """The fields of a `Calibration` that follow from its figures; what was not measured is left out."""
    found: dict[str, Any] = {}
    by_what: dict[str, list[Measured]] = {}
    for each in measured:
        by_what.setdefault(each.what, []).append(each)
    launch_s = by_what["launch"][0].value if "launch" in by_what else 0.0
    if launch_s:
        found["launch_s"] = STEP_LAUNCH * launch_s
    if "matmul" in by_what:
        found |= _matmul(by_what["matmul"], launch_s)
    if "vector" in by_what:
        found["vector_flops_per_s"] = by_what["vector"][0].value
    if "elementwise" in by_what:
        found["memory_bandwidth_bytes_per_s"] = STEP_BANDWIDTH * median(e.value for e in by_what["elementwise"])
    if host := _host_bandwidths(by_what):
        found["host_bandwidth_bytes_per_s"] = min(host)
    return found


def _host_bandwidths(by_what: dict[str, list[Measured]]) -> list[float]:
    one_way = [each.value for what in ("copy to host", "copy from host") for each in by_what.get(what, ())]
    return one_way + [each.value / 2 for each in by_what.get("copy both ways", ())]


def _matmul(products: Sequence[Measured], launch_s: float) -> dict[str, Any]:
    """Rates by dtype; the ramp is that of the dtype with the most sizes."""
    by_dtype: dict[str, list[tuple[float, float]]] = {}
    for each in products:
        dtype, flops = _product(each.detail)
        seconds = max(flops / each.value - launch_s, 1e-12)
        by_dtype.setdefault(dtype, []).append((flops, seconds))
    most = max(by_dtype, key=lambda dtype: len(by_dtype[dtype]))
    ramp, rate = ramp_and_rate(*zip(*by_dtype[most], strict=True))
    rates = {dtype: max((flops + ramp) / s for flops, s in sizes) for dtype, sizes in by_dtype.items() if dtype != most}
    return {"matmul_ramp_flops": ramp, "matmul_flops_per_s": ((most, rate), *rates.items())}


def _product(detail: str) -> tuple[str, float]:
    """Dtype and FLOPs of one product of "bfloat16 4096 x 4096 x 4096"."""
    dtype, sizes = detail.split(" ", 1)
    rows, depth, width = map(int, sizes.split(" x "))
    return dtype, 2.0 * rows * depth * width
