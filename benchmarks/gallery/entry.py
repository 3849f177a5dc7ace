"""An entry of the gallery: a thread, its program, and the program with the thread's advice."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxckpt import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A memory problem that somebody brought to a public thread.

    Attributes:
      name: Repository and number.
      address: The thread.
      problem: The problem in one line.
      written: Builds the program as written, at the thread's sizes by default.
      advised: Builds the program with the advice, for the same sizes; None if that is not a version here.
      advice: The advice in a few words.
      is_advice_timed: False if the advised program has loops whose trip counts XLA does not know: an estimate counts
        such a loop once, and the tables leave it out.
      added: What the thread does not say, and the entry therefore adds; "" if nothing.
      small: Sizes that a CPU runs in a second.
    """

    name: str
    address: str
    problem: str
    written: Callable[..., Step]
    advised: Callable[..., Step] | None = None
    advice: str = "none seen"
    is_advice_timed: bool = True
    added: str = ""
    small: Mapping[str, Any]
