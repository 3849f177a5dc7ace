"""The text of the compiled program tells two things that its memory statistics leave out.

Compile-only GPUs and processors count the arrays that a program holds as constants (what the step closes over)
nowhere but in the reported peak. And cuDNN's convolutions, chosen without the device, ask for no workspace. Both
are read from the optimised HLO: what the compiler folded away is not counted.
"""

import re
from math import prod

_CONSTANT = re.compile(r" = ([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]+)\]\S* constant\(")
_CONVOLUTION = '"__cudnn$conv'


def constant_bytes(hlo: str) -> int:
    """Bytes per device of the constant arrays of optimised HLO, without padding; scalars are part of the code.

    Example:
      >>> constant_bytes("%c.1 = bf16[4,8]{1,0} constant({...})")
      64
    """
    found = ((prod(map(int, shape.split(","))), dtype) for dtype, shape in _CONSTANT.findall(hlo))
    return sum(count * _element_bits(dtype) // 8 for count, dtype in found)


def chooses_convolutions(hlo: str) -> bool:
    """True if the program calls cuDNN's convolutions, whose workspaces the device itself would choose."""
    return _CONVOLUTION in hlo


def _element_bits(dtype: str) -> int:
    """Bits of an HLO element type: f32, bf16, s4, u8, c64, f8e4m3fn; pred takes a byte."""
    digits = re.search(r"[0-9]+", dtype)
    return int(digits[0]) if digits else 8
