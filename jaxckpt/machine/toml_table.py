"""What the TOML files of a target have in common: reading one, and refusing it with all that is wrong. No jax."""

import pathlib
import tomllib
from collections.abc import Callable, Sequence
from typing import Any

from jaxckpt._errors import TargetError, UnknownTargetError

Refusal = Callable[[Sequence[str]], TargetError]
"""The error for what is wrong with a file, a sentence a problem."""


def text_of(path: str | pathlib.Path, *, called: str, needed: str, advice: str) -> str:
    """The text of a user's file.

    Args:
      path: The file.
      called: What it should be, for messages: "fact file".
      needed: What would do.
      advice: What to do.

    Raises:
      UnknownTargetError: There is no such file.
    """
    try:
        return pathlib.Path(path).read_text("utf-8")
    except OSError as error:
        raise UnknownTargetError(
            f"{called} {path} cannot be read.",
            got=f'"{path}" ({error.strerror})',
            needed=needed,
            advice=advice,
            name=str(path),
        ) from error


def table_of(text: str, *, refused: Refusal) -> dict[str, Any]:
    """The table that a text holds; `refused` gives the error where it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise refused([f"no TOML: {error}"]) from error


def refusal(sentence: str, problems: Sequence[str], *, needed: str, advice: str, source: str) -> TargetError:
    """The error of a file with its problems numbered; they are in `problems` too."""
    return TargetError(
        sentence,
        got="; ".join(f"({number}) {problem}" for number, problem in enumerate(problems, 1)),
        needed=needed,
        advice=advice,
        source=source,
        problems=tuple(problems),
    )
