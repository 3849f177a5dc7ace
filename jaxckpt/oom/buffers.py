"""Buffers that XLA lists when memory runs out, read from the text of the message.

GPUs list "Peak buffers", all of them alive at the peak; TPUs list "Largest program allocations". Both end each buffer
with a line of equal signs and leave out unknown fields. A field that is cut off or contradicts another field is None,
never a guess.

Read after `lines` and `hlo.origin`.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jaxckpt.hlo.memory import Part
from jaxckpt.hlo.origin import Origin, origin_of
from jaxckpt.oom.lines import leading_size

_ELEMENT = re.compile(r"(bf|[csuf])(2|4|8|16|32|64|128)(e\w+)?")
_NUMPY = {"bf": "bfloat", "c": "complex", "s": "int", "u": "uint", "f": "float"}
"""XLA's names of element types, such as "bf16" and "f8e4m3fn", and how numpy's begin ("bfloat16", "float8_e4m3fn")."""
_HEADER = re.compile(r"^\s*(?:Buffer \d+:|\d+\. Size:)")
_END = re.compile(r"^\s*={10,}\s*$")
_FIELD = re.compile(
    r"^\s*(?:\d+\. )?(?P<key>Size|Operator|XLA [Ll]abel|Shape|Entry Parameter Subshape|Unpadded size"
    r"|Extra memory due to padding|Allocation type|Tag): ?(?P<value>.*)",
    re.DOTALL,
)
_FIELDS = (
    *("Size", "Operator", "XLA Label", "Entry Parameter Subshape", "Shape", "Unpadded size"),
    *("Extra memory due to padding", "XLA label", "Allocation type", "Tag"),
)
"""The fields of a buffer in their order; a GPU prints the label at another position than a TPU."""
_SHAPE = re.compile(r"^([a-z][a-z0-9]*)\[((?:\d{1,15}(?:,\d{1,15})*)?)\]")
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"', re.DOTALL)
_SOURCE = re.compile(r'source_file="([^"]*)" source_line=(\d+)(?=\s)')
_PARAMETERS = re.compile(r"^(.*?/[\w.-]+)\[.*\]$", re.DOTALL)
_MAPPED = re.compile(r"^(?:pmap|xmap)\(")
_ROUNDING = 0.01
"""XLA prints sizes with three digits or more, so that a printed size is within 1% of the exact one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OomBuffer:
    """A buffer of XLA's message; None and "" where the message does not say."""

    size_bytes: int | None = None  # with padding; rounded as XLA printed it, exact where shape and dtype say the same
    unpadded_bytes: int | None = None  # without padding, where XLA says so (TPU)
    shape: tuple[int, ...] | None = None  # on one device
    dtype: str = ""  # numpy's name ("bfloat16")
    op_name: str = ""  # JAX's full name stack and primitive
    scope: str = ""  # the path of names of the model in it
    op: str = ""  # the primitive in it ("dot_general")
    part: Part | None = None  # of the step
    label: str = ""  # XLA's opcode or instruction
    kind: str = ""  # "parameter" for an argument of the program; else XLA's allocation type ("HLO temp")
    source: str = ""  # "file.py:line" of the user's code
    lines: tuple[str, ...] = ()  # the lines of the message

    @property
    def padding_bytes(self) -> int:
        """Bytes that only fill up tiles; 0 where XLA does not say."""
        if self.size_bytes is None or self.unpadded_bytes is None:
            return 0
        return max(0, self.size_bytes - self.unpadded_bytes)

    @property
    def is_argument(self) -> bool:
        """True if it is an argument of the program, which no decision on residuals changes."""
        return self.kind == "parameter"


def buffers_in(lines: Iterable[str]) -> tuple[OomBuffer, ...]:
    """Reads all listed buffers, in order, from the lines of `clean_lines`; other lines are skipped."""
    return tuple(buffer for block in _blocks(lines) if (buffer := _buffer(block)) is not None)


def _blocks(lines: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    """(key, text) of each buffer; a key out of XLA's order begins another buffer, whose header was lost."""
    block: list[tuple[str, str]] = []
    for line in lines:
        field = _FIELD.match(line)
        starts = _HEADER.match(line) is not None or (
            field is not None and bool(block) and _FIELDS.index(field["key"]) <= _FIELDS.index(block[-1][0])
        )
        if starts or _END.match(line):
            yield block
            block = []
        if field is not None:
            block.append((field["key"], field["value"]))
    yield block


def _buffer(block: list[tuple[str, str]]) -> OomBuffer | None:
    fields = dict(block)
    if not fields.keys() & {"Size", "Shape", "Entry Parameter Subshape"}:
        return None
    dtype, shape, exact = _shape(fields.get("Shape", fields.get("Entry Parameter Subshape", "")))
    unpadded = leading_size(fields.get("Unpadded size", ""))
    size = _agreed(leading_size(fields.get("Size", "")), unpadded, exact)
    operator = fields.get("Operator", "")
    op_name, origin = _origin(operator)
    source = _SOURCE.search(operator)
    return OomBuffer(
        size_bytes=size,
        unpadded_bytes=unpadded,
        shape=shape,
        dtype=dtype,
        op_name=op_name,
        scope=origin.scope,
        op=origin.op,
        part=origin.part(),
        label=_complete_line(fields.get("XLA Label", fields.get("XLA label", ""))),
        kind="parameter" if "Entry Parameter Subshape" in fields else _complete_line(fields.get("Allocation type", "")),
        source=f"{source[1]}:{source[2]}" if source else "",
        lines=tuple(f"{key}: {value.rstrip()}" for key, value in block),
    )


def _shape(text: str) -> tuple[str, tuple[int, ...] | None, int | None]:
    """Dtype, shape and bytes without padding; none for tuples and for a text that is cut off."""
    match = _SHAPE.match(text)
    element = _ELEMENT.fullmatch(match[1]) if match else None
    if match is None or (element is None and match[1] != "pred"):
        return "", None, None
    dtype, bits = ("bool", 8) if element is None else (f"{_NUMPY[element[1]]}{element[2]}", int(element[2]))
    suffix = f"_{element[3]}" if element is not None and element[3] else ""
    shape = tuple(int(size) for size in match[2].split(",") if size)
    return f"{dtype}{suffix}", shape, -(-math.prod(shape) * bits // 8)


def _agreed(size: int | None, unpadded: int | None, exact: int | None) -> int | None:
    """The size, made exact by the shape; None where the two contradict each other, as after lost lines."""
    if size is None or exact is None:
        return size
    rounding = exact * _ROUNDING + 1
    if unpadded is None or size == unpadded:
        return exact if abs(size - exact) <= rounding else None
    return size if size > exact * (1 - _ROUNDING) and abs(unpadded - exact) <= rounding else None


def _origin(operator: str) -> tuple[str, Origin]:
    match = _OP_NAME.search(operator)
    if match is None:
        return "", Origin()
    op_name = match[1]
    parameters = _PARAMETERS.match(op_name)
    return op_name, origin_of(_MAPPED.sub("jit(", parameters[1] if parameters else op_name))


def _complete_line(text: str) -> str:
    """A text that ends with its line; "" where the text is cut off."""
    return text.strip() if text.endswith("\n") else ""
