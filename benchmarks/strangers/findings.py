"""Findings: each plan beside the rule whose total was its budget, and what is wrong with any of them.

Read after `questions`.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median
from typing import Any

from benchmarks.asking import Answer
from benchmarks.strangers.questions import BUDGET, SMALLEST, WRITTEN, rules
from jaxckpt._units import format_bytes

SLOWER = 0.005
"""A plan is slower than a rule if it takes this share more of the rule's time."""
_LEAST_OVERHEAD = 1e-3
"""Of the step as written; a rule that costs less has no ratio."""
_LEAST_RATIO = 1e-2
"""Of a plan that costs nothing, so that a geometric mean exists."""


REPORTED = {
    "readme-tanh": "every:2",
    "tanh-14": "full",
    "residual-gelu-12": "nothing_saveable",
    "mindspore-attention": "nothing_saveable",
    "graph-attention-2m": "nothing_saveable",
    "potential-forces": "nothing_saveable",
    "lstm-language-model": "dots_saveable",
    "scanned-decoder-16": "dots_saveable",
}
"""Steps on which an earlier planner was worse than a rule, or left memory unused, each with a rule to compare with."""


class Severity(enum.IntEnum):
    """Kinds of findings, the worst last."""

    TOO_LARGE = enum.auto()
    SLOWER = enum.auto()
    REFUSED = enum.auto()
    FAILED = enum.auto()


@dataclass(frozen=True, order=True, slots=True)
class Finding:
    """Something that is wrong with a plan; findings compare by how bad they are.

    Attributes:
      severity: Its kind.
      share: By how much the plan is worse than the rule, as a share.
      text: The same in words.
    """

    severity: Severity
    share: float
    text: str


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
    def finding(self) -> Finding | None:
        """What is wrong with the plan; None if nothing is."""
        total_bytes = self.by_rule["total_bytes"]
        at = f"at `{self.rule}`, {format_bytes(total_bytes)}:"
        if "error" in self.plan:
            return Finding(Severity.FAILED, 0.0, f"fails {at} {first_line(self.plan)}")
        if "refused" in self.plan:
            least = self.plan["minimum_bytes"]
            return Finding(Severity.REFUSED, least / total_bytes - 1, f"refused {at} at least {format_bytes(least)}")
        if self.slower is not None and self.slower > SLOWER:
            times = f"{1e3 * self.plan['step_s']:.2f} ms by {1e3 * self.by_rule['step_s']:.2f} ms"
            return Finding(Severity.SLOWER, self.slower, f"{self.slower:+.1%} slower {at} {times}")
        return None


def first_line(answer: Answer) -> str:
    """The first line of an error, cut to the width of a table's cell."""
    return answer["error"].splitlines()[0][:100]


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
    """The smallest compiled total that the planner found; None unless it was asked for, or a refusal names one.

    Plans for budgets alone say little of the smallest total.
    """
    ours = [answer for name, answer in answers.items() if name == SMALLEST or name.startswith(BUDGET)]
    if "total_bytes" not in answers.get(SMALLEST, {}) and not any("refused" in answer for answer in ours):
        return None
    return min(answer[key] for answer in ours for key in ("total_bytes", "minimum_bytes") if key in answer)


def least_rule(answers: Mapping[str, Answer]) -> tuple[int, str] | None:
    """The smallest total of a rule, with its name."""
    return min(((answer["total_bytes"], name) for name, answer in rules(answers).items()), default=None)


def too_large(answers: Mapping[str, Answer]) -> float:
    """The share by which the planner's smallest total is above every rule's; 0 if it is not, or not known."""
    ours, rule = smallest_bytes(answers), least_rule(answers)
    return 0.0 if ours is None or rule is None else max(0.0, ours / rule[0] - 1)


def slower_with_more(answers: Mapping[str, Answer]) -> int:
    """Number of budgets whose plan is slower than that of a smaller budget."""
    plans = sorted((int(name.removeprefix(BUDGET)), each) for name, each in answers.items() if name.startswith(BUDGET))
    seconds = [each["step_s"] for _, each in plans if "step_s" in each]
    return sum(later > (1 + SLOWER) * min(seconds[:i]) for i, later in enumerate(seconds) if i)


def failures(steps: Mapping[str, Any]) -> Iterator[tuple[str, str, Answer]]:
    """Questions that got an error for an answer, with step and name."""
    for step, record in steps.items():
        for name, answer in record["answers"].items():
            if "error" in answer:
                yield step, name, answer


def tables(steps: Mapping[str, Any]) -> str:
    """All tables, one below the other."""
    compared = comparisons(steps)
    return "\n".join([summary(steps, compared), reported(compared), per_step(steps, compared), listed(steps, compared)])


def summary(steps: Mapping[str, Any], compared: Sequence[Compared]) -> str:
    """One line a promise."""
    severities = [finding.severity for each in compared if (finding := each.finding) is not None]
    answers = [record["answers"] for record in steps.values()]
    known = [each for each in answers if least_rule(each) and smallest_bytes(each)]
    small = sum(not too_large(each) for each in known)
    compiles = [each.plan["compiles"] for each in compared if "compiles" in each.plan]
    errors = [error for each in compared if (error := model_error(each.plan)) is not None]
    rows = [
        ("steps, families", f"{len(steps)}, {len({record['family'] for record in steps.values()})}"),
        ("rules that lower the total, with a plan or a refusal at their total", str(len(compared))),
        ("refused where a rule fits", str(severities.count(Severity.REFUSED))),
        (f"slower than the rule by more than {SLOWER:.1%}", str(severities.count(Severity.SLOWER))),
        ("smallest total at or below every rule's", f"{small} of {len(known)}"),
        ("larger budgets whose plan is slower", str(sum(map(slower_with_more, answers)))),
        ("overhead by the rule's, geometric mean", mean_ratio(compared)),
        ("compiles, median and most", f"{median(compiles):g}, {max(compiles)}" if compiles else ""),
        (
            "error of the first prediction, median and most",
            f"{median(errors):.1%}, {max(errors):.1%}" if errors else "",
        ),
        ("questions that failed", str(sum(1 for _ in failures(steps)))),
    ]
    return "\n".join(["| | |", "|---|---:|", *(f"| {text} | {figure} |" for text, figure in rows), ""])


def mean_ratio(compared: Sequence[Compared]) -> str:
    """The geometric mean of the ratios of overheads; "" without any."""
    ratios = [each.ratio for each in compared if each.ratio is not None]
    return f"{geometric_mean(ratios):.2f}" if ratios else ""


def model_error(plan: Answer) -> float | None:
    """The share by which the first predicted total is off, before any correction; None where nothing was compiled."""
    if not plan.get("attempts"):
        return None
    first = plan["attempts"][0]
    return abs(first["predicted_bytes"] / first["measured_bytes"] - 1)


def per_step(steps: Mapping[str, Any], compared: Sequence[Compared]) -> str:
    """One row a step, with its worst finding."""
    lines = [
        "| step | family | as written | smallest by a rule | smallest by a plan | overhead by the rule's | worst |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for name, record in steps.items():
        answers = record["answers"]
        of_step = [each for each in compared if each.step == name]
        rule, ours = least_rule(answers), smallest_bytes(answers)
        cells = [
            name,
            record["family"],
            figures(answers.get(WRITTEN, {})),
            f"{format_bytes(rule[0])} (`{rule[1]}`)" if rule else "",
            format_bytes(ours) if ours else "",
            mean_ratio(of_step),
            worst(answers, of_step),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def reported(compared: Sequence[Compared]) -> str:
    """One row for each step of `REPORTED`: the rule, and the plan at its total."""
    lines = ["| step | rule | by the rule | by the plan at that total | compiles |", "|---|---|---:|---:|---:|"]
    for each in compared:
        if REPORTED.get(each.step) == each.rule and "step_s" in each.plan:
            cells = [each.step, f"`{each.rule}`", figures(each.by_rule), figures(each.plan), str(each.plan["compiles"])]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def figures(answer: Answer) -> str:
    """Memory and time of a compiled step; "" if there are none."""
    return f"{format_bytes(answer['total_bytes'])}, {1e3 * answer['step_s']:.2f} ms" if "step_s" in answer else ""


def worst(answers: Mapping[str, Answer], compared: Sequence[Compared]) -> str:
    """The worst finding about a step; "" if all is right."""
    found = [finding for each in compared if (finding := each.finding) is not None]
    if share := too_large(answers):
        found.append(Finding(Severity.TOO_LARGE, share, f"smallest total {share:+.1%} above a rule's"))
    for name, answer in answers.items():
        if "error" in answer:
            found.append(Finding(Severity.FAILED, 0.0, f"{name}: {first_line(answer)}"))
    return max(found).text if found else ""


def listed(steps: Mapping[str, Any], compared: Sequence[Compared]) -> str:
    """Every finding, worst first, and every failure."""
    found = sorted(((each.finding, each.step) for each in compared if each.finding is not None), reverse=True)
    lines = [f"- {step}: {finding.text}" for finding, step in found]
    lines += [f"- {step}, {name}: {first_line(answer)}" for step, name, answer in failures(steps)]
    return "\n".join([*lines, ""])
