"""The error of the cost model on steps that none of our models is: predicted against compiled totals and seconds.

    python -m benchmarks.model_error [NAME ...]     # steps of `benchmarks.strangers`; all that are not known by default
    python -m benchmarks.model_error --table

Four plans of each step are compiled as the model wrote them, without a correction: of the strategies "none", "full"
and "every:2", and of the optimal solver at the middle between the least memory and that without a plan. An error is
the predicted figure less the compiled one, as a share of the compiled one. Depths are reduced to what `DEPTHS` says;
widths and rows are those of the battery, because they decide what XLA fuses.
"""

import argparse
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax

from benchmarks.record import RESULTS, keep, made_with, read
from benchmarks.strangers import STRANGERS, Stranger
from jaxckpt import Planner
from jaxckpt.ir import GraphPlan
from jaxckpt.solve import solve

TARGET = "h200"
NAME, PYTHON = "model-error", "py312"
DEPTHS = {"layers": 3, "interactions": 2, "iterations": 4, "steps": 3, "inner": 2}
"""Most layers, and most repetitions of other kinds: four compiles of every step, of seconds each."""
STRATEGIES = ("none", "full", "every:2")
MIDDLE = "middle"
WANTED = {"total": (0.03, 0.10), "seconds": (0.05, 0.15)}
"""The median and the worst error that are wanted: what a search corrects with one more compile, and with two."""

Figures = dict[str, Any]


def reduced(stranger: Stranger) -> Planner:
    """A planner of a step with its depth reduced; `steps` is a number of rows where a step has `environments`."""
    parameters = inspect.signature(stranger.recipe.build).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()} | dict(stranger.sizes)
    depths = {key: min(most, defaults[key]) for key, most in DEPTHS.items() if key in defaults}
    if "environments" in defaults:
        depths.pop("steps")
    return Planner(stranger.recipe.build(**{**stranger.sizes, **depths}), target=TARGET)


def plans(planner: Planner) -> Iterator[tuple[str, Callable[[], GraphPlan]]]:
    """The plans of a step, by name."""
    for name in STRATEGIES:
        yield name, lambda name=name: solve(planner.problem, name)
    yield MIDDLE, lambda: middle(planner)


def middle(planner: Planner) -> GraphPlan:
    """The optimal plan for as many temporaries as lie halfway between the least and those without a plan."""
    least = min(plan.predicted.temp_bytes for plan in planner.solver.min_memory_plans)
    return planner.solver.solve((least + solve(planner.problem, "none").predicted.temp_bytes) // 2)


def measured(planner: Planner, plan: GraphPlan) -> Figures:
    """Predicted and compiled figures of a plan, and the errors."""
    predicted, compiled = plan.predicted, planner.measure(plan).footprint
    return {
        "predicted_bytes": predicted.total_bytes,
        "compiled_bytes": compiled.total_bytes,
        "predicted_s": predicted.step_s,
        "compiled_s": compiled.step_s,
        "total": predicted.total_bytes / compiled.total_bytes - 1,
        "seconds": predicted.step_s / compiled.step_s - 1,
    }


def of_step(stranger: Stranger) -> Figures:
    """Figures of all plans of a step; a plan that cannot be made says why."""
    planner = reduced(stranger)
    found = {}
    for name, make in plans(planner):
        start = time.monotonic()
        try:
            found[name] = measured(planner, make())
            text = "{compiled_bytes:14,} bytes {total:+7.1%}  {compiled_s:.5f} s {seconds:+7.1%}".format(**found[name])
        except Exception as error:  # a benchmark goes on: a failure is a result
            text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            found[name] = {"error": text}
        print(f"{stranger.name:26} {name:8} {text}  ({time.monotonic() - start:.0f} s)", flush=True)
    return found


def table(steps: Mapping[str, Any]) -> str:
    """Median and worst errors by plan and of all, then every plan that is off by more than the wanted worst."""
    rows = [(step, name, each) for step, record in steps.items() for name, each in record["plans"].items()]
    rows = [row for row in rows if "error" not in row[2]]
    lines = ["| plans | steps | total: median | worst | seconds: median | worst |", "|---|--:|--:|--:|--:|--:|"]
    for group in (*STRATEGIES, MIDDLE, "all"):
        chosen = [each for _, name, each in rows if group in (name, "all")]
        if not chosen:
            continue
        errors = [sorted(abs(each[kind]) for each in chosen) for kind in WANTED]
        shares = " | ".join(f"{statistics.median(kind):.1%} | {kind[-1]:.1%}" for kind in errors)
        lines.append(f"| {group} | {len(chosen)} | {shares} |")
    wanted = " | ".join(f"{median:.0%} | {worst:.0%}" for median, worst in WANTED.values())
    lines += [f"| wanted | | {wanted} |", "", "| step | plan | total | seconds |", "|---|---|--:|--:|"]
    for step, name, each in sorted(rows, key=lambda row: -max(abs(row[2][kind]) / WANTED[kind][1] for kind in WANTED)):
        if any(abs(each[kind]) > worst for kind, (_, worst) in WANTED.items()):
            lines.append(f"| {step} | {name} | {each['total']:+.1%} | {each['seconds']:+.1%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="steps, measured anew")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    arguments = parser.parse_args()
    steps = read(NAME, PYTHON)["steps"] if (RESULTS / f"{NAME}-{PYTHON}.json").exists() else {}
    names = () if arguments.table else arguments.names or [name for name in STRANGERS if name not in steps]
    for name in names:
        made = made_with()
        steps[name] = {"date": made["date"], "versions": made["versions"], "plans": of_step(STRANGERS[name])}
        keep(NAME, {"steps": steps})
        jax.clear_caches()
    print(table(steps))


if __name__ == "__main__":
    main()
