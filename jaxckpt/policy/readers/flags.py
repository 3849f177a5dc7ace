"""Flags as names and values: of a command line, or of a configuration whose tables are within tables.

Read after `reading`.
"""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

from jaxckpt._errors import closest_names
from jaxckpt.policy.readers.reading import ConfigReader

_IS_TABLE = re.compile(r"\s*\{|(?!\s*-)(?:.*\n)*?\s*[\w-]+\s*:(?:\s|$)")
"""The beginning of a configuration in JSON or YAML; a command line begins with a dash, and a key ends in a colon."""
_TOPICS = ("recompute", "offload", "saved-activations", "checkpoint-activations")


def settings_of_flags(
    flags: Sequence[str] | Mapping[str, Any] | Path,
    hints: Mapping[str, Any],
    *,
    switches: Sequence[str],
    reader: ConfigReader,
) -> dict[str, Any]:
    """Values of the flags that have a hint, by name with underscores; the names of others go to `reader.ignored`.

    A flag with the hint of a tuple takes several values; `switches` are true where no value follows.

    Example:
      >>> settings_of_flags(["--layers=2", "--bf16"], {"layers": int}, switches=[], reader=ConfigReader("", needed=""))
      {'layers': 2}
    """
    settings: dict[str, Any] = {}
    if isinstance(flags, str | Path):
        text = reader.text(flags)
        flags = reader.mapping(text, yaml=True) if _IS_TABLE.match(text) else _words(text, reader)
    is_table = isinstance(flags, Mapping)
    for name, values in _leaves(flags) if isinstance(flags, Mapping) else _pairs(flags):
        key = name.lstrip("-").replace("-", "_")
        if key not in hints:
            _note_unknown(name, hints, reader)
            continue
        if is_table and key in settings:
            reader.wrong(f"{key} occurs in two tables")
        if get_origin(hints[key]) is tuple:
            settings[key] = _listed(values)
        elif len(values) > 1 or not (values or key in switches):
            reader.wrong(f"--{key.replace('_', '-')} takes one value, and got {len(values)}")
        else:
            settings[key] = _value(values[0] if values else True, is_switch=key in switches)
    return {key: value for key, value in settings.items() if value is not None}


def _pairs(words: Iterable[object]) -> list[tuple[str, list[Any]]]:
    """Each flag with the values that follow it."""
    pairs: list[tuple[str, list[Any]]] = []
    for word in map(str, words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            pairs.append((name, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
    return pairs


def _leaves(table: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The names and values of a table and of the tables in it."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield str(name), [value]


def _words(text: str, reader: ConfigReader) -> list[str]:
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        reader.wrong(f"it is no command line: {error}")
        return []


def _listed(values: list[Any]) -> Any:
    """Values one by one, with commas between them, or as a list."""
    if len(values) == 1 and not isinstance(values[0], str):
        return values[0]
    return [part for value in values for part in str(value).split(",") if part]


def _value(value: Any, *, is_switch: bool) -> Any:
    if not isinstance(value, str):
        return value
    if is_switch:
        return {"true": True, "false": False, "1": True, "0": False}.get(value.lower(), value)
    return int(value) if value.isdecimal() and len(value) < 10 else value


def _note_unknown(name: str, keys: Iterable[str], reader: ConfigReader) -> None:
    """Refuses an unknown flag that resembles a known one about recomputation or offloading; names any other."""
    dashed = name.lstrip("-").replace("_", "-")
    if dashed == "checkpoint-activations":
        advice = "use --recompute-activations, or --recompute-granularity and --recompute-method"
        reader.wrong(f"--{dashed} is no longer valid in Megatron: {advice}")
    elif not any(part in dashed for part in _TOPICS):
        reader.ignored.append(name.lstrip("-"))
    elif closest := closest_names(dashed, [key.replace("_", "-") for key in keys]):
        reader.wrong(f"--{dashed} is no known flag; the closest is --{closest[0]}")
    else:
        reader.not_carried.append(f"--{dashed} is not known here.")
