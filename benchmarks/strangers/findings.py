"""Findings: each plan beside the rule whose total was its budget, and what is wrong with any of them.

Read after `questions`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.frontier_tables import geometric_mean
from benchmarks.strangers.questions import BUDGET, SMALLEST, WRITTEN, Answer, rules
from jaxckpt._units import format_bytes

SLOWER = 0.005
"""A plan is slower than a rule if it takes this share more of the rule's time."""
_LEAST_OVERHEAD = 1e-3
"""Of the step as written; a rule that costs less has no ratio."""
_LEAST_RATIO = 1e-2
"""Of a plan that costs nothing, so that a geometric mean exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A rule, and the plan at its compiled total.

    Attributes:
      step: The step's name.
      rule: The rule's name.
      by_rule: Its answer.
      plan: The planner's answer to the same total; {} if it was not asked.
      written_s: Estimated seconds of the step as written.
    """

    step: str
    rule: str
    by_rule: Answer
    plan: Answer
    written_s: float

    @property
    def slower(self) -> float | None:
        """Seconds of the plan beyond those of the rule, as a share of these; None without a plan."""
        return self.plan["step_s"] / self.by_rule["step_s"] - 1 if "step_s" in self.plan else None

    @property
    def ratio(self) -> float | None:
        """The plan's overhead by the rule's; None without a plan, or where the rule costs nothing."""
        overhead_s = self.by_rule["step_s"] - self.written_s
        if self.slower is None or overhead_s <= _LEAST_OVERHEAD * self.written_s:
            return None
        return max((self.plan["step_s"] - self.written_s) / overhead_s, _LEAST_RATIO)

    @property
    def finding(self) -> tuple[int, float, str]:
        """Severity, size and words of what is wrong; a severity of 0 is right."""
        at = f"`{self.rule}`, {format_bytes(self.by_rule['total_bytes'])}"
        if "error" in self.plan:
            return 4, 0.0, f"fails at {at}: {self.plan['error'].splitlines()[0][:80]}"
        if "refused" in self.plan:
            least = self.plan["minimum_bytes"]
            return 3, least / self.by_rule["total_bytes"], f"refused at {at}: at least {format_bytes(least)}"
        if self.slower is not None and self.slower > SLOWER:
            times = f"{1e3 * self.plan['step_s']:.2f} ms by {1e3 * self.by_rule['step_s']:.2f} ms"
            return 2, self.slower, f"{self.slower:+.1%} slower at {at}: {times}"
        return 0, 0.0, ""


def comparisons(steps: Mapping[str, Any]) -> list[Compared]:
    """Each rule of each step beside the plan at its total, as far as both are known."""
    found = []
    for step, record in steps.items():
        answers = record["answers"]
        for rule, answer in rules(answers).items():
            plan = answers.get(f"{BUDGET}{answer['total_bytes']}", {})
            written_s = answers[WRITTEN]["step_s"]
            found.append(Compared(step=step, rule=rule, by_rule=answer, plan=plan, written_s=written_s))
    return [compared for compared in found if compared.plan]


def smallest_bytes(answers: Mapping[str, Answer]) -> int | None:
    """The smallest compiled total that the planner found: without a budget, in a plan or in a refusal."""
    ours = [answer for name, answer in answers.items() if name == SMALLEST or name.startswith(BUDGET)]
    totals = [answer[key] for answer in ours for key in ("total_bytes", "minimum_bytes") if key in answer]
    return min(totals, default=None)


def least_rule(answers: Mapping[str, Answer]) -> tuple[int, str] | None:
    """The smallest total of a rule, with its name."""
    return min(((answer["total_bytes"], name) for name, answer in rules(answers).items()), default=None)


def too_large(answers: Mapping[str, Answer]) -> float:
    """The share by which the planner's smallest total is above the smallest of a rule; 0 if it is not, or not known."""
    ours, rule = smallest_bytes(answers), least_rule(answers)
    return 0.0 if ours is None or rule is None else max(0.0, ours / rule[0] - 1)


def failures(steps: Mapping[str, Any]) -> Iterator[tuple[str, str, Answer]]:
    """Questions that got an error for an answer, with step and name."""
    for step, record in steps.items():
        for name, answer in record["answers"].items():
            if "error" in answer:
                yield step, name, answer


def tables(steps: Mapping[str, Any]) -> str:
    """All tables, one below the other."""
    compared = comparisons(steps)
    return "\n".join([summary(steps, compared), per_step(steps, compared), listed(steps, compared)])


def summary(steps: Mapping[str, Any], compared: Sequence[Compared]) -> str:
    """One line a promise."""
    severities = [each.finding[0] for each in compared]
    known = [name for name, record in steps.items() if least_rule(record["answers"])]
    ratio = geometric_mean([each.ratio for each in compared if each.ratio is not None])
    families = {record["family"] for record in steps.values()}
    rows = [
        ("steps, families", f"{len(steps)}, {len(families)}"),
        ("rules that lower the total, with an answer to their total", str(len(compared))),
        ("refused where a rule fits", str(severities.count(3))),
        (f"slower than the rule by more than {SLOWER:.1%}", str(severities.count(2))),
        (
            "smallest total at or below every rule's",
            f"{sum(not too_large(steps[name]['answers']) for name in known)} of {len(known)}",
        ),
        ("overhead by the rule's, geometric mean", "" if ratio is None else f"{ratio:.2f}"),
        ("questions that failed", str(sum(1 for _ in failures(steps)))),
    ]
    return "\n".join(["| | |", "|---|---:|", *(f"| {text} | {figure} |" for text, figure in rows), ""])


def per_step(steps: Mapping[str, Any], compared: Sequence[Compared]) -> str:
    """One row a step, with its worst finding."""
    lines = [
        "| step | family | as written | smallest by a rule | smallest by a plan | overhead by the rule's | worst |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name, record in steps.items():
        answers = record["answers"]
        mine = [each for each in compared if each.step == name]
        ratio = geometric_mean([each.ratio for each in mine if each.ratio is not None])
        rule, ours = least_rule(answers), smallest_bytes(answers)
        cells = [
            name,
            record["family"],
            _written(answers),
            f"{format_bytes(rule[0])} (`{rule[1]}`)" if rule else "",
            format_bytes(ours) if ours else "",
            "" if ratio is None else f"{ratio:.2f}",
            worst(answers, mine),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _written(answers: Mapping[str, Answer]) -> str:
    written = answers.get(WRITTEN, {})
    return f"{format_bytes(written['total_bytes'])}, {1e3 * written['step_s']:.2f} ms" if "step_s" in written else ""


def worst(answers: Mapping[str, Answer], compared: Sequence[Compared]) -> str:
    """The worst finding about a step; "" if all is right."""
    found = [each.finding for each in compared]
    if share := too_large(answers):
        found.append((1, share, f"smallest total {share:+.1%} above a rule's"))
    found += [(4, 0.0, f"{name}: {answer['error'].splitlines()[0][:80]}") for name, answer in answers.items()
              if "error" in answer]  # fmt: skip
    return max(found, default=(0, 0.0, ""))[2]


def listed(steps: Mapping[str, Any], compared: Sequence[Compared]) -> str:
    """Every finding, worst first, and every failure."""
    found = sorted(((*each.finding, each.step) for each in compared if each.finding[0]), reverse=True)
    lines = [f"- {step}: {text}" for _, _, text, step in found]
    lines += [f"- {step}, {name}: {answer['error'].splitlines()[0]}" for step, name, answer in failures(steps)]
    return "\n".join([*lines, ""])
