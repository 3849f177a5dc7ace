"""How long a compiled program takes on a device, by roofline.

Each kernel takes its arithmetic or its traffic, whichever is longer, and a launch. An estimate: kernels run one after
the other, transfers between devices and to the host cost their traffic alone, and what a library's kernel calculates
may be unknown (`Kernel.is_priced`).
"""

from jaxckpt.cost import Rates
from jaxckpt.hlo.memory import Kernel, MemoryMap, Part

_WAITS = ("copy-start", "copy-done", "async-start", "async-done")


def kernel_s(kernel: Kernel, rates: Rates) -> float:
    """Seconds of one run of a kernel.

    Args:
      kernel: What it does.
      rates: What the device can do.
    """
    if kernel.opcode in _WAITS:
        return 0.0
    arithmetic_s = (kernel.flops - kernel.matmul_flops) / rates.vector_flops_per_s
    if kernel.matmul_flops:
        arithmetic_s += kernel.matmul_flops / rates.matmul(kernel.matmul_dtype)
    return rates.launch_s + max(arithmetic_s, kernel.traffic_bytes / rates.memory_bandwidth_bytes_per_s)


def step_s(memory: MemoryMap, rates: Rates) -> float:
    """Seconds of one run of the program; see the module's docstring for what is left out."""
    return sum(kernel.count * kernel_s(kernel, rates) for kernel in memory.kernels)


def seconds_by_part(memory: MemoryMap, rates: Rates) -> dict[Part, float]:
    """The same for each part of the step; parts without kernels are left out."""
    parts: dict[Part, float] = {}
    for kernel in memory.kernels:
        parts[kernel.part] = parts.get(kernel.part, 0.0) + kernel.count * kernel_s(kernel, rates)
    return parts
