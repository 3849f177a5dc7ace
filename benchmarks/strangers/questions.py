"""Questions about one step and their answers, asked in a process of its own: `running` starts it.

Read after `rules`, and `benchmarks.asking`.
"""

import sys
from collections.abc import Iterator, Mapping

import jaxckpt
from benchmarks.asking import Answer, Question, answer_all, figures, planned
from benchmarks.strangers.rules import BASELINES, POLICIES, checkpointed
from benchmarks.strangers.table import STRANGERS, Stranger
from jaxckpt import Planner, Step

TARGET = "h200"
WRITTEN, SMALLEST, RULE, BUDGET = "as written", "smallest", "rule ", "budget "
"""Names of questions; the last two are followed by the rule and by bytes."""
LOWERS = 0.999
"""A rule lowers the total if its own is below this share of the total as written."""
UNLIMITED = 2**50
"""Bytes; for strategies that read no budget."""


def questions(stranger: Stranger, answers: Mapping[str, Answer], *, target: str = TARGET) -> Iterator[Question]:
    """All questions about a step, in order; budgets are read from the answers about rules."""
    yield WRITTEN, lambda: figures(jaxckpt.footprint(stranger.full(), target=target))
    for name, policy in POLICIES.items():
        step = stranger.full(checkpointed(policy))
        yield f"{RULE}{name}", lambda step=step: figures(jaxckpt.footprint(step, target=target))
    for name in BASELINES:
        yield f"{RULE}{name}", lambda name=name: planned(stranger.full(), UNLIMITED, target=target, strategy=name)
    for budget_bytes in budgets(answers):
        yield f"{BUDGET}{budget_bytes}", lambda b=budget_bytes: planned(stranger.full(), b, target=target)
    yield SMALLEST, lambda: smallest(stranger.full(), target=target)


def rules(answers: Mapping[str, Answer]) -> dict[str, Answer]:
    """Answers about rules that lower the total, by the rule's name."""
    written_bytes = answers.get(WRITTEN, {}).get("total_bytes", 0)
    return {
        name.removeprefix(RULE): answer
        for name, answer in answers.items()
        if name.startswith(RULE) and answer.get("total_bytes", written_bytes) < LOWERS * written_bytes
    }


def budgets(answers: Mapping[str, Answer]) -> list[int]:
    """Different compiled totals of rules, largest first."""
    return sorted({answer["total_bytes"] for answer in rules(answers).values()}, reverse=True)


def smallest(step: Step, *, target: str) -> Answer:
    """The smallest total that the planner finds without a budget."""
    planner = Planner(step, target=target)
    return figures(planner.floor().footprint) | {"compiles": planner.compile_count}


def main() -> None:
    """Asks all that is not known yet about the step named on the command line."""
    stranger = STRANGERS[sys.argv[1]]
    answer_all(lambda answers: questions(stranger, answers))


if __name__ == "__main__":
    main()
