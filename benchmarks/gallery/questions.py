"""Questions about one entry and their answers, asked in a process of its own."""

import sys
from collections.abc import Iterator, Mapping, Sequence

import jaxckpt
from benchmarks.asking import Answer, Question, answer_all, figures, planned
from benchmarks.gallery.entry import Entry
from benchmarks.gallery.table import ENTRIES
from jaxckpt import Planner, Step

TARGET = "h200"
WRITTEN, ADVISED, SMALLEST, PIECES, BUDGET = "as written", "advised", "smallest", "rows in pieces", "budget "
"""Names of questions; the last is followed by bytes."""
_HEAD = "head"
"""Purpose of the bytes of a loss head: where a plan leaves such bytes, rows in pieces are asked for too."""
LOWERS = 0.999
"""Advice lowers the total if its own is below this share of the total as written."""


def questions(entry: Entry, answers: Mapping[str, Answer]) -> Iterator[Question]:
    """All questions about an entry, in order; the budget is read from the answers before it."""
    yield WRITTEN, lambda: figures(jaxckpt.footprint(entry.written(), target=TARGET))
    if entry.advised is not None:
        step = entry.advised()
        yield ADVISED, lambda: figures(jaxckpt.footprint(step, target=TARGET))
    budget_bytes = budget(answers)
    if budget_bytes is not None:
        yield f"{BUDGET}{budget_bytes}", lambda: planned(entry.written(), budget_bytes, target=TARGET)
    yield SMALLEST, lambda: smallest(entry.written())
    if _HEAD in answers.get(SMALLEST, {}).get("purposes", ()):
        yield PIECES, lambda: smallest(entry.written(), allow=("recompute", "chunk"))


def budget(answers: Mapping[str, Answer]) -> int | None:
    """The total of the advice, or half of the total as written where the advice does not lower it; None if unknown."""
    written_bytes = answers.get(WRITTEN, {}).get("total_bytes")
    if written_bytes is None:
        return None
    advised_bytes = answers.get(ADVISED, {}).get("total_bytes", written_bytes)
    return advised_bytes if advised_bytes < LOWERS * written_bytes else written_bytes // 2


def smallest(step: Step, allow: Sequence[str] = ("recompute",)) -> Answer:
    """The smallest plan, what its memory is for, and how its loops are tiled."""
    planner = Planner(step, target=TARGET, allow=allow)
    plan = planner.smallest()
    return figures(plan.footprint) | {
        "compiles": planner.compile_count,
        "tiled": [[each.outer, each.inner] for each in plan.plan.loop_tilings],
        "purposes": {str(share.holder): share.size_bytes for share in planner.floor().shares},
    }


def main() -> None:
    """Asks all that is not known yet about the entry named on the command line."""
    entry = ENTRIES[sys.argv[1]]
    answer_all(lambda answers: questions(entry, answers))


if __name__ == "__main__":
    main()
