"""Footprints: the memory of one device that a compiled step takes, as XLA says, as plain data.

Arguments, outputs and temporaries are the compiler's own figures; what a donated argument lends to an output is
subtracted once (alias). What lies in host memory is apart. `compile` makes footprints; this file knows
neither jax nor a compiler, so that a footprint can be kept in a plan, compared and shown anywhere.

A footprint in a file is one JSON object with a version and a digest of its contents; ".gz" behind the name packs it.
pandas is loaded only where a frame is asked for.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

from jaxckpt._errors import FootprintFileError, HloError, MissingPackageError, PlanFileError
from jaxckpt._files import write_to_place
from jaxckpt._records import RecordError, digest, parse_json, read_document, read_record, table_from_record
from jaxckpt._shown import Shown
from jaxckpt._units import format_bytes
from jaxckpt.hlo import Buffer, MemoryMap, memory_from_plain, plain_from_memory

_FORMAT = "jaxckpt footprint"
_VERSION = 1
_OF_BUFFER = tuple(each.name for each in fields(Buffer))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Footprint(Shown):
    """The memory of one device, in bytes, while the step runs.

    Attributes:
      argument_bytes: Arguments that the step reads.
      output_bytes: Results, including those that take over a donated argument.
      alias_bytes: The part of the outputs in the memory of donated arguments.
      temp_bytes: Temporaries: device memory besides arguments and results, at the peak.
      generated_code_bytes: The program, with its constants if the compiler includes them (TPU, attached GPU).
        Compile-only GPUs report 0.
      constant_bytes: Arrays in the program, such as those that a step closes over; counted in the optimised program,
        and only if `generated_code_bytes` is 0.
      host_argument_bytes: Arguments in host memory.
      host_output_bytes: Results in host memory.
      host_temp_bytes: Offloaded values.
      host_alias_bytes: As `alias_bytes`.
      reported_peak_bytes: XLA's own peak, for information only: on CPUs it does not include temporaries, on TPUs it
        includes memory on the chip, elsewhere it can be below `temp_bytes`.
      unused_argument_bytes: Arguments that the step does not read. jit drops them, so no other figure includes them,
        but they stay in memory while the caller holds them.
      target: Name of the machine compiled for.
      compile_s: Lowering and compiling, seconds on this machine.
      jax_version: Of the jax that lowered it.
      plugin_version: Of the compiler.
      compiler_options: XLA options that were set, as pairs.
      caveats: Sentences on memory that these figures do not include, and on sums that do not reconcile.
      undonated: Donated arguments that no result takes over: pairs of path and bytes.
      step_s: Estimated seconds of one step's kernels by roofline on the target; 0 if the program was not read.
      stall_s: Estimated seconds for which kernels wait for copies between device and host, over the target's link.
      memory: The memory map: buffers and kernels; None if it was not read. Comparisons and `to_dict` leave it out.

    Example:
      >>> made = Footprint(argument_bytes=300, output_bytes=200, alias_bytes=200, temp_bytes=700)
      >>> made.total_bytes
      1000
      >>> Footprint.from_dict(made.to_dict()) == made
      True
    """

    _report: ClassVar[str] = "jaxckpt.report.memory:footprint_report"

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    generated_code_bytes: int = 0
    constant_bytes: int = 0
    host_argument_bytes: int = 0
    host_output_bytes: int = 0
    host_temp_bytes: int = 0
    host_alias_bytes: int = 0
    reported_peak_bytes: int = 0
    unused_argument_bytes: int = 0
    target: str = ""
    compile_s: float = 0.0
    jax_version: str = ""
    plugin_version: str = ""
    compiler_options: tuple[tuple[str, Any], ...] = ()
    caveats: tuple[str, ...] = ()
    undonated: tuple[tuple[str, int], ...] = ()
    step_s: float = 0.0
    stall_s: float = 0.0
    memory: MemoryMap | None = field(default=None, compare=False, repr=False)

    def with_memory(self, memory: MemoryMap | None) -> "Footprint":
        """A copy with another memory map."""
        return replace(self, memory=memory)

    def save(self, path: str | Path) -> None:
        """Writes the footprint and its memory map, completely or not at all; `jaxckpt.load_footprint` reads the file.

        Raises:
          FootprintFileError: The path takes no file.
        """
        path = Path(path)
        memory = None if self.memory is None else plain_from_memory(self.memory)
        contents = {"footprint": self.to_dict(), "memory": memory}
        document = {"format": _FORMAT, "version": _VERSION, "digest": digest(contents), **contents}
        data = json.dumps(document, separators=(",", ":")).encode()
        data = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
        write_to_place(path, data, called=f"save_footprint({str(path)!r})", error=FootprintFileError)

    def to_frame(self) -> Any:
        """The buffers as a pandas frame, one row each in the order of their ids; none without a memory map.

        The columns are the attributes of `jaxckpt.hlo.Buffer`, what its allocation is for, where it lies, and whether
        it is a temporary alive at the peak.

        Raises:
          MissingPackageError: pandas is not installed.
        """
        rows = () if self.memory is None else _buffer_rows(self.memory)
        return frame_of_rows(rows, columns=(*_OF_BUFFER, "use", "space", "at_peak"), called="Footprint.to_frame")

    @property
    def estimated_step_s(self) -> float:
        """Estimated seconds of one step, waits for copies included; 0 if the program was not read."""
        return self.step_s + self.stall_s

    @property
    def program_bytes(self) -> int:
        """The program and its constants, whichever of the two figures the compiler leaves us."""
        return max(self.generated_code_bytes, self.constant_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes of the device: arguments + outputs - alias + temporaries + program.

        Budgets are compared with this figure. It is at least the bytes alive at any time. `unused_argument_bytes` are
        not included.
        """
        arrays = self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes
        return arrays + self.program_bytes

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory for this device."""
        arrays = self.host_argument_bytes + self.host_output_bytes - self.host_alias_bytes
        return arrays + self.host_temp_bytes

    def summary(self) -> str:
        """The figures that matter most, in one line."""
        host = f", host {format_bytes(self.host_bytes)}" if self.host_bytes else ""
        program = f" + program {format_bytes(self.program_bytes)}" if self.program_bytes else ""
        return (
            f"{format_bytes(self.total_bytes)} on {self.target}: arguments {format_bytes(self.argument_bytes)} "
            f"+ outputs {format_bytes(self.output_bytes)} - alias {format_bytes(self.alias_bytes)} "
            f"+ temporaries {format_bytes(self.temp_bytes)}{program}{host}{self._peak_place()}"
        )

    def _peak_place(self) -> str:
        if self.memory is None or not self.memory.kernels:
            return ""
        kernel = self.memory.kernels[self.memory.peak]
        return f"; peak in {kernel.scope or '/'}, {kernel.part}"

    def to_dict(self) -> dict[str, Any]:
        """The same as numbers, texts and lists, ready for TOML or JSON."""
        return table_from_record(self)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "Footprint":
        """Reads what `to_dict` wrote; keys with a default may be left out.

        Raises:
          PlanFileError: Keys are missing or unknown, or values are of other types; all of them are named.
        """
        try:
            return read_record(cls, plain)
        except RecordError as error:
            raise PlanFileError(
                "a footprint cannot be read.",
                got=str(error),
                needed="the keys of a footprint, each of its type, as footprint.to_dict writes them",
                advice="read it with the version of jaxckpt that wrote it",
                missing=error.missing,
                unknown=error.unknown,
            ) from error


def load_footprint(path: str | Path) -> Footprint:
    """Reads a footprint that `Footprint.save` wrote, with its memory map.

    Raises:
      FootprintFileError: The file is not there, is none of ours, or is not as it was written.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> path = pathlib.Path(tempfile.mkdtemp(), "footprint.json.gz")
      >>> made.save(path)
      >>> jaxckpt.load_footprint(path) == made
      True
    """
    path = Path(path)
    try:
        document = read_document(path, parse_json, format_=_FORMAT, version=_VERSION)
        contents: dict[str, Any] = {key: document.get(key) for key in ("footprint", "memory")}
        if document.get("digest") != digest(contents):
            raise RecordError(["its digest is not that of its contents: it was changed after it was written"])
        figures = Footprint.from_dict(contents["footprint"])
        memory = None if contents["memory"] is None else memory_from_plain(contents["memory"])
    except (RecordError, HloError, PlanFileError) as error:
        raise FootprintFileError(
            f"load_footprint({str(path)!r}): this is no footprint that we can read.",
            got=str(error),
            needed=f'a file with format "{_FORMAT}", version {_VERSION}, as footprint.save writes it',
            advice="make the footprint again, take the file from where it was saved, or use the jaxckpt that wrote it",
            path=path,
        ) from error
    return figures.with_memory(memory)


def frame_of_rows(rows: Iterable[Mapping[str, Any]], *, columns: Sequence[str], called: str) -> Any:
    """Rows as a pandas frame; the error without pandas names the caller."""
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingPackageError(
            f"{called} needs pandas, which is not installed.",
            got=str(error),
            needed="pandas",
            advice='pip install "jaxckpt[pandas]"',
            package="pandas",
        ) from error
    return pd.DataFrame(list(rows), columns=list(columns))


def _buffer_rows(memory: MemoryMap) -> Iterator[dict[str, Any]]:
    at_peak = {buffer.id for buffer in memory.alive_at(memory.peak)}
    for buffer in memory.buffers:
        allocation = memory.by_index[buffer.allocation]
        known = {name: getattr(buffer, name) for name in _OF_BUFFER}
        known |= {"part": str(buffer.part), "role": str(buffer.role)}
        yield known | {"use": str(allocation.use), "space": str(allocation.space), "at_peak": buffer.id in at_peak}
