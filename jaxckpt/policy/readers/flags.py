"""Command-line flags as names and values.

Read after `reading`.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_origin

from jaxckpt._errors import closest_names
from jaxckpt.policy.readers.reading import ConfigReader

_TOPICS = ("recompute", "offload", "saved-activations", "checkpoint-activations")


def settings_of_flags(
    flags: Sequence[str] | Mapping[str, Any], hints: Mapping[str, Any], *, switches: Sequence[str], reader: ConfigReader
) -> dict[str, Any]:
    """Values of the flags that have a hint, by name with underscores; others are ignored.

    A flag with the hint of a tuple takes several values; `switches` are true where no value follows.

    Example:
      >>> settings_of_flags(["--layers=2", "--bf16"], {"layers": int}, switches=[], reader=ConfigReader("", needed=""))
      {'layers': 2}
    """
    settings: dict[str, Any] = {}
    for name, values in _pairs(flags, reader):
        key = name.lstrip("-").replace("-", "_")
        if key not in hints:
            _refuse_similar(name, hints, reader)
            continue
        if get_origin(hints[key]) is tuple:
            settings[key] = _listed(values)
        elif len(values) > 1 or not (values or key in switches):
            reader.wrong(f"--{key.replace('_', '-')} takes one value, and got {len(values)}")
        else:
            settings[key] = _value(values[0] if values else True, is_switch=key in switches)
    return {key: value for key, value in settings.items() if value is not None}


def _pairs(flags: Sequence[str] | Mapping[str, Any], reader: ConfigReader) -> list[tuple[str, list[Any]]]:
    """Each flag with the values that follow it."""
    if isinstance(flags, Mapping):
        return [(str(name), [value]) for name, value in flags.items()]
    pairs: list[tuple[str, list[Any]]] = []
    for word in _words(flags, reader):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            pairs.append((name, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
    return pairs


def _words(flags: Sequence[str], reader: ConfigReader) -> list[str]:
    if not isinstance(flags, str):
        return [str(word) for word in flags]
    try:
        return shlex.split(flags)
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


def _refuse_similar(name: str, keys: Iterable[str], reader: ConfigReader) -> None:
    """Reports an unknown flag about recomputation or offloading: a misspelt flag, or one of an unknown version."""
    dashed = name.lstrip("-").replace("_", "-")
    if dashed == "checkpoint-activations":
        advice = "use --recompute-activations, or --recompute-granularity and --recompute-method"
        reader.wrong(f"--{dashed} is no longer valid in Megatron: {advice}")
    elif any(part in dashed for part in _TOPICS):
        closest = closest_names(dashed, [key.replace("_", "-") for key in keys])
        hint = "".join(f"; the closest is --{each}" for each in closest)
        reader.wrong(f"--{dashed} is no known flag{hint}")
