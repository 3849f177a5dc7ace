"""Caveats of a footprint: what the compiler's figures leave out, and what XLA computes again by itself.

Two things are told by the text of the compiled program alone. Compile-only GPUs and processors count the arrays that a
program holds as constants (what the step closes over) nowhere but in the reported peak. And cuDNN's convolutions,
chosen without the device, ask for no workspace. What the compiler folded away is not counted.

XLA's own rematerialisation pass runs behind everybody's decisions where XLA's estimate of the memory is over the
device's. On GPUs that estimate counts what lies in host memory as if it lay on the device, so that a plan which
offloads can be computed again for nothing.
"""

import re
from collections.abc import Iterator, Mapping
from math import prod

from jaxckpt._units import format_bytes
from jaxckpt.hlo import MemoryMap, Space, Use
from jaxckpt.machine import Target

CPU_CAVEATS = (
    "XLA's CPU backend undoes rematerialisation: these figures do not verify a plan.",
    "XLA's CPU backend leaves temporaries out of its reported peak.",
)
CONVOLUTION_CAVEAT = "cuDNN's convolutions were chosen without the device: their workspaces are counted as 0 bytes."
UNUSED_CAVEAT = "Arguments that the step never reads are not counted; see unused_argument_bytes."
HOST_OPTION = "xla_gpu_enable_host_memory_offloading"

_CONSTANT = re.compile(r" = ([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]+)\]\S* constant\(")
_CONVOLUTION = '"__cudnn$conv'


def caveats_of(text: str, target: Target, figures: Mapping[str, int]) -> Iterator[str]:
    """Caveats of the figures of a program with this text."""
    if target.platform == "cpu":
        yield from CPU_CAVEATS
    if target.platform == "cuda" and target.compile_only and chooses_convolutions(text):
        yield CONVOLUTION_CAVEAT
    if figures["unused_argument_bytes"]:
        yield UNUSED_CAVEAT


def chooses_convolutions(hlo: str) -> bool:
    """True if the program calls cuDNN's convolutions, whose workspaces the device itself would choose."""
    return _CONVOLUTION in hlo


def constant_bytes(hlo: str) -> int:
    """Bytes per device of the constant arrays of optimised HLO, without padding; scalars are part of the code.

    Example:
      >>> constant_bytes("%c.1 = bf16[4,8]{1,0} constant({...})")
      64
    """
    found = ((prod(map(int, shape.split(","))), dtype) for dtype, shape in _CONSTANT.findall(hlo))
    return sum(count * _element_bits(dtype) // 8 for count, dtype in found)


def _element_bits(dtype: str) -> int:
    """Bits of an HLO element type: f32, bf16, s4, u8, c64, f8e4m3fn; pred takes a byte."""
    digits = re.search(r"[0-9]+", dtype)
    return int(digits[0]) if digits else 8


def audit(memory: MemoryMap) -> Iterator[str]:
    """Sentences on what XLA's own rematerialisation computes again; none where it computes nothing again."""
    added = memory.rematerialised
    if not added:
        return
    flops = sum(kernel.flops * kernel.count for kernel in added)
    collectives = sum(kernel.count for kernel in added if kernel.opcode.startswith("all-"))
    sentence = f"XLA's own rematerialisation added {len(added)} kernels: {flops / 1e9:.3g} GFLOP in each step"
    yield f"{sentence} and {collectives} collectives." if collectives else f"{sentence}."
    host_bytes = memory.allocated_bytes(Use.TEMPORARY, Space.HOST)
    if host_bytes:
        yield (
            f"XLA counts the {format_bytes(host_bytes)} in host memory as device memory when it decides on that;"
            f" ({HOST_OPTION!r}, True) among the compiler options corrects it, and may move other values to the host."
        )
