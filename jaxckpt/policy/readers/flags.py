"""Command-line flags as names and values.

Read after `checks`.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, get_origin

from jaxckpt._errors import closest_names
from jaxckpt.policy.readers.checks import Checks

_TOPICS = ("recompute", "offload", "saved-activations", "checkpoint-activations")
_GONE = "checkpoint-activations"


def settings_of_flags(
    flags: Sequence[str] | Mapping[str, Any], hints: Mapping[str, Any], *, switches: Sequence[str], checks: Checks
) -> dict[str, Any]:
    """Values of the flags that have a hint, by name with underscores; others are ignored.

    A flag with the hint of a tuple takes several values; `switches` are true where no value follows.

    Example:
      >>> settings_of_flags(["--layers=2", "--bf16"], {"layers": int}, switches=[], checks=Checks("", needed=""))
      {'layers': 2}
    """
    settings: dict[str, Any] = {}
    for name, values in _pairs(flags, checks):
        key = name.lstrip("-").replace("-", "_")
        if key not in hints:
            _refuse_similar(name, hints, checks)
            continue
        if get_origin(hints[key]) is tuple:
            settings[key] = _listed(values)
        elif len(values) > 1 or not (values or key in switches):
            checks.wrong(f"--{key.replace('_', '-')} takes one value, and got {len(values)}")
        else:
            settings[key] = _value(values[0] if values else True, is_switch=key in switches)
    return {key: value for key, value in settings.items() if value is not None}


def _pairs(flags: Sequence[str] | Mapping[str, Any], checks: Checks) -> Iterator[tuple[str, list[Any]]]:
    """Each flag with the values that follow it."""
    if isinstance(flags, Mapping):
        yield from ((str(name), [value]) for name, value in flags.items())
        return
    name = ""
    values: list[Any] = []
    for word in _words(flags, checks):
        if word.startswith("--"):
            if name:
                yield name, values
            name, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if name:
        yield name, values


def _words(flags: Sequence[str], checks: Checks) -> list[str]:
    if isinstance(flags, str):
        try:
            return shlex.split(flags)
        except ValueError as error:
            checks.wrong(f"it is no command line: {error}")
            return []
    return [str(word) for word in flags]


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


def _refuse_similar(name: str, keys: Iterable[str], checks: Checks) -> None:
    """Reports an unknown flag about recomputation or offloading: a misspelt flag, or one of an unknown version."""
    dashed = name.lstrip("-").replace("_", "-")
    if dashed == _GONE:
        checks.wrong(
            f"--{_GONE} is no longer valid in Megatron: use --recompute-activations, or --recompute-granularity and "
            "--recompute-method"
        )
    elif any(part in dashed for part in _TOPICS):
        closest = closest_names(dashed, [key.replace("_", "-") for key in keys])
        hint = "".join(f"; the closest is --{each}" for each in closest)
        checks.wrong(f"--{dashed} is no known flag{hint}")
