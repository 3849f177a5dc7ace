"""XLA's element types and shapes in the words of numpy.

Numbers are those of `xla/xla_data.proto`, `PrimitiveType`.
"""

from math import prod

from jaxckpt.hlo.schema import Shape

_ELEMENTS: dict[int, tuple[str, int]] = {
    1: ("bool", 8),
    2: ("int8", 8),
    3: ("int16", 16),
    4: ("int32", 32),
    5: ("int64", 64),
    6: ("uint8", 8),
    7: ("uint16", 16),
    8: ("uint32", 32),
    9: ("uint64", 64),
    10: ("float16", 16),
    11: ("float32", 32),
    12: ("float64", 64),
    13: ("tuple", 0),
    15: ("complex64", 64),
    16: ("bfloat16", 16),
    17: ("token", 0),
    18: ("complex128", 128),
    19: ("float8_e5m2", 8),
    20: ("float8_e4m3fn", 8),
    21: ("int4", 4),
    22: ("uint4", 4),
    23: ("float8_e4m3b11fnuz", 8),
    24: ("float8_e5m2fnuz", 8),
    25: ("float8_e4m3fnuz", 8),
    26: ("int2", 2),
    27: ("uint2", 2),
    28: ("float8_e4m3", 8),
    29: ("float8_e3m4", 8),
    32: ("float4_e2m1fn", 4),
    33: ("float8_e8m0fnu", 8),
}
HOST_SPACE = 5
"""XLA's number of host memory, on every platform."""
TUPLE = 13
TOKEN = 17


def dtype_of(shape: Shape) -> str:
    """Numpy's name of a shape's element type; "tuple", "token", or XLA's number where it is new to us."""
    name, _ = _ELEMENTS.get(shape.element_type, (f"type{shape.element_type}", 0))
    return name


def element_count(shape: Shape) -> int:
    """How many elements an array of this shape has."""
    return prod(shape.dimensions)


def shape_bytes(shape: Shape) -> int:
    """Bytes of all arrays of a shape, without padding; 0 for tokens and element types that are new to us."""
    if shape.element_type == TUPLE:
        return sum(shape_bytes(each) for each in shape.tuple_shapes)
    _, bits = _ELEMENTS.get(shape.element_type, ("", 0))
    return -(-element_count(shape) * bits // 8)


def array_at(shape: Shape, index: tuple[int, ...]) -> Shape:
    """The shape at an index of a (nested) tuple; what is found so far where the index leads nowhere."""
    for position in index:
        if position >= len(shape.tuple_shapes):
            return shape
        shape = shape.tuple_shapes[position]
    return shape
