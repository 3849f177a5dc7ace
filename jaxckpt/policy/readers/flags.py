"""Command-line flags as names and values.

Read after `checks`.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jaxckpt._errors import closest_names
from jaxckpt.policy.readers.checks import Checks

_TOPICS = ("recompute", "offload", "saved-activations", "checkpoint-activations")
_GONE = "checkpoint-activations"


def settings_of_flags(
    flags: Sequence[str] | Mapping[str, Any],
    *,
    keys: Sequence[str],
    switches: Sequence[str],
    lists: Sequence[str],
    numbers: Sequence[str],
    checks: Checks,
) -> dict[str, Any]:
    """Values of the known flags by name; others are ignored. A value of another kind stays a text.

    `keys` are names of the known flags, with underscores; `switches` are true where no value follows, `lists` take
    several values, `numbers` a whole number.

    Example:
      >>> settings_of_flags(["--num-layers=12", "--bf16"], keys=["num_layers"], switches=[], lists=[],
      ...     numbers=["num_layers"], checks=Checks("here", needed=""))
      {'num_layers': 12}
    """
    settings: dict[str, Any] = {}
    for name, values in _pairs(flags, checks):
        key = name.lstrip("-").replace("-", "_")
        if key not in keys:
            _refuse_similar(name, keys, checks)
            continue
        if key in lists:
            settings[key] = _listed(values)
        elif len(values) > 1 or not (values or key in switches):
            checks.wrong(f"--{key.replace('_', '-')} takes one value, and got {len(values)}")
        else:
            settings[key] = _value(key, values[0] if values else True, switches, numbers)
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


def _value(key: str, value: Any, switches: Sequence[str], numbers: Sequence[str]) -> Any:
    if key in switches and isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}.get(value.lower(), value)
    if key in numbers and isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value


def _refuse_similar(name: str, keys: Sequence[str], checks: Checks) -> None:
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
