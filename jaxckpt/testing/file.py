"""Snapshots as small TOML files that a person can read in a review, one for each test and name.

Equal layers are one line, so that what a change of code does to the memory is what `git diff` shows. A digest of the
contents tells an edited or badly merged file from one that was written: a snapshot with a larger total would pass
whatever it should have caught.

Read after `snapshot`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomlkit

from jaxckpt._errors import SnapshotFileError
from jaxckpt._files import write_atomically
from jaxckpt._records import RecordReader, TomlTable, digest, parse_toml, read_document, table_from_record
from jaxckpt._units import format_bytes
from jaxckpt.ir.layers import fold_layers, layer_ranges, layers_from_ranges, unfolded_scope
from jaxckpt.testing.snapshot import Bytes, ScopeBytes, Snapshot, natural_order

FORMAT = "jaxckpt snapshot"
VERSION = 1
FOLDER = "__footprints__"

_HEADER = (
    "What a step takes of one device's memory, kept by jaxckpt. Bytes of a scope are those of one layer.",
    "Not to be edited: pytest --jaxckpt-update writes it anew.",
)
_MOST_LAYERS = 100_000

_PLAIN_TEST = re.compile(r"[A-Za-z0-9_:]{1,80}(\[(?!.*--)[A-Za-z0-9_.=+,-]{0,60}\])?")
_PLAIN_NAME = re.compile(r"(?!.*--)[A-Za-z0-9_.=+,-]{0,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A test with its classes and parameters ("TestGpt::test_step[8]"), and a name where it keeps several."""

    test: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.test}, name {self.name!r}" if self.name else self.test


def snapshot_path(module: Path, owner: Owner) -> Path:
    """The file of a snapshot: in a folder beside the tests, one more for each file of tests.

    Its name says who owns it where file systems allow, and has a digest where they might not.

    Example:
      >>> snapshot_path(Path("tests/test_gpt.py"), Owner(test="TestGpt::test_step[8]", name="eval")).as_posix()
      'tests/__footprints__/test_gpt/TestGpt.test_step-8--eval.toml'
    """
    words = f"{owner.test}--{owner.name}" if owner.name else owner.test
    stem = words.replace("::", ".").replace("[", "-").replace("]", "")
    if not (_PLAIN_TEST.fullmatch(owner.test) and _PLAIN_NAME.fullmatch(owner.name)):
        stem = f"{re.sub(r'[^A-Za-z0-9_.=+,-]+', '_', stem)[:80]}-{digest([owner.test, owner.name])[:8]}"
    return module.parent / FOLDER / module.stem / f"{stem}.toml"


def save_snapshot(snapshot: Snapshot, path: str | Path, *, owner: Owner) -> None:
    """Writes a test's snapshot atomically; folders are created, and an existing file is replaced.

    Raises:
      SnapshotFileError: The snapshot has values that a file cannot hold.
      OSError: The disk is full, or the folder cannot be written to; an existing file is unchanged.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> from jaxckpt.testing import load_snapshot, save_snapshot, snapshot_from_footprint
      >>> from jaxckpt.testing.file import Owner
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> snapshot, owner = snapshot_from_footprint(made), Owner(test="test_step")
      >>> path = pathlib.Path(tempfile.mkdtemp(), "test_step.toml")
      >>> save_snapshot(snapshot, path, owner=owner)
      >>> load_snapshot(path, owner=owner) == snapshot
      True
    """
    path = Path(path)
    try:
        text = _text(_table(snapshot, owner))
        if _snapshot(parse_toml(text), owner) != snapshot:
            raise ValueError("it does not read back equal")
        data = text.encode()
    except (ValueError, TypeError) as error:
        raise SnapshotFileError(
            f"save_snapshot({str(path)!r}): this snapshot cannot be written.",
            got=str(error),
            needed="texts and numbers as snapshot_from_footprint makes them",
            advice="report it, if snapshot_from_footprint made it",
            path=path,
        ) from error
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)


def load_snapshot(path: str | Path, *, owner: Owner) -> Snapshot:
    """Reads a snapshot that `save_snapshot` wrote; an equal one is returned.

    Raises:
      SnapshotFileError: The file is damaged, edited, foreign, of another version or another test's.

    Example:
      >>> import pathlib, tempfile, jaxckpt
      >>> from jaxckpt.testing import load_snapshot, save_snapshot, snapshot_from_footprint
      >>> from jaxckpt.testing.file import Owner
      >>> made = jaxckpt.Footprint(argument_bytes=8, output_bytes=8, alias_bytes=8, temp_bytes=64, target="h200")
      >>> snapshot, owner = snapshot_from_footprint(made), Owner(test="test_step")
      >>> path = pathlib.Path(tempfile.mkdtemp(), "test_step.toml")
      >>> save_snapshot(snapshot, path, owner=owner)
      >>> load_snapshot(path, owner=owner).temp_bytes
      64
    """
    path = Path(path)
    try:
        return _snapshot(read_document(path, parse_toml, format_=FORMAT, version=VERSION), owner)
    except (ValueError, RecursionError) as error:
        raise SnapshotFileError(
            f"jaxckpt_snapshot: {path} is no snapshot that can be compared.",
            got=str(error),
            needed=f'a file with format = "{FORMAT}", version = {VERSION}, as the fixture wrote it',
            advice="take it from version control (git checkout), or write it anew with pytest --jaxckpt-update",
            path=path,
        ) from error


### As a record


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A scope in a file, or one scope of several layers."""

    scope: str
    layers: str | None = None
    held_bytes: Bytes
    peak_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    """The keys of a file around those of its snapshot; scopes are folded."""

    format: str = FORMAT
    version: int = VERSION
    test: str
    name: str
    total_bytes: int
    scopes: tuple[_Line, ...]
    digest: str = ""


_AROUND = tuple(each.name for each in fields(_Envelope))


def _table(snapshot: Snapshot, owner: Owner) -> TomlTable:
    lines = tuple(_lines(snapshot))
    envelope = _Envelope(test=owner.test, name=owner.name, total_bytes=snapshot.total_bytes, scopes=lines)
    around = table_from_record(envelope)
    folded = {"scopes": around.pop("scopes")}
    del around["digest"]
    table = around | table_from_record(snapshot) | folded
    return table | {"digest": _digest(table)}


def _digest(table: Mapping[str, Any]) -> str:
    return digest({key: value for key, value in table.items() if key != "digest"})


def _lines(snapshot: Snapshot) -> Iterator[_Line]:
    def alike(each: ScopeBytes) -> tuple[int, int]:
        return each.held_bytes, each.peak_bytes

    for group in fold_layers(snapshot.scopes, scope=lambda each: each.scope, alike=alike):
        layers = layer_ranges(group.layers) if group.layers else None
        held_bytes, peak_bytes = alike(group.items[0])
        yield _Line(scope=group.scope, layers=layers, held_bytes=held_bytes, peak_bytes=peak_bytes)


def _snapshot(table: TomlTable, owner: Owner) -> Snapshot:
    """The snapshot in a file's table."""
    reader = RecordReader()
    around = {key: value for key, value in table.items() if key in _AROUND}
    envelope: _Envelope = reader.record(_Envelope, around, "")
    snapshot: Snapshot = reader.record(Snapshot, {key: table[key] for key in table.keys() - around.keys()}, "")
    reader.done()
    if envelope.digest != _digest(table):
        raise ValueError("its digest is not that of its contents: it was edited or merged after it was written")
    found = Owner(test=envelope.test, name=envelope.name)
    if found != owner:
        raise ValueError(f"it is the snapshot of {found}, not of {owner}")
    scopes = sorted(_scopes(envelope.scopes), key=lambda each: natural_order(each.scope))
    snapshot = replace(snapshot, scopes=tuple(scopes))
    if envelope.total_bytes != snapshot.total_bytes:
        raise ValueError(f"its total is {envelope.total_bytes}, and its parts add up to {snapshot.total_bytes}")
    return snapshot


def _scopes(lines: Iterable[_Line]) -> Iterator[ScopeBytes]:
    for line in lines:
        scopes = [line.scope]
        if line.layers is not None:
            layers = layers_from_ranges(line.layers, most=_MOST_LAYERS)
            scopes = [unfolded_scope(line.scope, layer) for layer in layers]
        yield from (ScopeBytes(scope=each, held_bytes=line.held_bytes, peak_bytes=line.peak_bytes) for each in scopes)


### As text


def _text(document: Mapping[str, Any]) -> str:
    written = tomlkit.document()
    for line in _HEADER:
        written.add(tomlkit.comment(line))
    for key, entry in document.items():
        written.add(key, _array(entry) if key == "scopes" else _item(key, entry))
    return tomlkit.dumps(written)


def _array(rows: list[dict[str, Any]]) -> Any:
    """One line a scope, with its bytes in units for people behind it."""
    lines = tomlkit.array()
    for row in rows:
        line = tomlkit.inline_table()
        line.update(row)
        lines.add_line(line, comment=f"held {format_bytes(row['held_bytes'])}, peak {format_bytes(row['peak_bytes'])}")
    if rows:
        lines.add_line(indent="")
    return lines


def _item(key: str, entry: Any) -> Any:
    item: Any = tomlkit.item(entry)
    if key.endswith("_bytes") and entry >= 1024:
        item.comment(format_bytes(entry))
    return item
