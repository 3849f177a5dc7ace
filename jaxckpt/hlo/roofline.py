"""Seconds of a compiled program on a device, estimated by roofline.

Each kernel takes the longer of its arithmetic and its traffic, times the measured factor of its class (`Rates.factors`,
all 1 where nothing was measured), and a launch. The estimate assumes:

1. Kernels run one after the other.
2. Collectives take the time of the links between devices of one host.
3. Copies between device and host take no time here; `transfers` has their delays.
4. The arithmetic of a library's kernel may be unknown (`Kernel.is_priced`).
"""

from jaxckpt.cost import Rates
from jaxckpt.hlo.memory import Kernel, MemoryMap, Part
from jaxckpt.hlo.program import COLLECTIVES

_WAITS = (
    *("copy-start", "copy-done", "async-start", "async-done"),
    *("all-reduce-done", "all-gather-done", "collective-permute-done"),
)

CLASSES = ("matmul", "convolution", "reduction", "transpose", "scatter", "library", "elementwise")
"""All classes of `class_of`."""


def class_of(kernel: Kernel) -> str:
    """The class of a kernel, of `CLASSES`: kernels of a class miss their roofline by much the same factor.

    "transpose" is for whatever only moves values about, "scatter" for gathers too, "library" for calls whose arithmetic
    could not be read.

    Example:
      >>> class_of(Kernel(name="input_reduce_fusion.3", opcode="fusion", op="reduce_sum"))
      'reduction'
    """
    if kernel.op.startswith("conv_general") and kernel.matmul_flops:
        return "convolution"
    if kernel.matmul_flops:
        return "matmul"
    if not kernel.is_priced:
        return "library"
    if "scatter" in kernel.name or "gather" in kernel.name or kernel.op in ("gather", "scatter-add"):
        return "scatter"
    if "reduce" in kernel.name or kernel.op.startswith("reduce_"):
        return "reduction"
    return "transpose" if "transpose" in kernel.name or kernel.opcode == "copy" else "elementwise"


def roofline_s(kernel: Kernel, rates: Rates) -> float:
    """Seconds of one run of a kernel once it has begun, by roofline alone: its arithmetic or its traffic."""
    if kernel.opcode in _WAITS or kernel.is_copy:
        return 0.0
    if kernel.opcode.removesuffix("-start") in COLLECTIVES:
        return rates.exchange_s(kernel.traffic_bytes)
    arithmetic_s = (kernel.flops - kernel.matmul_flops) / rates.vector_flops_per_s
    if kernel.matmul_flops:
        arithmetic_s += rates.matmul_s(kernel.matmul_flops, kernel.matmul_dtype)
    return max(arithmetic_s, kernel.traffic_bytes / rates.memory_bandwidth_bytes_per_s)


def kernel_s(kernel: Kernel, rates: Rates) -> float:
    """Seconds of one run of a kernel."""
    if kernel.opcode in _WAITS or kernel.is_copy:
        return 0.0
    return rates.launch_s + rates.factor(class_of(kernel)) * roofline_s(kernel, rates)


def step_s(memory: MemoryMap, rates: Rates) -> float:
    """Seconds of one run of the program; see the module's docstring for what is left out."""
    return sum(kernel.count * kernel_s(kernel, rates) for kernel in memory.kernels)


def seconds_by_part(memory: MemoryMap, rates: Rates) -> dict[Part, float]:
    """The same for each part of the step; parts without kernels are left out."""
    parts: dict[Part, float] = {}
    for kernel in memory.kernels:
        parts[kernel.part] = parts.get(kernel.part, 0.0) + kernel.count * kernel_s(kernel, rates)
    return parts
