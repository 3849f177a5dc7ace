"""What is wrong with a configuration, collected, so that all of it is said at once.

Read after `reading`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from jaxckpt._errors import PolicyError, did_you_mean


class Checks:
    """Looks at settings one by one and remembers what is wrong.

    Args:
      reader: The function that was called, for messages.
      needed: What it reads, for messages.
    """

    def __init__(self, reader: str, *, needed: str):
        self.reader = reader
        self.needed = needed
        self.problems: list[str] = []

    def wrong(self, problem: str) -> None:
        """Remembers a problem."""
        self.problems.append(problem)

    def known(self, given: Iterable[object], keys: Iterable[str], *, what: str = "key") -> None:
        """Each of the given is one of the keys; else the closest is said."""
        keys = tuple(keys)
        for key in given:
            if key not in keys:
                hint = did_you_mean(str(key), keys) or f"; there are {', '.join(keys)}"
                self.wrong(f"{key!r} is no {what}{hint}")

    def flag(self, settings: Mapping[str, Any], key: str, *, default: bool) -> bool:
        """The setting, which is true or false."""
        value = settings.get(key, default)
        if isinstance(value, bool):
            return value
        self.wrong(f"{key} = {value!r} is neither true nor false")
        return default

    def number(self, settings: Mapping[str, Any], key: str, *, least: int, most: int = 100_000) -> int | None:
        """The setting, which is a whole number or not given."""
        value = settings.get(key)
        if value is None:
            return None
        if type(value) is int and least <= value <= most:
            return value
        self.wrong(f"{key} = {str(value)[:80]!r} is no whole number of {least} to {most}")
        return None

    def table(self, settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """The setting, which is a table or not given."""
        value = settings.get(key)
        if value is None or isinstance(value, Mapping):
            return value or {}
        self.wrong(f"{key} = {str(value)[:80]!r} is no table")
        return {}

    def one_of(self, settings: Mapping[str, Any], key: str, words: Iterable[str], *, default: str) -> str:
        """The setting, which is one of some words; else the closest is said."""
        words = tuple(words)
        value = settings.get(key, default)
        if isinstance(value, str) and value in words:
            return value
        self.wrong(f"{key} = {value!r} is none of {', '.join(words)}{did_you_mean(str(value), words)}")
        return default

    def texts(self, settings: Mapping[str, Any], key: str, *, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The setting, which is a list of texts."""
        value = settings.get(key)
        if value is None:
            return default
        if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            return tuple(value)
        self.wrong(f"{key} = {value!r} is no list of texts")
        return default

    def done(self) -> None:
        """Ends the looking.

        Raises:
          PolicyError: Something was wrong; all of it is numbered.
        """
        if self.problems:
            self.refuse()

    def refuse(self, *, cause: Exception | None = None) -> NoReturn:
        """Raises what was found.

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
