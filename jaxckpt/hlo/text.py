"""XLA's buffer assignment as text, `*-buffer-assignment.txt`: the file of `--xla_dump_to` without protos.

Each allocation is a line with its flags, then one line for each value with its address. The text becomes the message
that XLA writes in binary dumps. The text does not say when buffers are freed; `read` frees them behind their readers.

Read after `read`.
"""

import re
from collections.abc import Iterator, Mapping

from google.protobuf.message import DecodeError

from jaxckpt._errors import HloError
from jaxckpt.hlo import schema
from jaxckpt.hlo.schema import Message

_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)(?:, page \d+)?((?:, [^\n]*)?):")
_VALUE = re.compile(r" value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @(\d+)> \(size=(\d+),offset=(\d+)\): .*")
_PARAMETER = re.compile(r"parameter (\d+)")
_COLOR = re.compile(r"color (\d+)")


def hlo_from_text(module: bytes, assignment: str) -> bytes:
    """The `HloProto` of a module that was dumped as text: its `HloModuleProto`, by jaxlib's parser, and its assignment.

    Raises an `HloError` for a line that XLA does not write, or that names an instruction which is not in the module.
    """
    message = schema.Hlo()
    try:
        message.hlo_module.ParseFromString(module)
    except DecodeError as error:
        raise _damaged("a module that is no protocol buffer of XLA") from error
    known = {i.name: i.id for c in message.hlo_module.computations for i in c.instructions}
    for line in _lines(assignment):
        _read_line(message.buffer_assignment, line, known)
    return bytes(message.SerializeToString())


def _lines(assignment: str) -> Iterator[str]:
    """The lines of allocations and values; the report behind them is left out."""
    lines = iter(assignment.splitlines())
    if next(lines, "") != "BufferAssignment:":
        raise _damaged("a text that does not begin with 'BufferAssignment:'")
    for line in lines:
        if not line.strip():
            return
        yield line


def _read_line(assignment: Message, line: str, known: Mapping[str, int]) -> None:
    allocation, value = _ALLOCATION.fullmatch(line), _VALUE.fullmatch(line)
    if allocation is not None:
        _add_allocation(assignment, int(allocation[1]), int(allocation[2]), allocation[3])
    elif value is not None and assignment.buffer_allocations:
        if value[1] not in known:
            raise _damaged(f"a buffer of {value[1]!r}, an instruction that is not in the module")
        _add_value(assignment, known[value[1]], value)
    else:
        raise _damaged(f"the line {line[:100]!r}")


def _add_allocation(assignment: Message, index: int, size_bytes: int, flags: str) -> None:
    parameter, color = _PARAMETER.search(flags.partition("shape |")[0]), _COLOR.search(flags)
    assignment.buffer_allocations.add(
        index=index,
        size=size_bytes,
        is_thread_local="thread-local" in flags,
        is_constant="constant" in flags.rpartition("|")[2],
        maybe_live_out="maybe-live-out" in flags,
        is_entry_computation_parameter=parameter is not None,
        parameter_number=int(parameter[1]) if parameter else 0,
        color=int(color[1]) if color else 0,
    )


def _add_value(assignment: Message, instruction: int, value: re.Match[str]) -> None:
    number = len(assignment.logical_buffers) + 1
    index = [int(each) for each in (value[2] or "{}")[1:-1].split(",") if each]
    buffer = assignment.logical_buffers.add(id=number, size=int(value[4]), color=int(value[3]))
    buffer.defined_at.instruction_id = instruction
    buffer.defined_at.shape_index.extend(index)
    assignment.buffer_allocations[-1].assigned.add(logical_buffer_id=number, size=int(value[4]), offset=int(value[5]))


def _damaged(got: str) -> HloError:
    return HloError(
        "a buffer assignment cannot be read.",
        got=got,
        needed="a `*-buffer-assignment.txt` as XLA dumps it, beside the text of the same module",
        advice="dump both again with XLA_FLAGS=--xla_dump_to=DIR, or as protos with --xla_dump_hlo_as_proto",
    )
