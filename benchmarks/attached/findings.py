"""What follows from the answers: errors of memory and of time, the ranking of versions, copies hidden, the headline.

Arithmetic over the one file; nothing here is measured. What has no answer is None or left out, never zero.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

from benchmarks.attached.planning import kernels_of_rows
from benchmarks.attached.questions import AT_RULE, NONE, OFFLOAD, SAME_BUT_SAVED, is_ours
from benchmarks.attached.regression import Errors, RateFit, TimedStep, calibration_from_fit, estimated_s, fit_rates
from jaxckpt import Target
from jaxckpt.calibration.rates import derived_rates
from jaxckpt.cost import Rates
from jaxckpt.machine import Calibration, calibration_from_toml

Parts = Mapping[str, Mapping[str, Any]]
_ALIKE = 0.05
"""Versions whose totals are that close have equal memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One version of one model.

    Attributes:
      model: Its name.
      version: Its name.
      predicted: By the compiler without the device; empty where it was not asked.
      measured: On the device.
      compared: With the step as it is; empty for that step.
    """

    model: str
    version: str
    predicted: Mapping[str, Any]
    measured: Mapping[str, Any]
    compared: Mapping[str, Any]

    @property
    def memory_error(self) -> float | None:
        """The total without the device over that with it, less 1."""
        one, other = self.predicted.get("total_bytes"), self.measured.get("total_bytes")
        return one / other - 1 if one and other else None

    @property
    def causes(self) -> dict[str, int]:
        """Where the total with the device is larger (above 0) or smaller, in bytes, largest first."""
        if not self.predicted:
            return {}
        parts = ("argument", "output", "temp", "program")
        found = {part: self.measured.get(f"{part}_bytes", 0) - self.predicted.get(f"{part}_bytes", 0) for part in parts}
        roles = self.measured.get("peak_by_role", {}), self.predicted.get("peak_by_role", {})
        found["workspace, of temp"] = roles[0].get("workspace", 0) - roles[1].get("workspace", 0)
        return dict(sorted(((k, v) for k, v in found.items() if v), key=lambda pair: -abs(pair[1])))

    @property
    def peak_bytes(self) -> int | None:
        """The allocator's, where it is this version's own."""
        if not self.measured.get("peak_is_its_own"):
            return None
        return self.measured.get("memory_after", {}).get("peak_bytes_in_use")

    @property
    def step(self) -> TimedStep | None:
        """For a fit."""
        if "kernels" not in self.measured or "measured_s" not in self.measured:
            return None
        return TimedStep(
            name=f"{self.model} {self.version}",
            group=self.model,
            kernels=tuple(kernels_of_rows(self.measured["kernels"])),
            measured_s=self.measured["measured_s"],
        )


def rows(parts: Parts) -> Iterator[Row]:
    """All versions that were run, without those that failed."""
    for path, part in parts.items():
        kind, *names = path.split("/")
        if kind == "measured" and "error" not in part:
            model, version = names
            others = (parts.get(f"{each}/{model}/{version}", {}) for each in ("predicted", "compared"))
            predicted, compared = ({} if "error" in other else other for other in others)
            yield Row(model=model, version=version, predicted=predicted, measured=part, compared=compared)


def failures(parts: Parts) -> Iterator[tuple[str, str]]:
    """What went wrong, and the first line of what was said."""
    for path, part in parts.items():
        text = part.get("error") or part.get("note")
        if text:
            yield path, str(text).strip().splitlines()[-1 if "note" in part else 0][:200]


def calibration(parts: Parts) -> Calibration | None:
    """The device's calibration, its rates derived anew from what was measured."""
    part = parts.get("calibration", {})
    if "toml" not in part:
        return None
    made = calibration_from_toml(part["toml"], source="the result's calibration")
    return replace(made, **derived_rates(made.measured))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Estimates of all timed steps by four kinds of rates, in the order of the steps.

    Attributes:
      steps: What was timed.
      former: By the rates that the package shipped when the steps were timed.
      shipped: By the rates that it ships now.
      held_out: Errors of estimates of a model by shipped rates that were fitted again without the model.
      calibrated: By those that were measured of the device; empty where they were not.
      fit: Corrected by the steps themselves; None where there are none.
    """

    steps: tuple[TimedStep, ...]
    former: tuple[float, ...]
    shipped: tuple[float, ...]
    held_out: Errors
    calibrated: tuple[float, ...]
    fit: RateFit | None

    @property
    def fitted(self) -> tuple[float, ...]:
        """By the fit."""
        return () if self.fit is None else tuple(estimated_s(step.kernels, self.fit.rates) for step in self.steps)


def estimates(parts: Parts) -> Estimates:
    """Estimates of what was timed, by all rates that are known."""
    steps = tuple(step for row in rows(parts) if (step := row.step) is not None)
    former = tuple(row.measured["step_s"] for row in rows(parts) if row.step is not None)
    shipped, calibrated = shipped_rates(parts), calibrated_rates(parts)

    def by(rates: Rates | None) -> tuple[float, ...]:
        return () if rates is None else tuple(estimated_s(step.kernels, rates) for step in steps)

    return Estimates(
        steps=steps,
        former=former,
        shipped=by(shipped),
        held_out=fit_rates(steps, shipped).held_out if shipped and steps else Errors(relative=()),
        calibrated=by(calibrated),
        fit=fit_rates(steps, calibrated) if calibrated and steps else None,
    )


def shipped_rates(parts: Parts) -> Rates | None:
    """The device's rates as the package ships them; None for a device that is in no fact file."""
    try:
        return Target(parts.get("device", {}).get("kind", "")).rates
    except LookupError:
        return None


def calibrated_rates(parts: Parts) -> Rates | None:
    """The device's rates as its calibration has them; the rest is its fact file's, found without the device."""
    made = calibration(parts)
    kind = parts.get("device", {}).get("kind", "")
    if made is None:
        return None
    try:
        return Target(kind, calibrated=made).rates
    except LookupError:
        return made.as_rates(name=kind, memory_bytes=parts["device"]["memory"].get("bytes_limit", 0))


def fitted_calibration(parts: Parts) -> Calibration | None:
    """The calibration corrected by the steps that were timed: what may be shipped for the device."""
    made, found = calibration(parts), estimates(parts)
    if made is None or found.fit is None:
        return None
    return calibration_from_fit(found.fit, made, steps=found.steps)


def errors(estimated: Sequence[float], steps: Sequence[TimedStep]) -> list[float]:
    """Estimates over measurements, less 1."""
    return [one / step.measured_s - 1 for one, step in zip(estimated, steps, strict=True)] if estimated else []


def ranking(estimated: Sequence[float], steps: Sequence[TimedStep], *, noise: float = 0.01) -> tuple[int, int]:
    """Of pairs of versions of one model, how many are ranked as measured, and how many pairs there are.

    Pairs whose measured times are within the noise of each other say nothing and are left out.
    """
    right = pairs = 0
    for (one, a), (other, b) in combinations(zip(estimated, steps, strict=True), 2):
        if a.group == b.group and abs(a.measured_s / b.measured_s - 1) > noise:
            pairs += 1
            right += (one < other) == (a.measured_s < b.measured_s)
    return right, pairs


def is_by_hand(version: str) -> bool:
    """True if a version is the step as written or a simple rule."""
    return not is_ours(version) and version != OFFLOAD


def at_equal_memory(parts: Parts) -> Iterator[tuple[Row, Row]]:
    """Our plans, each with the fastest version by hand that takes no more memory than the plan, but for a little.

    A plan whose budget was the total of a rule is compared with this rule too, whatever the rule takes on the device.
    """
    found = list(rows(parts))
    for plan in found:
        if not is_ours(plan.version) or "measured_s" not in plan.measured:
            continue
        limit = (1 + _ALIKE) * plan.measured["total_bytes"]
        by_hand = [
            row
            for row in found
            if row.model == plan.model
            and is_by_hand(row.version)
            and (row.measured["total_bytes"] <= limit or plan.version == AT_RULE + row.version)
        ]
        if by_hand:
            yield plan, min(by_hand, key=lambda row: row.measured["measured_s"])


def slowdowns(parts: Parts, version: str) -> Iterator[tuple[Row, float, float | None]]:
    """A plan of each model over the step as it is, in measured seconds; and the same of the best by hand beside it.

    A model whose plan takes the step's own memory, because its budget could not be met or was not needed, is left out.
    """
    plain = {row.model: row.measured for row in rows(parts) if row.version == NONE}
    beside = {(plan.model, plan.version): best for plan, best in at_equal_memory(parts)}
    for row in rows(parts):
        if row.version != version or row.model not in plain:
            continue
        base = plain[row.model]
        if row.measured["total_bytes"] > 0.7 * base["total_bytes"]:
            continue
        best = beside.get((row.model, version))
        by_hand = None if best is None else best.measured["measured_s"] / base["measured_s"]
        yield row, row.measured["measured_s"] / base["measured_s"], by_hand


def hidden(parts: Parts) -> Iterator[tuple[Row, float, float]]:
    """Offloaded versions: seconds that the copies take alone, both ways, and the share of them that is hidden.

    What is not hidden are the seconds more than those of the version that saves what is offloaded.
    """
    made = calibration(parts)
    speed = None if made is None else made.host_bandwidth_bytes_per_s
    by_name = {(row.model, row.version): row for row in rows(parts)}
    for (model, version), row in by_name.items():
        saved = by_name.get((model, SAME_BUT_SAVED))
        moved_bytes = row.predicted.get("offloaded_bytes")
        if version != OFFLOAD or saved is None or not speed or not moved_bytes:
            continue
        copy_s = 2 * moved_bytes / speed
        shown_s = max(0.0, row.measured["measured_s"] - saved.measured["measured_s"])
        yield row, copy_s, max(0.0, 1 - shown_s / copy_s)


def untuned(parts: Parts) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """Versions that were also compiled with the device but without its autotuner, and what was measured so."""
    by_name = {(row.model, row.version): row for row in rows(parts)}
    for path, part in parts.items():
        kind, *names = path.split("/")
        if kind == "untuned" and "error" not in part and tuple(names) in by_name:
            yield by_name[names[0], names[1]], part


def verdicts(parts: Parts) -> Iterator[tuple[str, str, bool | None]]:
    """What had to be shown: the claim, what was found, and whether it holds; None where nothing was found."""
    memory = [abs(row.memory_error) for row in rows(parts) if row.memory_error is not None]
    yield (
        "total without the device within 2% of that with it",
        f"median {median(memory):.1%}, worst {max(memory):.1%} of {len(memory)}" if memory else "",
        max(memory) <= 0.02 if memory else None,
    )
    found = estimates(parts)
    for name, estimated in (
        ("former", found.former),
        ("shipped", found.shipped),
        ("calibrated", found.calibrated),
        ("fitted", found.fitted),
    ):
        away = list(map(abs, errors(estimated, found.steps)))
        yield (
            f"step time within 10%, median, {name} rates",
            f"median {median(away):.1%}, worst {max(away):.1%} of {len(away)}" if away else "",
            median(away) <= 0.1 if away else None,
        )
        right, pairs = ranking(estimated, found.steps) if estimated else (0, 0)
        yield (
            f"versions of a model ranked as measured in 90% of pairs, {name} rates",
            f"{right} of {pairs}" if pairs else "",
            right >= 0.9 * pairs if pairs else None,
        )
    both = [(plan, best) for plan, best in at_equal_memory(parts) if "measured_s" in best.measured]
    slower = [(plan.measured["measured_s"] / best.measured["measured_s"], plan) for plan, best in both]
    worst = max(slower, key=lambda pair: pair[0], default=None)
    yield (
        "no plan slower than the best by hand of its memory",
        f"{sum(ratio <= 1.01 for ratio, _ in slower)} of {len(slower)}; worst {worst[0]:.2f}x, {worst[1].model}"
        f" {worst[1].version}"
        if worst
        else "",
        all(ratio <= 1.01 for ratio, _ in slower) if slower else None,
    )
    at_60 = list(slowdowns(parts, "plan-60"))
    yield (
        "a plan at 60% of the memory takes at most 1.05x the time",
        "; ".join(
            f"{row.model} {ratio:.3f}x" + ("" if best is None else f", best by hand {best:.3f}x")
            for row, ratio, best in at_60
        ),
        all(ratio <= 1.05 for _, ratio, _ in at_60) if at_60 else None,
    )
    copies = [share for *_, share in hidden(parts)]
    yield (
        "at least 80% of the copies of offloading hidden",
        ", ".join(f"{share:.0%}" for share in copies),
        min(copies) >= 0.8 if copies else None,
    )
    away = [row.compared["gradients"] for row in rows(parts) if row.compared]
    noise = [p["gradients"] for path, p in parts.items() if path.startswith("compared/") and path.endswith("/again")]
    yield (
        "gradients are those of the step as it is",
        f"worst {max(away):.1e} of {len(away)}, the step against itself {max(noise, default=0):.1e}" if away else "",
        max(away) <= max(0.02, 2 * max(noise, default=0)) if away else None,
    )
    batches = parts.get("headline/batches", {})
    cases = {case: parts.get(f"headline/{case}", {}) for case in ("planned", "unplanned", "unplanned-at-planned")}
    known = "planned" in batches and all(cases.values())
    yield (
        "a plan runs a batch at which the step as it is runs out of memory",
        f"{batches['planned']} against {batches['unplanned']}, {batches['planned'] / batches['unplanned']:.1f}x"
        if known
        else "",
        bool(cases["planned"].get("ran") and cases["unplanned-at-planned"].get("out_of_memory")) if known else None,
    )
