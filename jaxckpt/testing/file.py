"""Snapshots as small TOML files that a person can read in a review, one a test and name.

Equal layers are one line, so that what a change of code does to the memory is what `git diff` shows. A digest of the
contents tells an edited or badly merged file from one that was written: a snapshot with a larger total would pass
whatever it should have caught.

Read after `snapshot`.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit

from jaxckpt._errors import SnapshotFileError
from jaxckpt._files import write_whole
from jaxckpt._units import format_bytes
from jaxckpt.ir import fold_layers, layer_ranges, layers_from_ranges, unfolded_scope
from jaxckpt.testing.snapshot import ScopeBytes, Snapshot, natural_order

FORMAT = "jaxckpt snapshot"
VERSION = 1
FOLDER = "__footprints__"

_HEADER = (
    "What a step takes of one device's memory, kept by jaxckpt. Bytes of a scope are those of one layer.",
    "Not to be edited: pytest --jaxckpt-update writes it anew.",
)
_TEXTS = ("target", "jax_version", "compiler_version")
_FIGURES = ("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes", "program_bytes", "host_bytes")
_OWNER = ("format", "version", "digest", "test", "name")
_KEYS = {*_OWNER, *_TEXTS, *_FIGURES, "compiler_options", "total_bytes", "depth", "is_mapped", "scopes"}
_ROW_KEYS = ({"scope", "held_bytes", "peak_bytes"}, {"scope", "layers", "held_bytes", "peak_bytes"})
_MOST_LAYERS = 100_000

_PLAIN_TEST = re.compile(r"[A-Za-z0-9_:]{1,80}(\[(?!.*--)[A-Za-z0-9_.=+,-]{0,60}\])?")
_PLAIN_NAME = re.compile(r"(?!.*--)[A-Za-z0-9_.=+,-]{0,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose snapshot it is.

    Attributes:
      test: With its classes and parameters: "TestGpt::test_step[8]".
      name: Given by the test where it keeps several.
    """

    test: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.test}, name {self.name!r}" if self.name else self.test


def snapshot_path(module: Path, owner: Owner) -> Path:
    """The file of a snapshot: in a folder beside the tests, one more for each file of tests.

    Args:
      module: The file of tests.
      owner: The test and the name.

    Returns:
      A path that says who owns it where file systems allow, and has a digest where they might not.

    Example:
      >>> snapshot_path(Path("tests/test_gpt.py"), Owner(test="TestGpt::test_step[8]", name="eval")).as_posix()
      'tests/__footprints__/test_gpt/TestGpt.test_step-8--eval.toml'
    """
    words = f"{owner.test}--{owner.name}" if owner.name else owner.test
    stem = words.replace("::", ".").replace("[", "-").replace("]", "")
    if not (_PLAIN_TEST.fullmatch(owner.test) and _PLAIN_NAME.fullmatch(owner.name)):
        stem = f"{re.sub(r'[^A-Za-z0-9_.=+,-]+', '_', stem)[:80]}-{_digest([owner.test, owner.name])[:8]}"
    return module.parent / FOLDER / module.stem / f"{stem}.toml"


def save_snapshot(snapshot: Snapshot, path: str | Path, *, owner: Owner) -> None:
    """Writes a snapshot, whole or not at all; folders are made.

    Args:
      snapshot: What to write.
      path: Of the file. One that is there is replaced.
      owner: Whose it is.

    Raises:
      SnapshotFileError: The snapshot holds what a file cannot.
      OSError: The disk is full, or the folder cannot be written to; what was there before is there still.
    """
    path = Path(path)
    try:
        text = _text(_document(snapshot, owner))
        if _snapshot(tomllib.loads(text), owner) != snapshot:
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
    write_whole(path, data)


def load_snapshot(path: str | Path, *, owner: Owner) -> Snapshot:
    """Reads a snapshot that `save_snapshot` wrote.

    Args:
      path: Of the file.
      owner: Whose it must be.

    Returns:
      An equal snapshot.

    Raises:
      SnapshotFileError: The file is damaged, edited, foreign, of another version or another test's.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        raise _unreadable(path, f"it cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"it is no text: {error}") from error
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"it is no TOML: {error}") from error
    if document.get("format") != FORMAT:
        raise _unreadable(path, "some other TOML")
    if document.get("version") != VERSION:
        raise _unreadable(path, f"version {document.get('version')!r}")
    try:
        return _snapshot(document, owner)
    except (ValueError, TypeError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, problem: str) -> SnapshotFileError:
    return SnapshotFileError(
        f"jaxckpt_snapshot: {path} is no snapshot that we can compare with.",
        got=problem,
        needed=f'a file with format = "{FORMAT}", version = {VERSION}, as the fixture wrote it',
        advice="take it from version control (git checkout), or write it anew with pytest --jaxckpt-update",
        path=path,
    )


### As plain data


def _document(snapshot: Snapshot, owner: Owner) -> dict[str, Any]:
    document = {
        "format": FORMAT,
        "version": VERSION,
        "test": owner.test,
        "name": owner.name,
        **{key: getattr(snapshot, key) for key in _TEXTS},
        "compiler_options": [list(pair) for pair in snapshot.compiler_options],
        "total_bytes": snapshot.total_bytes,
        **{key: getattr(snapshot, key) for key in _FIGURES},
        "depth": snapshot.depth,
        "is_mapped": snapshot.is_mapped,
        "scopes": list(_rows(snapshot)),
    }
    return document | {"digest": _digest(document)}


def _rows(snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    def alike(each: ScopeBytes) -> tuple[int, int]:
        return each.held_bytes, each.peak_bytes

    for group in fold_layers(snapshot.scopes, scope=lambda each: each.scope, alike=alike):
        first = group.items[0]
        layers = {"layers": layer_ranges(group.layers)} if group.layers else {}
        yield {"scope": group.scope, **layers, "held_bytes": first.held_bytes, "peak_bytes": first.peak_bytes}


def _snapshot(document: Mapping[str, Any], owner: Owner) -> Snapshot:
    """What a document says.

    Raises:
      ValueError: It is not as it was written, or another's.
      TypeError: A value is of another type.
    """
    if set(document) != _KEYS:
        raise ValueError(f"keys are missing or unknown: {', '.join(sorted(set(document) ^ _KEYS))}")
    contents = {key: value for key, value in document.items() if key != "digest"}
    if document["digest"] != _digest(contents):
        raise ValueError("its digest is not that of its contents: it was edited or merged after it was written")
    found = Owner(test=_typed(str, document["test"]), name=_typed(str, document["name"]))
    if found != owner:
        raise ValueError(f"it is the snapshot of {found}, not of {owner}")
    snapshot = Snapshot(
        **{key: _typed(str, document[key]) for key in _TEXTS},
        **{key: _typed(int, document[key]) for key in _FIGURES},
        compiler_options=tuple(_pair(pair) for pair in _typed(list, document["compiler_options"])),
        depth=_typed(int, document["depth"]),
        is_mapped=_typed(bool, document["is_mapped"]),
        scopes=tuple(sorted(_scopes(document["scopes"]), key=lambda each: natural_order(each.scope))),
    )
    if document["total_bytes"] != snapshot.total_bytes:
        raise ValueError(f"its total is {document['total_bytes']}, and its parts add up to {snapshot.total_bytes}")
    return snapshot


def _scopes(rows: Any) -> Iterator[ScopeBytes]:
    for row in _typed(list, rows):
        if set(_typed(dict, row)) not in _ROW_KEYS:
            raise ValueError(f"a scope with {', '.join(sorted(row))}")
        scope, held_bytes, peak_bytes = (
            _typed(str, row["scope"]),
            *(_typed(int, row[key]) for key in ("held_bytes", "peak_bytes")),
        )
        scopes = [scope]
        if "layers" in row:
            layers = layers_from_ranges(_typed(str, row["layers"]), most=_MOST_LAYERS)
            scopes = [unfolded_scope(scope, layer) for layer in layers]
        yield from (ScopeBytes(scope=each, held_bytes=held_bytes, peak_bytes=peak_bytes) for each in scopes)


def _pair(pair: Any) -> tuple[str, str]:
    name, value = _typed(list, pair)
    return _typed(str, name), _typed(str, value)


def _typed(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    if kind is int and value < 0:
        raise ValueError(f"{value!r} is negative")
    return value


def _digest(contents: Any) -> str:
    text = json.dumps(contents, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


### As text


def _text(document: Mapping[str, Any]) -> str:
    written = tomlkit.document()
    for line in _HEADER:
        written.add(tomlkit.comment(line))
    for key, entry in document.items():
        written.add(key, _lines(entry) if key == "scopes" else _item(key, entry))
    return tomlkit.dumps(written)


def _lines(rows: list[dict[str, Any]]) -> Any:
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
