"""Footprints of programs that we never compiled: XLA's dump folders, and files out of them.

`XLA_FLAGS=--xla_dump_to=DIR` makes any program write its modules, as text or, with `--xla_dump_hlo_as_proto`, in
binary. Both are read; what only the running compiler knows (host memory it reports, its version) is left out.

A module dumped as text has its buffer assignment in a file of its own: each allocation is a line with its flags, then
one line for each value with its address. The text becomes the message that XLA writes in binary dumps. The text does
not say when buffers are freed; `jaxckpt.hlo.read` frees them behind their readers.

Read after `footprint_data`.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax

from jaxckpt import _compat
from jaxckpt._errors import HloError
from jaxckpt._units import format_bytes
from jaxckpt.compiler.footprint_data import Footprint
from jaxckpt.hlo import MemoryMap, Space, Use, memory_from_hlo, stall_s, step_s
from jaxckpt.hlo.schema import Hlo, Message
from jaxckpt.machine import Target

_BINARY = "after_optimizations.hlo.pb"
_TEXT = "after_optimizations.txt"
_ASSIGNMENT = "-buffer-assignment.txt"

_ALLOCATION = re.compile(r"allocation (\d+): size (\d+)(?:, page \d+)?((?:, [^\n]*)?):")
_VALUE = re.compile(r" value: <\d+ (\S+?)(\{[\d,]*\})?(?: \(phi\))? @(\d+)> \(size=(\d+),offset=(\d+)\): .*")
_PARAMETER = re.compile(r"parameter (\d+)")
_COLOR = re.compile(r"color (\d+)")


def footprint_of_dump(path: str | Path, *, target: Target | str | None = None) -> Footprint:
    """Footprint of a dumped program, with a memory map and, for a target, the estimated seconds.

    The path is a folder that XLA dumped to (of several programs in it the one of most temporaries is taken), or one
    `*after_optimizations.hlo.pb` or `*after_optimizations.txt` in it. The sums are those of the allocations, since
    there are no statistics to hold them against.

    Raises:
      HloError: There is no such file, or it is damaged, cut off or something else.
    """
    path = Path(path)
    files = sorted(_dumped(path)) if path.is_dir() else [path]
    if not files:
        raise _wrong(path, f"a folder without any *{_BINARY} or *{_TEXT}")
    read = [(file, _memory(file)) for file in files]
    file, memory = max(read, key=lambda pair: pair[1].temp_bytes)
    others = [f"{each.program} ({format_bytes(each.temp_bytes)})" for _, each in read if each is not memory]
    caveats = [f"Read from {file.name}: its sums are held against no statistics of XLA."]
    if others:
        caveats.append(f"Other programs in the folder, with their temporaries: {', '.join(others)}.")
    return _footprint(memory, target, (*caveats, *memory.problems))


def _dumped(folder: Path) -> Iterator[Path]:
    """The modules in a folder; of one dumped both ways the binary file."""
    binary = set(folder.glob(f"*{_BINARY}"))
    yield from binary
    stems = {file.name.removesuffix(_BINARY) for file in binary}
    yield from (file for file in folder.glob(f"*{_TEXT}") if file.name.removesuffix(_TEXT) not in stems)


def _memory(file: Path) -> MemoryMap:
    try:
        data = _from_text(file) if file.suffix == ".txt" else file.read_bytes()
        return memory_from_hlo(data, platform=_platform(file.name))
    except OSError as error:
        raise _wrong(file, f"a file that cannot be read: {error.strerror or error}") from error


def _from_text(file: Path) -> bytes:
    assignment = file.with_name(file.name.removesuffix(".txt") + _ASSIGNMENT)
    if not assignment.is_file():
        raise _wrong(file, f"a text of HLO without {assignment.name} beside it")
    message = Hlo()
    try:
        message.hlo_module.ParseFromString(_compat.hlo_module_from_text(file.read_text()))
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        raise _wrong(file, f"a text that XLA's parser refuses: {str(error).splitlines()[0]}") from error
    known = {i.name: i.id for c in message.hlo_module.computations for i in c.instructions}
    for line in _lines(assignment.read_text()):
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


def _platform(name: str) -> str:
    """The platform in a dump's name, such as "module_0001.jit_step.sm_9.0a_gpu_after_optimizations"."""
    if "gpu_after" in name:
        return "cuda"
    return "cpu" if "cpu_after" in name else "tpu"


def _footprint(memory: MemoryMap, target: Target | str | None, caveats: tuple[str, ...]) -> Footprint:
    if isinstance(target, str):
        target = Target(target)
    donated_bytes = sum(a.size_bytes for a in memory.allocations if a.donated)
    return Footprint(
        argument_bytes=memory.allocated_bytes(Use.ARGUMENT),
        output_bytes=memory.allocated_bytes(Use.OUTPUT) + donated_bytes,
        alias_bytes=donated_bytes,
        temp_bytes=memory.temp_bytes,
        constant_bytes=memory.allocated_bytes(Use.CONSTANT),
        host_argument_bytes=memory.allocated_bytes(Use.ARGUMENT, Space.HOST),
        host_output_bytes=memory.allocated_bytes(Use.OUTPUT, Space.HOST),
        host_temp_bytes=memory.allocated_bytes(Use.TEMPORARY, Space.HOST),
        target="" if target is None else target.name,
        caveats=caveats,
        step_s=0.0 if target is None else step_s(memory, target.rates),
        stall_s=0.0 if target is None else stall_s(memory, target.rates),
        memory=memory,
    )


def _wrong(path: Path, got: str) -> HloError:
    return HloError(
        f"{str(path)!r} is no dump that can be read.",
        got=got,
        needed=f"a folder that XLA dumped to, or a *{_BINARY} or *{_TEXT} of it",
        advice="run the program again with XLA_FLAGS='--xla_dump_to=DIR --xla_dump_hlo_as_proto' and hand in DIR",
    )
