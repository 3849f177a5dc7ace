"""The parts of XLA's protocol buffers that we read, as message classes, and shapes in the words of numpy.

jaxlib writes these messages and ships no classes for them. Names and numbers of fields are XLA's (`xla/xla_data.proto`,
`xla/service/hlo.proto`), as are those of element types (`PrimitiveType`). What we do not read is left out and kept as
unknown fields, so that a message written again loses nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, Protocol, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "jaxckpt.xla"

_MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Layout": {"minor_to_major": (1, "int64*"), "memory_space": (8, "int64")},
    "Shape": {
        "element_type": (2, "int32"),
        "dimensions": (3, "int64*"),
        "tuple_shapes": (4, "Shape*"),
        "layout": (5, "Layout"),
    },
    "OpMetadata": {
        "op_name": (2, "string"),
        "source_file": (3, "string"),
        "source_line": (4, "int32"),
        "stack_frame_id": (15, "int32"),
    },
    "WindowDimension": {"size": (1, "int64")},
    "Window": {"dimensions": (1, "WindowDimension*")},
    "ConvolutionDimensionNumbers": {"kernel_input_feature_dimension": (3, "int64")},
    "DotDimensionNumbers": {"lhs_contracting_dimensions": (1, "int64*")},
    "HloInstruction": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "shape": (3, "Shape"),
        "metadata": (7, "OpMetadata"),
        "parameter_number": (9, "int64"),
        "tuple_index": (13, "int64"),
        "dimensions": (14, "int64*"),
        "window": (15, "Window"),
        "convolution_dimension_numbers": (16, "ConvolutionDimensionNumbers"),
        "custom_call_target": (28, "string"),
        "dot_dimension_numbers": (30, "DotDimensionNumbers"),
        "id": (35, "int64"),
        "operand_ids": (36, "int64*"),
        "called_computation_ids": (38, "int64*"),
        "backend_config": (43, "bytes"),
    },
    "HloComputation": {
        "name": (1, "string"),
        "instructions": (2, "HloInstruction*"),
        "program_shape": (4, "bytes"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
    },
    "InstructionSequence": {"instruction_ids": (1, "int64*")},
    "HloScheduleEntry": {"key": (1, "int64"), "value": (2, "InstructionSequence")},
    "HloSchedule": {"sequences": (1, "HloScheduleEntry*")},
    "FileLocation": {"file_name_id": (1, "int32"), "function_name_id": (2, "int32"), "line": (3, "int32")},
    "StackFrame": {"file_location_id": (1, "int32"), "parent_frame_id": (2, "int32")},
    "StackFrameIndex": {
        "file_names": (1, "string*"),
        "function_names": (2, "string*"),
        "file_locations": (3, "FileLocation*"),
        "stack_frames": (4, "StackFrame*"),
    },
    "HloModule": {
        "name": (1, "string"),
        "computations": (3, "HloComputation*"),
        "host_program_shape": (4, "bytes"),
        "entry_computation_id": (6, "int64"),
        "schedule": (7, "HloSchedule"),
        "stack_frame_index": (17, "StackFrameIndex"),
    },
    "BufferLocation": {"shape_index": (3, "int64*"), "instruction_id": (4, "int64")},
    "LogicalBuffer": {
        "id": (1, "int64"),
        "size": (2, "int64"),
        "defined_at": (3, "BufferLocation"),
        "color": (4, "int64"),
    },
    "Assigned": {"logical_buffer_id": (1, "int64"), "offset": (2, "int64"), "size": (3, "int64")},
    "BufferAllocation": {
        "index": (1, "int64"),
        "size": (2, "int64"),
        "is_thread_local": (3, "bool"),
        "is_entry_computation_parameter": (5, "bool"),
        "parameter_number": (6, "int64"),
        "maybe_live_out": (7, "bool"),
        "color": (8, "int64"),
        "assigned": (9, "Assigned*"),
        "is_constant": (12, "bool"),
    },
    "HeapEvent": {"kind": (1, "int32"), "buffer_id": (2, "int64"), "share_with_canonical_id": (5, "int64")},
    "HeapSimulatorTrace": {"events": (1, "HeapEvent*"), "buffer_allocation_index": (3, "int64")},
    "BufferAssignment": {
        "logical_buffers": (1, "LogicalBuffer*"),
        "buffer_allocations": (3, "BufferAllocation*"),
        "heap_simulator_traces": (4, "HeapSimulatorTrace*"),
    },
    "Hlo": {"hlo_module": (1, "HloModule"), "buffer_assignment": (3, "BufferAssignment")},
}
"""For each message its fields: number and type; "*" marks a repeated one."""

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "string": _FIELD.TYPE_STRING,
}


def _fields(fields: Mapping[str, tuple[int, str]]) -> Iterator[descriptor_pb2.FieldDescriptorProto]:
    for name, (number, kind) in fields.items():
        label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
        kind = kind.removesuffix("*")
        if kind in _SCALARS:
            yield _FIELD(name=name, number=number, label=label, type=_SCALARS[kind])
        else:
            yield _FIELD(
                name=name, number=number, label=label, type=_FIELD.TYPE_MESSAGE, type_name=f".{_PACKAGE}.{kind}"
            )


def _classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="jaxckpt/xla.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        file.message_type.add(name=name, field=list(_fields(fields)))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }


class Shape(Protocol):
    """`xla.ShapeProto`."""

    element_type: int
    dimensions: Sequence[int]
    tuple_shapes: "Sequence[Shape]"
    layout: "Message"


class AxesOfContraction(Protocol):
    """The fields of `xla.HloInstructionProto` that matrix products and convolutions have."""

    window: "Message"
    convolution_dimension_numbers: "Message"
    dot_dimension_numbers: "Message"


class Instruction(AxesOfContraction, Protocol):
    """`xla.HloInstructionProto`."""

    id: int
    name: str
    opcode: str
    shape: Shape
    metadata: "Message"
    parameter_number: int
    tuple_index: int
    dimensions: Sequence[int]
    custom_call_target: str
    operand_ids: Sequence[int]
    called_computation_ids: Sequence[int]
    backend_config: bytes


class Computation(Protocol):
    """`xla.HloComputationProto`."""

    id: int
    name: str
    program_shape: bytes
    root_id: int
    instructions: Sequence[Instruction]


Message: TypeAlias = Any
"""Any other message of `_MESSAGES`; protobuf makes its classes at run time, without types."""

_CLASSES = _classes()
Hlo: Any = _CLASSES["Hlo"]
"""`xla.HloProto`: a module with the buffers that were assigned for it."""
StackFrameIndex: Any = _CLASSES["StackFrameIndex"]
"""`xla.StackFrameIndexProto`."""
HloModule: Any = _CLASSES["HloModule"]
"""`xla.HloModuleProto`."""

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
