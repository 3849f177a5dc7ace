"""Audit of XLA's own rematerialisation pass in a compiled program.

The pass runs behind everybody's decisions where XLA's estimate of the memory is over the device's. On GPUs that
estimate counts what lies in host memory as if it lay on the device, so that a plan which offloads can be computed again
for nothing.
"""

from collections.abc import Iterator

from jaxckpt._units import format_bytes
from jaxckpt.hlo import MemoryMap, Space, Use

HOST_OPTION = "xla_gpu_enable_host_memory_offloading"


def audit(memory: MemoryMap) -> Iterator[str]:
    """Sentences on what XLA computes again by itself; none where it does not."""
    added = memory.rematerialised
    if not added:
        return
    flops = sum(kernel.flops * kernel.count for kernel in added)
    collectives = sum(kernel.count for kernel in added if kernel.opcode.startswith("all-"))
    sentence = f"XLA's own rematerialisation added {len(added)} kernels: {flops / 1e9:.3g} GFLOP in each step"
    yield f"{sentence} and {collectives} collectives." if collectives else f"{sentence}."
    host_bytes = sum(a.size_bytes for a in memory.allocations if a.space is Space.HOST and a.use is Use.TEMPORARY)
    if host_bytes:
        yield (
            f"XLA counts the {format_bytes(host_bytes)} in host memory as device memory when it decides on that;"
            f" ({HOST_OPTION!r}, True) among the compiler options corrects it, and may move other values to the host."
        )
