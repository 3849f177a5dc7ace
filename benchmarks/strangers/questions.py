"""Questions about one step and their answers, asked in a process of its own: `running` starts it.

The process reads what is known from standard input and writes one JSON object a line: a question before it is asked,
and the answer. So a crash or a hang leaves the answers before it, and the question that it belongs to.

Read after `rules`.
"""

import dataclasses
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

import jaxckpt
from benchmarks.strangers.rules import BASELINES, POLICIES, checkpointed
from benchmarks.strangers.table import STRANGERS, Stranger
from jaxckpt import Footprint, InfeasibleBudgetError, Plan, Planner, Step

TARGET = "h200"
WRITTEN, SMALLEST, RULE, BUDGET = "as written", "smallest", "rule ", "budget "
"""Names of questions; the last two are followed by the rule and by bytes."""
LOWERS = 0.999
"""A rule lowers the total if its own is below this share of the total as written."""
UNLIMITED = 2**50
"""Bytes; for strategies that read no budget."""

Answer = dict[str, Any]
Question = tuple[str, Callable[[], Answer]]


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


def planned(step: Step, budget_bytes: int, *, target: str, strategy: str = "optimal") -> Answer:
    """A plan from a fresh planner, or its refusal."""
    planner = Planner(step, target=target)
    try:
        plan = planner.plan(budget=budget_bytes, strategy=strategy)
    except InfeasibleBudgetError as error:
        return {"refused": True, "minimum_bytes": error.minimum_bytes, "compiles": planner.compile_count}
    return of_plan(plan) | {"compiles": planner.compile_count}


def smallest(step: Step, *, target: str) -> Answer:
    """The smallest total that the planner finds without a budget."""
    planner = Planner(step, target=target)
    return figures(planner.floor().footprint) | {"compiles": planner.compile_count}


def figures(footprint: Footprint) -> Answer:
    """Memory and estimated seconds of a compiled step."""
    names = ("total_bytes", "temp_bytes", "step_s", "compile_s")
    return {name: getattr(footprint, name) for name in names}


def of_plan(plan: Plan) -> Answer:
    """Figures of a plan, as compiled and as predicted, with every attempt on the way."""
    assert plan.footprint is not None
    return figures(plan.footprint) | {
        "predicted_bytes": plan.predicted.total_bytes,
        "predicted_s": plan.predicted.step_s,
        "gap": plan.predicted.gap,
        "attempts": [dataclasses.asdict(attempt) for attempt in plan.attempts],
    }


def answered(make: Callable[[], Answer]) -> Answer:
    """An answer, or what went wrong, with the seconds that it took."""
    begun = time.perf_counter()
    try:
        answer = make()
    except Exception as error:  # a benchmark goes on: a failure is a result
        answer = {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": traceback.format_exc()[-4000:]}
    return answer | {"wall_s": time.perf_counter() - begun}


def main() -> None:
    """Asks all that is not known yet about the step named on the command line."""
    answers: dict[str, Answer] = json.load(sys.stdin)
    for name, make in questions(STRANGERS[sys.argv[1]], answers):
        if name in answers:
            continue
        print(json.dumps({"question": name}), flush=True)
        answers[name] = answered(make)
        print(json.dumps({"question": name, "answer": answers[name]}), flush=True)
        jax.clear_caches()


if __name__ == "__main__":
    main()
