"""Checks of a configuration that collect all problems, so that one error names them all.

Read after `reading`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from jaxckpt._errors import PolicyError, did_you_mean


class Checks:
    """Checks settings one by one and collects problems.

    Args:
      reader: The function that was called, for messages.
      needed: What it reads, for messages.
    """

    def __init__(self, reader: str, *, needed: str):
        self.reader = reader
        self.needed = needed
        self.problems: list[str] = []

    def wrong(self, problem: str) -> None:
        """Adds a problem."""
        self.problems.append(problem)

    def known(self, given: Iterable[object], keys: Iterable[str], *, what: str = "key") -> None:
        """Requires that each given key is known; the problem names the closest known key."""
        keys = tuple(keys)
        for key in given:
            if key not in keys:
                hint = did_you_mean(str(key), keys) or f"; there are {', '.join(keys)}"
                self.wrong(f"{key!r} is no {what}{hint}")

    def flag(self, settings: Mapping[str, Any], key: str, *, default: bool) -> bool:
        """The setting, which must be true or false."""
        value = settings.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(f"{key} = {value!r} is neither true nor false")
        return default

    def number(self, settings: Mapping[str, Any], key: str, *, least: int, most: int = 100_000) -> int | None:
        """The setting, which must be a whole number; None where it is not given."""
        value = settings.get(key)
        if value is None:
            return None
        if type(value) is int and least <= value <= most:
            return value
        self.wrong(f"{key} = {str(value)[:80]!r} is no whole number of {least} to {most}")
        return None

    def table(self, settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """The setting, which must be a table; empty where it is not given."""
        value = settings.get(key)
        if value is None or isinstance(value, Mapping):
            return value or {}
        self.wrong(f"{key} = {str(value)[:80]!r} is no table")
        return {}

    def one_of(self, settings: Mapping[str, Any], key: str, words: Iterable[str], *, default: str) -> str:
        """The setting, which must be one of some words; the problem names the closest word."""
        words = tuple(words)
        value = settings.get(key, default)
        if isinstance(value, str) and value in words:
            return value
        self.wrong(f"{key} = {value!r} is none of {', '.join(words)}{did_you_mean(str(value), words)}")
        return default

    def texts(self, settings: Mapping[str, Any], key: str, *, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The setting, which must be a list of texts."""
        value = settings.get(key)
        if value is None:
            return default
        if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            return tuple(value)
        self.wrong(f"{key} = {value!r} is no list of texts")
        return default

    def done(self) -> None:
        """Ends the checks.

        Raises:
          PolicyError: There are problems; the message numbers them.
        """
        if self.problems:
            self.refuse()

    def refuse(self, *, cause: Exception | None = None) -> NoReturn:
        """Raises an error with all problems.

        Raises:
          PolicyError: Always.
        """
        numbered = [f"({i}) {problem}" for i, problem in enumerate(self.problems, 1)]
        raise PolicyError(
            f"{self.reader}: this configuration cannot be read.",
            got="; ".join(numbered if len(numbered) > 1 else self.problems),
            needed=self.needed,
            advice="correct what is named; the rest of the configuration can stay as it is",
            problems=tuple(self.problems),
        ) from cause
