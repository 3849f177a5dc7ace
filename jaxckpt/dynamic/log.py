"""DTR's log format: one instruction a line, as JSON; read into a `Program`, and written from one.

    {"INSTRUCTION": "CONSTANT", "NAME": "w"}                  followed by its MEMORY
    {"INSTRUCTION": "MEMORY", "NAME": "w", "MEMORY": "4096"}  bytes
    {"INSTRUCTION": "CALL", "NAME": "relu", "RESULT": ["y"], "ARGS": ["x"], "TIME": "1500"}
                                                              nanoseconds; followed by MEMORY and ALIAS of each result
    {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": "0"}       the operand that it is a view of; -1 for none
    {"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["w", "g"], "MUTATE": [0], "TIME": "900"}
    {"INSTRUCTION": "COPY", "DST": "z", "SRC": "y"}           one more name
    {"INSTRUCTION": "COPY_FROM", "DST": "z", "SRC": "y"}      a name for something else
    {"INSTRUCTION": "RELEASE", "NAME": "y"}                   one name less
    {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}     START and BACKWARD are known

What is named at the end is kept. A mutation makes a new tensor (copy on write), which may take over the old one's
memory. Numbers may be texts, as DTR's own logger writes them.

Source: the DTR prototype's logger and its simulator, 2021.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from jaxckpt.dynamic.program import (
    Call,
    Constant,
    Get,
    Keep,
    Note,
    Program,
    ProgramError,
    ProgramWriter,
    Release,
    RunCall,
)

_NEEDED = {
    "CONSTANT": ("NAME",),
    "MEMORY": ("NAME", "MEMORY"),
    "ALIAS": ("NAME", "ALIAS"),
    "CALL": ("NAME", "RESULT", "ARGS", "TIME"),
    "MUTATE": ("NAME", "ARGS", "MUTATE", "TIME"),
    "COPY": ("DST", "SRC"),
    "COPY_FROM": ("DST", "SRC"),
    "RELEASE": ("NAME",),
    "ANNOTATE": ("ANNOTATION",),
}


def read_log(path: str | Path, *, start: bool = True) -> Program:
    """The program of a log.

    Args:
      path: Of a file with one instruction a line.
      start: Whether what stands before `ANNOTATE START`, if that is there, is left out, as DTR's simulator does.

    Returns:
      A program priced in nanoseconds. Releases of names that are not known are left out.

    Raises:
      ProgramError: A line is no instruction, or not where it may be.

    Example:
      >>> import pathlib, tempfile
      >>> from jaxckpt import dynamic
      >>> path = pathlib.Path(tempfile.mkdtemp(), "chain.log")
      >>> dynamic.write_log(dynamic.unit_chain(4), path)
      >>> program = dynamic.read_log(path)
      >>> dynamic.simulate(program, budget=4, evictor="dtr").operations
      9
    """
    return program_from_log(Path(path).read_text().splitlines(), start=start)


def program_from_log(lines: Iterable[str], *, start: bool = True) -> Program:
    """The program of a log's lines.

    Example:
      >>> log = '''{"INSTRUCTION": "CONSTANT", "NAME": "x"}
      ... {"INSTRUCTION": "MEMORY", "NAME": "x", "MEMORY": 8}
      ... {"INSTRUCTION": "CALL", "NAME": "neg", "RESULT": ["y"], "ARGS": ["x"], "TIME": 5}
      ... {"INSTRUCTION": "MEMORY", "NAME": "y", "MEMORY": 8}
      ... {"INSTRUCTION": "ALIAS", "NAME": "y", "ALIAS": -1}'''
      >>> program_from_log(log.splitlines()).calls[0].price
      5.0
    """
    found = [(number, _parsed(number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    marks = [i for i, (_, said) in enumerate(found) if said.get("ANNOTATION") == "START"]
    return _LogReader(found[marks[0] + 1 :] if marks and start else found).read()


def _parsed(number: int, line: str) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except json.JSONDecodeError as error:
        raise _bad(number, line, "one JSON object") from error
    known = _NEEDED.get(said.get("INSTRUCTION", "")) if isinstance(said, dict) else None
    if known is None or any(name not in said for name in known):
        raise _bad(number, line, f"an instruction with its fields: {', '.join(_NEEDED)}")
    return dict(said)


def _bad(number: int, line: object, needed: str) -> ProgramError:
    return ProgramError(
        f"line {number} of the log cannot be read.",
        got=str(line)[:120],
        needed=needed,
        advice="a log as DTR's logger or `write_log` writes it",
        line=number,
    )


class _LogReader(ProgramWriter):
    def __init__(self, found: list[tuple[int, dict[str, Any]]]):
        super().__init__()
        self.found = iter(found)
        self.named: dict[str, int] = {}
        self.names = Counter[int]()
        """For each tensor how many names it has."""

    def read(self) -> Program:
        for number, said in self.found:
            try:
                self._instruction(number, said)
            except ProgramError:
                raise
            except (KeyError, IndexError, ValueError) as error:
                raise _bad(number, said, "names that are known here, numbers in range") from error
        self.statements += [Keep(t) for t in dict.fromkeys(self.named.values()) if self.names[t] > 0]
        return self.program()

    def _instruction(self, number: int, said: dict[str, Any]) -> None:
        match said:
            case {"INSTRUCTION": "CONSTANT", "NAME": name}:
                self.named[name] = self._named(name, int(self._next(number, "MEMORY", name)["MEMORY"]))
                self.statements.append(Constant(self.named[name]))
            case {"INSTRUCTION": "CALL"}:
                self._call(number, said)
            case {"INSTRUCTION": "MUTATE"}:
                self._mutate(said)
            case {"INSTRUCTION": "COPY", "DST": name, "SRC": source}:
                self._copy(name, source)
            case {"INSTRUCTION": "COPY_FROM", "DST": name, "SRC": source}:
                self._drop(self.named[name])
                self._copy(name, source)
            case {"INSTRUCTION": "RELEASE", "NAME": name}:
                if name in self.named:
                    self._drop(self.named[name])
            case {"INSTRUCTION": "ANNOTATE", "ANNOTATION": text}:
                self.statements.append(Note(text))
            case _:
                needed = "MEMORY only behind CONSTANT or CALL, ALIAS only behind MEMORY of a CALL's result"
                raise _bad(number, said, needed)

    def _named(self, name: str, size: int, view_of: int | None = None) -> int:
        tensor = self.tensor(name, size, view_of)
        self.names[tensor] = 1
        return tensor

    def _next(self, number: int, instruction: str, name: str) -> dict[str, Any]:
        number, said = next(self.found, (number, {}))
        if said.get("INSTRUCTION") != instruction or said["NAME"] != name:
            raise _bad(number, said, f"{instruction} of {name!r}")
        return said

    def _call(self, number: int, said: dict[str, Any]) -> None:
        reads, writes = tuple(self.named[name] for name in said["ARGS"]), []
        for name in said["RESULT"]:
            size = int(self._next(number, "MEMORY", name)["MEMORY"])
            alias = int(self._next(number, "ALIAS", name)["ALIAS"])
            writes.append(self._named(name, 0 if alias >= 0 else size, reads[alias] if alias >= 0 else None))
        self.named.update(zip(said["RESULT"], writes, strict=True))
        self._issue(said, reads, writes or [self._named("", 0)])

    def _mutate(self, said: dict[str, Any]) -> None:
        reads = tuple(self.named[name] for name in said["ARGS"])
        old = tuple(reads[int(i)] for i in said["MUTATE"])
        writes = [self._named(f"{self.tensors[t].name}$", self._storage_bytes(t)) for t in old]
        self._issue(said, reads, writes, old)
        for i, before, after in zip(said["MUTATE"], old, writes, strict=True):
            self.named[said["ARGS"][int(i)]] = after
            self._drop(before)

    def _storage_bytes(self, tensor: int) -> int:
        while (source := self.tensors[tensor].view_of) is not None:
            tensor = source
        return self.tensors[tensor].size_bytes

    def _issue(
        self, said: dict[str, Any], reads: tuple[int, ...], writes: list[int], old: tuple[int, ...] = ()
    ) -> None:
        name, price = said["NAME"], float(said["TIME"])
        self.call(Call(name=name, price=price, reads=reads, writes=tuple(writes), replaces=old))

    def _drop(self, tensor: int) -> None:
        self.names[tensor] -= 1
        self.statements.append(Release(tensor))

    def _copy(self, name: str, source: str) -> None:
        self.named[name] = self.named[source]
        self.names[self.named[source]] += 1
        self.statements.append(Get(self.named[source]))


def write_log(program: Program, path: str | Path) -> None:
    """Writes a program in DTR's format, for DTR's simulator and others that read it.

    What is kept at the end keeps its name; what the format has no word for is left out: that a constant may be freed,
    that a call may run only once, what takes over which memory. Prices are rounded to whole nanoseconds.

    Args:
      program: Priced in nanoseconds.
      path: Written over if it is there.

    Example:
      >>> import pathlib, tempfile
      >>> from jaxckpt import dynamic
      >>> path = pathlib.Path(tempfile.mkdtemp(), "chain.log")
      >>> dynamic.write_log(dynamic.unit_chain(4), path)
      >>> path.read_text().splitlines()[1]
      '{"INSTRUCTION": "CALL", "NAME": "f0", "RESULT": ["f0#0"], "ARGS": [], "TIME": "1"}'
      >>> len(dynamic.read_log(path).calls)
      8
    """
    Path(path).write_text("".join(f"{line}\n" for line in log_from_program(program)))


def log_from_program(program: Program) -> Iterator[str]:
    """The lines that `write_log` writes.

    Example:
      >>> from jaxckpt.dynamic import unit_chain
      >>> next(log_from_program(unit_chain(2)))
      '{"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"}'
    """
    names = [f"{tensor.name}#{i}" for i, tensor in enumerate(program.tensors)]
    copies = 0
    extra: dict[int, list[str]] = {}
    yield _line("ANNOTATE", ANNOTATION="START")
    for statement in program.statements:
        match statement:
            case Constant(tensor=t):
                yield _line("CONSTANT", NAME=names[t])
                yield _line("MEMORY", NAME=names[t], MEMORY=str(program.tensors[t].size_bytes))
            case RunCall(call=c):
                yield from _written(program, program.calls[c], names)
            case Get(tensor=t):
                copies += 1
                extra.setdefault(t, []).append(f"{names[t]}#{copies}")
                yield _line("COPY", DST=extra[t][-1], SRC=names[t])
            case Release(tensor=t):
                yield _line("RELEASE", NAME=extra[t].pop() if extra.get(t) else names[t])
            case Note(text=text) if text != "START":
                yield _line("ANNOTATE", ANNOTATION=text)


def _written(program: Program, call: Call, names: list[str]) -> Iterator[str]:
    yield _line(
        "CALL",
        NAME=call.name,
        RESULT=[names[t] for t in call.writes],
        ARGS=[names[t] for t in call.reads],
        TIME=str(round(call.price)),
    )
    for t in call.writes:
        source = program.tensors[t].view_of
        yield _line("MEMORY", NAME=names[t], MEMORY=str(program.tensors[t].size_bytes))
        yield _line("ALIAS", NAME=names[t], ALIAS=str(-1 if source is None else call.reads.index(source)))


def _line(instruction: str, **fields: Any) -> str:
    return json.dumps({"INSTRUCTION": instruction, **fields})
