"""What the files of `benchmarks.frontier` say: tables in docs/frontier.md, and a picture of each model beside it.

    python -m benchmarks.frontier_tables

A policy written by hand is compared at its own compiled total: its overhead is the estimated time that the best policy
of that total or less takes above the model without rematerialisation, ours that of the plan made for that total.
Read after `frontier`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from benchmarks.frontier import FOLDER, OFFLOAD, OPTIMAL, SMALLEST, WITHOUT
from benchmarks.frontier_pictures import draw
from benchmarks.models import PLANNER
from benchmarks.record import read
from benchmarks.tables import ROOT, write
from jaxckpt._units import format_bytes

PAGE = ROOT / "docs" / "frontier.md"
PICTURES = ROOT / "docs" / "frontier"
_LEAST_OVERHEAD = 1e-3
"""Of the time without rematerialisation. A policy that costs less is no measure of a plan."""
_LEAST_RATIO = 0.1
"""A plan that costs nothing counts as a tenth of the policy, or the mean of all would be zero with it."""
_MUCH = 0.1
"""Predictions that are further off are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One policy written by hand, and our plan for what it takes.

    Attributes:
      model: The model.
      name: The policy.
      total_bytes: What it takes, compiled.
      without_s: Estimated seconds of the model without rematerialisation.
      best_s: Of the fastest policy that takes so much or less.
      best: Its name.
      ours_s: Of our plan; None where it was refused or failed.
      ours_bytes: What our plan takes, likewise.
    """

    model: str
    name: str
    total_bytes: int
    without_s: float
    best_s: float
    best: str
    ours_s: float | None
    ours_bytes: int | None

    @property
    def best_overhead(self) -> float:
        """As a share of the time without rematerialisation."""
        return self.best_s / self.without_s - 1

    @property
    def our_overhead(self) -> float | None:
        """As a share of the time without rematerialisation."""
        return None if self.ours_s is None else self.ours_s / self.without_s - 1

    @property
    def ratio(self) -> float | None:
        """Ours by the best one's; None where there is no plan, or where the best one costs nothing either."""
        if self.our_overhead is None or self.best_overhead <= _LEAST_OVERHEAD:
            return None
        return max(self.our_overhead / self.best_overhead, _LEAST_RATIO)

    @property
    def is_above(self) -> bool:
        """Whether a policy written by hand is faster than our plan, in no more memory, or there is no plan."""
        return self.ours_s is None or self.ours_s > self.best_s


def read_all(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The files of all models that have one, in the order of the zoo."""
    paths = (folder / f"{name}.json" for name in PLANNER)
    return [json.loads(path.read_text()) for path in paths if path.exists()]


def comparisons(data: Mapping[str, Any]) -> list[Comparison]:
    """Each policy written by hand that takes less than the model without rematerialisation, by falling total.

    Of policies that come to the same program only the first one counts.
    """
    found = good(data["by_hand"])
    if WITHOUT not in found:
        return []
    without, plans = found[WITHOUT], data.get("plans", {}).get(OPTIMAL, {})
    made: list[Comparison] = []
    seen: set[tuple[int, float]] = set()
    for name, each in found.items():
        ours = plans.get(f"as {name}")
        program = each["total_bytes"], each["step_s"]
        if program in seen or each["total_bytes"] >= without["total_bytes"] or ours is None:
            continue
        seen.add(program)
        best = min(
            (k for k, other in found.items() if other["total_bytes"] <= each["total_bytes"]),
            key=lambda k: found[k]["step_s"],
        )
        made.append(
            Comparison(
                model=data["made_for"]["model"],
                name=name,
                total_bytes=each["total_bytes"],
                without_s=without["step_s"],
                best_s=found[best]["step_s"],
                best=best,
                ours_s=ours.get("step_s"),
                ours_bytes=ours.get("total_bytes"),
            )
        )
    return sorted(made, key=lambda c: -c.total_bytes)


def good(records: Mapping[str, Any]) -> dict[str, Any]:
    """Those that neither failed nor were refused."""
    return {name: each for name, each in records.items() if "total_bytes" in each}


def our_plans(data: Mapping[str, Any], strategy: str = OPTIMAL) -> list[dict[str, Any]]:
    """The distinct plans of a model, by rising total."""
    distinct = {
        (each["total_bytes"], each["step_s"], each["predicted_s"]): each
        for each in good(data.get("plans", {}).get(strategy, {})).values()
    }
    return [distinct[key] for key in sorted(distinct)]


def mean_ratio(compared: Sequence[Comparison]) -> float | None:
    """The geometric mean of those that have one; None of none."""
    ratios = [c.ratio for c in compared if c.ratio is not None]
    return geometric_mean(ratios) if ratios else None


def byte_errors(data: Mapping[str, Any]) -> list[float]:
    """Predicted by compiled total, less one, of each plan."""
    return [plan["predicted_bytes"] / plan["total_bytes"] - 1 for plan in our_plans(data)]


def second_errors(data: Mapping[str, Any]) -> list[float]:
    """Predicted by estimated seconds, less one, of each plan."""
    return [plan["predicted_s"] / plan["step_s"] - 1 for plan in our_plans(data)]


def gaps(data: Mapping[str, Any]) -> list[float]:
    """How much of its step each plan could save at most, as its solver says."""
    return [plan["gap"] for plan in our_plans(data) if plan.get("gap") is not None]


def compiles(data: Mapping[str, Any]) -> list[int]:
    """How many versions were compared for each total asked for: compiles, had it been the only one."""
    return [
        len(each["attempts"])
        for label, each in data.get("plans", {}).get(OPTIMAL, {}).items()
        if "attempts" in each and label != SMALLEST
    ]


def least(records: Mapping[str, Any]) -> int | None:
    """The smallest total."""
    return min((each["total_bytes"] for each in good(records).values()), default=None)


def slower_with_more(data: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Plans that are slower than one of a smaller total asked for, with the fastest such."""
    asked = [each for each in good(data.get("plans", {}).get(OPTIMAL, {})).values() if "budget_bytes" in each]
    asked.sort(key=lambda each: each["budget_bytes"])
    for i, plan in enumerate(asked):
        before = min(asked[:i], key=lambda each: each["step_s"], default=plan)
        if before["step_s"] < plan["step_s"]:
            yield plan, before


def summary_table(models: Sequence[Mapping[str, Any]]) -> str:
    """One row a model."""
    lines = [
        "| model | as written | overhead ratio | faster policies | smallest total, by hand | by jaxckpt |"
        " error of predicted total | of predicted seconds | gap | compiles |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for data in models:
        compared, by_hand = comparisons(data), data["by_hand"]
        without = good(by_hand).get(WITHOUT)
        cells = [
            data["made_for"]["model"] + ("" if not data["made_for"]["sizes"] else f" {data['made_for']['sizes']}"),
            "" if without is None else f"{format_bytes(without['total_bytes'])}, {1e3 * without['step_s']:.1f} ms",
            number(mean_ratio(compared)),
            f"{sum(c.is_above for c in compared)} of {len(compared)}",
            size(least(by_hand)),
            size(least(data.get("plans", {}).get(OPTIMAL, {}))),
            spread(byte_errors(data)),
            spread(second_errors(data)),
            f"{median(gaps(data)):.1%}" if gaps(data) else "",
            f"{median(compiles(data)):g}" if compiles(data) else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    compared = [c for data in models for c in comparisons(data)]
    errors = [[e for data in models for e in of(data)] for of in (byte_errors, second_errors)]
    counts, saved = ([n for data in models for n in of(data)] for of in (compiles, gaps))
    cells = [
        "**all**",
        "",
        f"**{number(mean_ratio(compared))}**",
        f"**{sum(c.is_above for c in compared)} of {len(compared)}**",
        "",
        "",
        *(f"**{spread(each)}**" for each in errors),
        f"**{median(saved):.1%}**" if saved else "",
        f"**{median(counts):g}**" if counts else "",
    ]
    return "\n".join([*lines, f"| {' | '.join(cells)} |", "", made_with(models), ""])


def policies_table(models: Sequence[Mapping[str, Any]]) -> str:
    """One row a policy written by hand."""
    lines = [
        "| model | policy around each block | compiled total | overhead of the best policy | of jaxckpt | ratio |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for compared in (c for data in models for c in comparisons(data)):
        best = f"{compared.best_overhead:+.1%}" + ("" if compared.best == compared.name else f" (`{compared.best}`)")
        ours = "none" if compared.our_overhead is None else f"{compared.our_overhead:+.1%}"
        lines.append(
            f"| {compared.model} | `{compared.name}` | {format_bytes(compared.total_bytes)} | {best}"
            f" | {f'**{ours}**' if compared.is_above else ours} | {number(compared.ratio)} |"
        )
    return "\n".join([*lines, ""])


def offload_table(models: Sequence[Mapping[str, Any]]) -> str:
    """One row a policy, of those models that were planned with the host's memory too."""
    lines = [
        "| model | at the total of | overhead of the best policy | of jaxckpt | offload allowed, 50 GB/s | 300 GB/s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for data in models:
        kept = [data.get("plans", {}).get(strategy, {}) for strategy in (OFFLOAD, f"{OFFLOAD}:300")]
        for c in comparisons(data) if any(kept) else ():
            plans = [plan.get(f"as {c.name}", {}) for plan in (data["plans"][OPTIMAL], *kept)]
            overheads = (f"{plan['step_s'] / c.without_s - 1:+.1%}" if "step_s" in plan else "" for plan in plans)
            lines.append(f"| {c.model} | `{c.name}` | {c.best_overhead:+.1%} | {' | '.join(overheads)} |")
    return "\n".join([*lines, ""])


def peaks_table(models: Sequence[Mapping[str, Any]]) -> str:
    """Buffers alive at the peak of each model's smallest plan."""
    lines = ["| model | smallest total | arguments and results | at the peak of temporaries |", "|---|---:|---:|---|"]
    for data in models:
        plans = our_plans(data)
        if plans:
            plan = plans[0]
            roles = ", ".join(f"{role} {format_bytes(n)}" for role, n in list(plan["peak_by_role"].items())[:4])
            fixed = format_bytes(plan["total_bytes"] - plan["temp_bytes"])
            name = data["made_for"]["model"]
            lines.append(f"| {name} | {format_bytes(plan['total_bytes'])} | {fixed} | {roles} |")
    return "\n".join([*lines, ""])


def pictures(models: Sequence[Mapping[str, Any]]) -> str:
    """Markdown of all pictures."""
    names = [data["made_for"]["model"] for data in models]
    return "\n".join(f"![{name}](frontier/{name}.svg)" for name in names) + "\n"


def findings(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Sentences on what is not as it must be."""
    for data in models:
        name = data["made_for"]["model"]
        for c in comparisons(data):
            if c.is_above:
                ours = "none" if c.ours_s is None else f"{1e3 * c.ours_s:.2f} ms"
                yield f"{name}: at {size(c.total_bytes)} {c.best} takes {1e3 * c.best_s:.2f} ms, our plan {ours}"
        for plan, before in slower_with_more(data):
            yield (
                f"{name}: the plan for {size(plan['budget_bytes'])} takes {1e3 * plan['step_s']:.2f} ms,"
                f" that for {size(before['budget_bytes'])} takes {1e3 * before['step_s']:.2f} ms"
            )
        for plan in our_plans(data):
            bytes_off, seconds_off = plan["predicted_bytes"] / plan["total_bytes"], plan["predicted_s"] / plan["step_s"]
            if max(abs(bytes_off - 1), abs(seconds_off - 1)) > _MUCH:
                took = f"{size(plan['total_bytes'])}, {1e3 * plan['step_s']:.2f} ms"
                yield f"{name}: a plan of {took} was predicted to take {bytes_off:.2f} and {seconds_off:.2f} of that"
        for place, records in (("by hand", data["by_hand"]), *data.get("plans", {}).items()):
            for label, each in records.items():
                if "error" in each:
                    yield f"{name}: {place} {label}: {each['error'].splitlines()[0]}"


def partitioner_table() -> str:
    """FLOPs recomputed for equal saved bytes: PyTorch's partitioner and two objectives of our solver."""
    data = read("partitioner")
    without_s = data["no remat"]["step_s"]
    lines = [
        "| saved per block | recomputed by PyTorch | by jaxckpt, least FLOPs | least seconds | steps of both plans |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in data["rows"].values():
        ours = [row[objective] for objective in ("by flops", "by seconds")]
        again = " | ".join(f"{each['recomputed_gflop']:,.0f} GFLOP" for each in ours)
        steps = ", ".join(f"{1e3 * each['step_s']:.2f} ms" for each in ours)
        lines.append(
            f"| {row['kept_mib_per_block']} MiB | {row['theirs']['recomputed_gflop']:,.0f} GFLOP | {again} | {steps} |"
        )
    return "\n".join([*lines, "", f"Without rematerialisation {1e3 * without_s:.2f} ms. {made_with([data])}", ""])


def spread(errors: Sequence[float]) -> str:
    """The median of the sizes of errors, and the worst."""
    if not errors:
        return ""
    return f"{median(map(abs, errors)):.1%}, worst {max(errors, key=abs):+.1%}"


def size(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


def number(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def made_with(models: Sequence[Mapping[str, Any]]) -> str:
    """With what the files were made, in a sentence."""
    made = [data["made_with"] for data in models]
    versions = sorted({each["versions"]["jax"] for each in made})
    dates = sorted({each["date"] for each in made})
    return f"jax {', '.join(versions)}, compiled for an H200, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."


def main() -> None:
    models = read_all()
    tables = {
        "frontier": summary_table(models),
        "frontier policies": policies_table(models),
        "frontier offload": offload_table(models),
        "frontier peaks": peaks_table(models),
        "frontier pictures": pictures(models),
        "frontier partitioner": partitioner_table(),
    }
    write(PAGE, tables)
    PICTURES.mkdir(exist_ok=True)
    for data in models:
        draw(data, PICTURES / f"{data['made_for']['model']}.svg")
    for sentence in findings(models):
        print(sentence)


if __name__ == "__main__":
    main()
