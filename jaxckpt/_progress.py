"""The callback that long pieces of work report to."""

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with a short sentence before each longer piece of work."""


def silent(sentence: str) -> None:
    """Reports nothing."""
