"""Checks of a configuration that collect all problems, so that one error names them all.

Read after `reading`.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NoReturn

from jaxckpt._errors import PolicyError
from jaxckpt._records import Limit, RecordReader, numbered


def one_of(words: Iterable[str]) -> Any:
    """The hint of a setting that is one of some words."""
    return Literal.__getitem__(tuple(words))


def several(words: Iterable[str]) -> Any:
    """The hint of a setting that is a list of some words."""
    return tuple.__class_getitem__((one_of(words), ...))


@lru_cache(maxsize=1024)
def integer(least: int, most: int = 100_000) -> Any:
    """The hint of a setting that is a whole number within limits, or not given."""
    return Annotated[int, Limit(f" of {least} to {most}", lambda value: least <= value <= most)] | None


class Checks(RecordReader):
    """Reads settings one by one and collects problems.

    `reader` (the called function) and `needed` are for the message.
    """

    def __init__(self, reader: str, *, needed: str):
        super().__init__()
        self.reader = reader
        self.needed = needed

    def wrong(self, problem: str) -> None:
        """Adds a problem."""
        self.problems.append(problem)

    def table(self, settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """The setting, which must be a table; empty where it is not given."""
        return self.value(dict | None, settings.get(key), key) or {}

    def done(self) -> None:
        """Raises a `PolicyError` that numbers the problems, if there are any."""
        if self.problems:
            self.refuse()

    def refuse(self, *, cause: Exception | None = None) -> NoReturn:
        """Raises a `PolicyError` with all problems."""
        raise PolicyError(
            f"{self.reader}: this configuration cannot be read.",
            got=numbered(self.problems),
            needed=self.needed,
            advice="correct what is named; the rest of the configuration can stay as it is",
            problems=tuple(self.problems),
        ) from cause
