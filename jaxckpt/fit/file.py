"""Plans as TOML files that a person can read and compare, and back.

A file says first what was asked and what it takes, then the decisions, one table for each kind of value: the same
value of every layer is one entry, its layer numbers folded ("GPT/block_*/qkv", layers "0-11"). Then the arguments that
the plan is for. Reading gives an equal plan or an error that names all that is wrong; nothing is executed.

Read after `plan`.
"""

import dataclasses
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from jaxckpt import ir
from jaxckpt._errors import JaxckptError, PlanFileError
from jaxckpt._units import format_bytes, format_seconds
from jaxckpt._version import __version__
from jaxckpt.fit.plan import Argument, Attempt, Described, Plan
from jaxckpt.measure import Footprint

FORMAT = "jaxckpt-plan"
VERSION = 1

_DECISIONS = {"save": ir.Save, "recompute": ir.Recompute, "offload": ir.Offload, "partition": ir.Partition}
_WORD = {kind: word for word, kind in _DECISIONS.items()}
_NUMBER = re.compile(r"(?<![0-9])(0|[1-9][0-9]*)(?![0-9])")
_ARGUMENT = re.compile(r"(?P<path>.*) (?P<dtype>[^ \[\]]+)\[(?P<shape>[0-9,]*)\]")


def save_plan(plan: Plan, path: str | Path) -> None:
    """Writes a plan to a TOML file, whole or not at all.

    Raises:
      PlanFileError: The folder is not there.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise PlanFileError(
            f"save_plan({str(path)!r}): the folder is not there.",
            got=str(path.parent),
            needed="a folder that exists",
            advice=f"mkdir -p {path.parent}",
            path=path,
        )
    text = tomlkit.dumps(_document(plan))
    handle, temporary = tempfile.mkstemp(prefix=path.name, suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_plan(path: str | Path) -> Plan:
    """Reads a plan that `save_plan` wrote.

    Returns:
      An equal plan. Whether it is for a step shows when it is applied to it.

    Raises:
      PlanFileError: The file is not there, is no plan, is damaged, or is of a version that we do not read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, f"it cannot be read: {error}") from error
    try:
        plain = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(path, f"it is no TOML: {error}") from error
    if plain.get("format") != FORMAT or plain.get("version") != VERSION:
        raise _unreadable(path, f"format {plain.get('format')!r}, version {plain.get('version')!r}")
    try:
        return _plan(plain)
    except JaxckptError as error:
        raise _unreadable(path, error.got) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def _unreadable(path: Path, reason: str) -> PlanFileError:
    return PlanFileError(
        f"load_plan({str(path)!r}): this is no plan that we can read.",
        got=reason,
        needed=f'a file with format = "{FORMAT}", version = {VERSION}, as plan.save writes it',
        advice="plan again, or read it with the version of jaxckpt that wrote it",
        path=path,
    )


### Writing


def _document(plan: Plan) -> tomlkit.TOMLDocument:
    document = tomlkit.document()
    document.add(tomlkit.comment(f"A plan of jaxckpt {__version__}: what to do with each residual of one step."))
    document.add(tomlkit.comment("Read it with jaxckpt.load_plan; it fits only the step that it was made for."))
    document.add("format", tomlkit.item(FORMAT))
    document.add("version", tomlkit.item(VERSION))
    document.add("fingerprint", tomlkit.item(plan.fingerprint))
    document.add("strategy", tomlkit.item(plan.strategy))
    document.add("target", tomlkit.item(plan.target))
    if plan.budget_bytes is not None:
        document.add("budget_bytes", _commented(plan.budget_bytes, format_bytes(plan.budget_bytes)))
    document.add("notes", tomlkit.item(list(plan.notes)))
    document.add("static_argnums", tomlkit.item(list(plan.static_argnums)))
    document.add("stages", tomlkit.item(list(plan.stages)))
    if plan.prediction is not None:
        document.add("predicted", _readable(dataclasses.asdict(plan.prediction)))
    if plan.footprint is not None:
        document.add("measured", _readable(plan.footprint.to_dict()))
    for key, entries in (
        ("attempt", map(dataclasses.asdict, plan.attempts)),
        ("decision", _folded(plan)),
    ):
        tables = tomlkit.aot()
        for entry in entries:
            tables.append(_readable(entry))
        if len(tables):
            document.add(key, tables)
    arguments = tomlkit.array()
    for argument in plan.arguments:
        arguments.append(f"{argument.path} {argument.dtype}[{','.join(map(str, argument.shape))}]")
    table = tomlkit.table()
    table.add("flat", arguments.multiline(True))
    document.add("arguments", table)
    return document


def _commented(value: Any, comment: str) -> Any:
    item = tomlkit.item(value)
    item.comment(comment)
    return item


def _readable(plain: Mapping[str, Any]) -> Any:
    """A table whose bytes and seconds say what they are."""
    table = tomlkit.table()
    for key, value in plain.items():
        if value is None:
            continue
        if key.endswith("_bytes") and value >= 1024:
            table.add(key, _commented(value, format_bytes(value)))
        elif key.endswith("_s") and value:
            table.add(key, _commented(value, format_seconds(value)))
        else:
            table.add(key, tomlkit.item(value))
    return table


def _folded(plan: Plan) -> Iterator[dict[str, Any]]:
    """Decisions, the same value of every layer together."""
    groups: dict[tuple[Any, ...], dict[int | None, list[int]]] = {}
    for described in plan.described:
        pattern, layer = _pattern(described.scope)
        decision = plan.decisions[described.value]
        key = (
            pattern, layer is None, described.primitive, described.name, described.shape, described.dtype,
            described.size_bytes, described.source, decision,
        )  # fmt: skip
        groups.setdefault(key, {}).setdefault(layer, []).append(described.value)
    for key, members in groups.items():
        pattern, unlayered, primitive, name, shape, dtype, size_bytes, source, decision = key
        entry: dict[str, Any] = {
            "decision": _WORD[type(decision)],
            **dataclasses.asdict(decision),
            "scope": pattern,
        }
        if not unlayered:
            entry["layers"] = _ranges([layer for layer in members if layer is not None])
        entry |= {"primitive": primitive, "name": name, "dtype": dtype, "shape": list(shape)}
        entry |= {"size_bytes": size_bytes, "source": source}
        entry["values"] = members[None] if unlayered else list(members.values())
        yield entry


def _pattern(scope: str) -> tuple[str, int | None]:
    """A scope with its first number as "*", and that number; a scope with a "*" of its own stays as it is."""
    match = None if "*" in scope else _NUMBER.search(scope)
    if match is None:
        return scope, None
    return scope[: match.start()] + "*" + scope[match.end() :], int(match[0])


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers in the order given, runs of successors folded: "0-11,13"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


### Reading


def _plan(plain: Mapping[str, Any]) -> Plan:
    decided = list(_unfolded(plain.get("decision", [])))
    repeated = len(decided) - len({described.value for described, _ in decided})
    if repeated:
        raise ValueError(f"{repeated} values are decided more than once")
    decided.sort(key=lambda pair: pair[0].value)
    predicted, measured = plain.get("predicted"), plain.get("measured")
    return Plan(
        fingerprint=_typed(plain["fingerprint"], str),
        strategy=_typed(plain["strategy"], str),
        target=_typed(plain["target"], str),
        budget_bytes=None if "budget_bytes" not in plain else _typed(plain["budget_bytes"], int),
        notes=tuple(_typed(note, str) for note in plain["notes"]),
        static_argnums=tuple(_typed(position, int) for position in plain["static_argnums"]),
        stages=tuple(_typed(op, int) for op in plain["stages"]),
        decisions={described.value: decision for described, decision in decided},
        described=tuple(described for described, _ in decided),
        prediction=None if predicted is None else ir.Prediction(**predicted),
        footprint=None if measured is None else Footprint.from_dict(measured),
        attempts=tuple(Attempt(**entry) for entry in plain.get("attempt", [])),
        arguments=tuple(map(_argument, plain["arguments"]["flat"])),
    )


def _unfolded(entries: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Described, ir.Decision]]:
    for entry in entries:
        kind = _DECISIONS[entry["decision"]]
        decision = kind(**{field.name: entry[field.name] for field in dataclasses.fields(kind)})
        layers = _numbers(entry["layers"]) if "layers" in entry else [None]
        values = entry["values"] if "layers" in entry else [entry["values"]]
        for layer, ids in zip(layers, values, strict=True):
            scope = entry["scope"] if layer is None else entry["scope"].replace("*", str(layer), 1)
            for value in ids:
                described = Described(
                    value=_typed(value, int),
                    scope=scope,
                    primitive=_typed(entry["primitive"], str),
                    name=entry.get("name"),
                    shape=tuple(_typed(size, int) for size in entry["shape"]),
                    dtype=_typed(entry["dtype"], str),
                    size_bytes=_typed(entry["size_bytes"], int),
                    source=_typed(entry["source"], str),
                )
                yield described, decision


def _numbers(ranges: str) -> list[int | None]:
    numbers: list[int | None] = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _argument(line: str) -> Argument:
    match = _ARGUMENT.fullmatch(line)
    if match is None:
        raise ValueError(f"no argument: {line!r}")
    shape = tuple(int(size) for size in match["shape"].split(",") if size)
    return Argument(path=match["path"], shape=shape, dtype=match["dtype"])


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
