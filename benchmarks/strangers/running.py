"""One process after the other asks about the steps; what crashes one or takes too long is an answer too."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.asking import Asker, read_records
from benchmarks.record import RESULTS
from benchmarks.strangers.questions import RULE, WRITTEN
from benchmarks.strangers.table import Stranger

PATH = RESULTS / f"strangers-py{platform.python_version_tuple()[0]}{platform.python_version_tuple()[1]}.json"
MODULE = "benchmarks.strangers.questions"
BY_HAND = (WRITTEN, RULE)
"""Beginnings of questions whose answers do not depend on the planner's search."""


def read_steps(path: Path = PATH) -> dict[str, Any]:
    """Records of all steps that were asked about, by name."""
    return read_records(path, "steps")


def run(strangers: Sequence[Stranger], *, seconds: float, again: str | None = None, path: Path = PATH) -> None:
    """Asks what is not known about each step, for at most so many seconds a step.

    Args:
      strangers: The steps, in order.
      seconds: The limit of each.
      again: What to ask anew, one of `benchmarks.asking.AGAIN`, or nothing.
      path: File of the results, written after each answer.
    """
    cases = {each.name: {"family": each.family, "sizes": dict(each.sizes)} for each in strangers}
    Asker(module=MODULE, path=path, key="steps", by_hand=BY_HAND).run(cases, seconds=seconds, again=again)
