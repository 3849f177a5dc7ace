"""Dataclasses as tables of TOML or JSON and back: schema validation and deserialisation by type hints.

A record is a dataclass. Its fields are the keys of its table; a field without a default is a required key, a key that
is no field is an error, and a field that is not compared is not in the table. Hints say what a value must be:

| hint                           | in the table                                                                  |
|--------------------------------|-------------------------------------------------------------------------------|
| `int` `float` `str` `bool`     | the value; a whole number is a `float` too, true and false are no numbers     |
| an enum, a `Literal`           | its value, one of the words                                                   |
| `X` or `None`                  | the value; the key is left out where it is None                               |
| `tuple[X, ...]`, `tuple[X, Y]` | a list                                                                        |
| a dataclass, `dict`            | a table, of a tuple a list of tables                                          |
| `Annotated[..., TABLE]`        | of a tuple of pairs: a table with these keys and values                       |
| `Annotated[..., COLUMNS]`      | of a tuple of records: one table of lists, a fifth of the size of many tables |
| `Annotated[..., POSITIVE]`     | a value within a `Limit`                                                      |

Reading finds every problem of a table, each with the path of its key; what a format asks beyond types is its own to
check. `RecordReader` reads several tables whose problems belong together. `digest` and `read_document` are for files
that hold a digest, a format and a version.
"""

import enum
import functools
import gzip
import hashlib
import json
import math
import tomllib
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jaxckpt._errors import did_you_mean

TomlTable = dict[str, Any]
_Record = TypeVar("_Record")

MOST_PROBLEMS = 20
"""Problems that a message names; a file of another program has thousands."""
_MOST_CHARACTERS = 80
"""Of a wrong value in a message."""


class RecordError(ValueError):
    """A table that is not as its record asks: all problems, required keys that it lacks, keys that are no fields."""

    def __init__(self, problems: Sequence[str], *, missing: Sequence[str] = (), unknown: Sequence[str] = ()):
        self.problems = tuple(problems)
        self.missing = tuple(missing)
        self.unknown = tuple(unknown)
        super().__init__(numbered(problems))


def numbered(problems: Sequence[str]) -> str:
    """Problems in one text, numbered where there are several.

    Example:
      >>> numbered(["no name"]), numbered(["no name", "no size"])
      ('no name', '(1) no name; (2) no size')
    """
    if len(problems) == 1:
        return problems[0]
    shown = "; ".join(f"({number}) {each}" for number, each in enumerate(problems[:MOST_PROBLEMS], 1))
    return f"{shown}; ..." if len(problems) > MOST_PROBLEMS else shown


@dataclass(frozen=True, slots=True)
class Limit:
    """A condition on a value of a type: words that follow those of the type, and the test."""

    words: str
    holds: Callable[[Any], bool]


POSITIVE = Limit(" above 0", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = Limit(" of at least 0", lambda value: 0 <= value < math.inf)
NOT_EMPTY = Limit("", bool)
TABLE = "table"
COLUMNS = "columns"

_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "true or false"),
    dict: ("a table", "tables"),
    Any: ("anything", "anything"),
}
_ACCEPTED: Mapping[Any, tuple[type, ...]] = {int: (int,), float: (float, int), str: (str,), bool: (bool,)}


@dataclass(frozen=True, slots=True)
class _Hint:
    """A hint taken apart: its type without None, its arguments, the limits on its values, and its form in tables."""

    kind: Any
    items: tuple[Any, ...] = ()
    limits: tuple[Limit, ...] = ()
    form: str = ""
    optional: bool = False


@functools.cache
def _parsed(hint: Any) -> _Hint:
    notes: tuple[Any, ...] = ()
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        notes = tuple(rest)
    return _Hint(
        kind=get_origin(hint) or hint,
        items=get_args(hint),
        limits=tuple(note for note in notes if isinstance(note, Limit)),
        form=next((note for note in notes if isinstance(note, str)), ""),
        optional=optional,
    )


@functools.cache
def _hints(kind: Any) -> Mapping[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: hints[each.name] for each in fields(kind) if each.compare}


@functools.cache
def _required(kind: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind) if each.compare and each.default is each.default_factory is MISSING)


def words_for(hint: Any, *, many: bool = False) -> str:
    """A hint in words, to follow "should be".

    Example:
      >>> words_for(tuple[Annotated[int, POSITIVE], ...]), words_for(str | None)
      ('a list of whole numbers above 0', 'a text')
    """
    parsed = _parsed(hint)
    if parsed.kind is tuple:
        if parsed.form == TABLE:
            return f"a table of {words_for(get_args(parsed.items[0])[1], many=True)}"
        if parsed.form == COLUMNS:
            return "a table of columns"
        is_list = parsed.items[-1:] == (...,)
        list_words = f"list{'s' * many} of {words_for(parsed.items[0], many=True)}"
        pair_words = f"{'lists' if many else 'list'} of {len(parsed.items)}"
        return ("" if many else "a ") + (list_words if is_list else pair_words)
    if is_dataclass(parsed.kind):
        return "tables" if many else "a table"
    if isinstance(parsed.kind, type) and issubclass(parsed.kind, enum.Enum):
        return f"one of {', '.join(str(each.value) for each in parsed.kind)}"
    if parsed.kind is Literal:
        return f"one of {', '.join(map(str, parsed.items))}"
    return _WORDS[parsed.kind][many] + "".join(limit.words for limit in parsed.limits)


### Reading


def read_record(kind: type[_Record], table: Any) -> _Record:
    """Reads a table of TOML or JSON into a dataclass; the error has all problems.

    Example:
      >>> @dataclass(frozen=True)
      ... class Point:
      ...     x: int
      ...     name: str = ""
      >>> read_record(Point, {"x": 1})
      Point(x=1, name='')
      >>> read_record(Point, {"nam": True})
      Traceback (most recent call last):
      ...
      jaxckpt._records.RecordError: (1) x is missing: a whole number; (2) nam is no key; the closest is 'name'
    """
    reader = RecordReader()
    record: _Record = reader.record(kind, table, "")
    reader.done()
    return record


class RecordReader:
    """Problems found so far; values with a problem are None."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.missing: list[str] = []
        self.unknown: list[str] = []

    def done(self) -> None:
        """Ends the reading with a `RecordError` if there are problems."""
        if self.problems:
            raise RecordError(self.problems, missing=sorted(self.missing), unknown=sorted(self.unknown))

    def record(self, kind: Any, table: Any, where: str) -> Any:
        """A record of a table whose keys have `where` before them."""
        if not isinstance(table, Mapping):
            return self._wrong(where.rstrip(".: ") or "it", table, "a table")
        before = len(self.problems)
        values = self.values(_hints(kind), table, where, required=_required(kind))
        if len(self.problems) > before:
            return None
        try:
            return kind(**values)
        except ValueError as error:  # a record may refuse values that do not go together
            self.problems.append(": ".join(filter(None, (where.rstrip(".: "), str(error)))))
            return None

    def values(
        self, hints: Mapping[str, Any], table: Mapping[str, Any], where: str = "", *, required: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The values of a table's known keys; a key without a hint is a problem, and so is a missing required one."""
        missing = [name for name in required if name not in table]
        self.missing.extend(missing)
        self.problems.extend(f"{where}{name} is missing: {words_for(hints[name])}" for name in missing)
        values = {}
        for key, value in table.items():
            if key in hints:
                values[key] = self.value(hints[key], value, f"{where}{key}")
            else:
                text = str(key)
                self.unknown.append(text)
                closest = did_you_mean(text, sorted(hints.keys() - table.keys()))
                self.problems.append(f"{where}{text if text.isprintable() else repr(text)} is no key{closest}")
        return values

    def value(self, hint: Any, value: Any, where: str) -> Any:
        """A value of a hinted type."""
        parsed = _parsed(hint)
        kind = parsed.kind
        if kind is Any or (value is None and parsed.optional):
            return value
        if kind is tuple:
            return self._tuple(hint, value, where)
        if is_dataclass(kind):
            return self.record(kind, value, f"{where}.")
        if kind is dict:
            return value if isinstance(value, Mapping) else self._wrong(where, value, words_for(hint))
        if kind is Literal:
            closest = did_you_mean(value, parsed.items) if isinstance(value, str) else ""
            return value if value in parsed.items else self._wrong(where, value, f"{words_for(hint)}{closest}")
        if kind in _ACCEPTED:
            right = type(value) in _ACCEPTED[kind] and all(limit.holds(value) for limit in parsed.limits)
            return value if right else self._wrong(where, value, words_for(hint))
        try:
            return kind(value)
        except ValueError:
            return self._wrong(where, value, words_for(hint))

    def _tuple(self, hint: Any, value: Any, where: str) -> Any:
        parsed = _parsed(hint)
        first, *rest = parsed.items
        if parsed.form == COLUMNS and isinstance(value, dict):
            return self._columns(first, value, where)
        if parsed.form == TABLE and isinstance(value, dict):
            before = len(self.problems)
            pairs = tuple((key, self.value(get_args(first)[1], each, f"{where}.{key}")) for key, each in value.items())
            return pairs if len(self.problems) == before else None
        is_list = rest == [...]
        if parsed.form or not isinstance(value, list | tuple) or not (is_list or len(value) == len(parsed.items)):
            return self._wrong(where, value, words_for(hint))
        hints = [first] * len(value) if is_list else parsed.items
        places = [f"{where} {number}" for number in range(1, len(value) + 1)]
        if is_dataclass(first):
            return tuple(self.record(first, each, f"{place}: ") for each, place in zip(value, places, strict=True))
        return tuple(map(self.value, hints, value, places))

    def _columns(self, kind: Any, columns: Mapping[str, Any], where: str) -> Any:
        """Records of which each field is a list, all of one length."""
        hints, before = _hints(kind), len(self.problems)
        absent = hints.keys() - columns.keys()
        self.problems.extend(f"{where}.{name} is missing: a column" for name in sorted(absent))
        longest = max((len(each) for each in columns.values() if isinstance(each, list)), default=0)
        for name, column in columns.items():
            if name not in hints:
                self.problems.append(f"{where}.{name} is no key{did_you_mean(name, sorted(absent))}")
            elif not isinstance(column, list):
                self._wrong(f"{where}.{name}", column, "a list")
            elif len(column) < longest:
                self.problems.append(f"{where}.{name} is shorter than other columns: {len(column)} of {longest}")
        if len(self.problems) > before:
            return None
        read = {name: self._column(hints[name], column, f"{where}.{name}") for name, column in columns.items()}
        if len(self.problems) > before:
            return None
        return tuple(kind(**dict(zip(read, row, strict=True))) for row in zip(*read.values(), strict=True))

    def _column(self, hint: Any, column: list[Any], where: str) -> Sequence[Any]:
        """The values of a column; plain values of one type are checked together, since memory maps have 100,000s."""
        parsed = _parsed(hint)
        if not parsed.limits and set(map(type, column)) <= set(_ACCEPTED.get(parsed.kind, ())):
            return column
        return [self.value(hint, each, f"{where} {number}") for number, each in enumerate(column, 1)]

    def _wrong(self, where: str, value: Any, words: str) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}..."
        self.problems.append(f"{where} = {shown} should be {words}")


### Writing


def table_from_record(record: Any) -> TomlTable:
    """The table that `read_record` reads; None is left out."""
    kind: type = type(record)
    hints = _hints(kind)
    values = {name: _plain(hint, getattr(record, name)) for name, hint in hints.items()}
    return {name: value for name, value in values.items() if value is not None}


def _plain(hint: Any, value: Any) -> Any:
    parsed = _parsed(hint)
    if isinstance(value, enum.Enum):
        return value.value
    if is_dataclass(value):
        return table_from_record(value)
    if parsed.kind is not tuple or value is None:
        return value
    if parsed.form == TABLE:
        return dict(value)
    if parsed.form == COLUMNS:
        hints = _hints(parsed.items[0])
        return {name: [_plain(each, getattr(item, name)) for item in value] for name, each in hints.items()}
    items = parsed.items[:1] * len(value) if parsed.items[1:] == (...,) else parsed.items
    return [_plain(each, item) for each, item in zip(items, value, strict=True)]


def shared_fields(record: Any, kind: type) -> dict[str, Any]:
    """The values of a record's fields that another dataclass has too, by name."""
    names = {each.name for each in fields(kind)}
    return {each.name: getattr(record, each.name) for each in fields(record) if each.name in names}


### Documents


def digest(contents: Any, *, separators: tuple[str, str] | None = (",", ":")) -> str:
    """A hash of plain data, the same whatever the order of its keys."""
    text = json.dumps(contents, sort_keys=True, separators=separators, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def parse_toml(text: str) -> TomlTable:
    """The table of a TOML text."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # tomllib's own error, and what its parser lets through
        raise RecordError([f"it is no TOML: {error}"]) from error


def parse_json(text: str) -> Any:
    """The data of a JSON text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError([f"it is no JSON: {error}"]) from error


def read_document(path: Path, parse: Callable[[str], Any], *, format_: str, version: int) -> TomlTable:
    """The document in a file, packed with gzip or not, whose keys "format" and "version" are as asked."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
    except UnicodeDecodeError as error:
        raise RecordError([f"it is no text: {error}"]) from error
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError([f"it cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    document = parse(text)
    said = document if isinstance(document, dict) else {}
    if (said.get("format"), said.get("version")) != (format_, version):
        raise RecordError([f"format {said.get('format')!r}, version {said.get('version')!r}"])
    return said
