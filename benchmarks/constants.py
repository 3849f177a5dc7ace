"""Each tuning constant against a smaller and a larger value: the plans, the model's error, or the planned steps.

    python -m benchmarks.constants [NAME ...]     # constants by a part of their names; all by default
    python -m benchmarks.constants --table

Constants are compared in four ways, each with a fixed set of small steps for an H200:

- Effort of solvers (`Effort`, and constants of `jaxckpt.solve`): predicted seconds of plans for budgets, and bytes of
  those of least memory, as geometric means over those with today's value, and CPU seconds of the solver. Nothing is
  compiled. There is no local search, but for its own constants: on steps as small as these it hides the rest, on large
  ones it does not run.
- The model (constants of `jaxckpt.cost` and `jaxckpt.schedule`): predicted against compiled totals and seconds of the
  same plans.
- Reports (constants of `jaxckpt.planner.floor`): the floors of smallest plans that name the same remedies.
- Searches (`Limits`): seconds and totals of the plans that are returned, and the number of compiles. The compiler is
  the model, off by a few per cent.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Any

from benchmarks import meshes
from benchmarks.models import MODELS
from benchmarks.record import RESULTS, keep, read
from benchmarks.strangers import STRANGERS
from jaxckpt import BatchSearch, Footprint, Frontier, Offloading, Planner, Step, max_batch
from jaxckpt.ir import GraphPlan
from jaxckpt.planner import floor_of, frontier_of
from jaxckpt.planner.gc_pause import collector_paused
from jaxckpt.planner.limits import Limits
from jaxckpt.planner.model_error import CompiledPlan
from jaxckpt.policy import load_policy
from jaxckpt.solve import OptimalSolver, Problem, named_strategy, plan_from_policy, solve
from jaxckpt.solve.effort import Effort, with_default_effort

TARGET = "h200"
NAME, PYTHON = "constants", "py312"
SHARES = (0.1, 0.5)
"""Budgets: how far from the least predicted temporaries to those without a plan."""
OFFLOADING_POLICY = "inputs_offloaded"
LEAST = " least"
"""Plans of about the least memory of a step, that of the least first: candidates before a budget is refused."""
LOCAL_SEARCH = ("Effort.op_runs", "Effort.fewest_replays")
CORRECTIONS = ("Effort.compositions", "Effort.tolerance")
"""The composition misjudges the bytes of moved values too."""
Figures = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step that is solved.

    Attributes:
      make: Makes the step.
      options: Of the planner.
      is_compiled: True if its plans are compiled too, for the model and the searches.
    """

    make: Callable[[], Step]
    options: Mapping[str, Any] = field(default_factory=dict)
    target: str = TARGET
    is_compiled: bool = True


def _model(name: str, **sizes: Any) -> Step:
    task = MODELS[name].step(**sizes)
    return Step(task.step, task.args, donate_argnums=task.donate_argnums)


def _on_mesh() -> Step:
    return Step(*meshes.step_over(meshes.LAYOUTS["tensor"]))


_MOVES = {"allow": ("recompute", "offload"), "offload": Offloading(bandwidth_bytes_per_s=50e9)}
CASES: Mapping[str, Case] = {
    "readme-tanh": Case(make=lambda: STRANGERS["readme-tanh"].full()),
    "gpt2-small": Case(make=lambda: _model("gpt2-small", layers=2)),
    "gpt2-scan": Case(make=lambda: _model("gpt2-scan", layers=6)),
    "residual-gelu": Case(make=lambda: STRANGERS["residual-gelu-12"].shallow()),
    "lstm": Case(make=lambda: STRANGERS["lstm-language-model"].shallow()),
    "graph-attention": Case(make=lambda: STRANGERS["graph-attention-2m"].shallow()),
    "offload": Case(make=lambda: _model("gpt2-small", layers=4), options=_MOVES, is_compiled=False),
    "mesh": Case(make=_on_mesh, options={"allow": ("recompute", "partition")}, target="h200:8", is_compiled=False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """The values that are compared; today's is among them.

    `strategy` is the one that reads the constant, where the optimal one does not, or a policy.
    """

    values: tuple[Any, ...]
    strategy: str = "optimal"


def _of(*values: Any, strategy: str = "optimal") -> Constant:
    return Constant(values=values, strategy=strategy)


CONSTANTS: Mapping[str, Constant] = {
    "Effort.near_least": _of(1.0, 1.1, 1.3),
    "Effort.same_memory": _of(1.0, 1.02, 1.1),
    "Effort.cuts": _of(1, 2, 3),
    "Effort.least_cuts": _of(1, 3, 6),
    "Effort.options": _of(6, 12, 24),
    "Effort.compositions": _of(1, 2, 4, 8),
    "Effort.tolerance": _of(0.005, 0.02, 0.1, 10.0),
    "Effort.op_runs": _of(0, 15_000, 60_000, 120_000),
    "Effort.fewest_replays": _of(1, 20, 80),
    "jaxckpt.solve.stages._NARROW": _of(0.0, 1 / 16, 1 / 8, 1 / 4),
    "jaxckpt.solve.stages._CUT_BYTES": _of(64, 4096, 2**18),
    "jaxckpt.solve.milp._LARGEST": _of(1e3, 1e4, 1e5),
    "jaxckpt.solve.optimal.compose._LIMITS": _of(
        {"mip_rel_gap": 1e-3, "node_limit": 500},
        {"mip_rel_gap": 5e-3, "node_limit": 500},
        {"mip_rel_gap": 2e-2, "node_limit": 500},
        {"mip_rel_gap": 5e-3, "node_limit": 100},
        {"mip_rel_gap": 5e-3, "node_limit": 2500},
    ),
    "jaxckpt.solve.optimal.options._LIMITS": _of(
        {"mip_rel_gap": 1e-4, "node_limit": 200},
        {"mip_rel_gap": 1e-3, "node_limit": 200},
        {"mip_rel_gap": 1e-2, "node_limit": 200},
        {"mip_rel_gap": 1e-3, "node_limit": 50},
        {"mip_rel_gap": 1e-3, "node_limit": 1000},
    ),
    "jaxckpt.solve.optimal.options._LIMIT_EXPONENT": _of(1.0, 1.7, 2.5),
    "jaxckpt.solve.optimal.options._BYTES_WEIGHT": _of(1e-10, 1e-9, 1e-8),
    "jaxckpt.solve.optimal.prefetch_schedule._SMALL": _of(0.0, 1 / 16, 1 / 4, strategy=OFFLOADING_POLICY),
    "jaxckpt.solve.optimal.prefetch_schedule._MOST_LAYERS": _of(2, 4, 8, strategy=OFFLOADING_POLICY),
    "jaxckpt.solve.optimal.moved_options._STEPS": _of(1, 2, 4),
    "jaxckpt.solve.baselines.rotor._SLOTS": _of(250, 500, 1000, strategy="rotor"),
    "jaxckpt.solve.baselines.rotor._SWEPT": _of(12, 24, 48, strategy="rotor"),
    "jaxckpt.solve.baselines.sqrt._SWEPT": _of(5, 9, 17, strategy="sqrt:greedy"),
    "jaxckpt.solve.baselines.megatron._MOST_OPS": _of(64, 128, 256, strategy="megatron"),
    "jaxckpt.solve.baselines.mincut._TWICE": _of(1, 2, 4, strategy="mincut"),
    "jaxckpt.solve.baselines.mincut._MUCH_SMALLER": _of(2, 4, 8, strategy="mincut"),
    "jaxckpt.cost.fusion._MUCH_SMALLER": _of(0.5, 0.75, 1.0),
    "jaxckpt.cost.fusion._SMALL": _of(1 / 16, 1 / 8, 1 / 4),
    "jaxckpt.cost.fusion_analysis._MANY": _of(2, 4, 8),
    "jaxckpt.cost.peak._SMALLEST_BYTES": _of(1, 2**16, 2**20),
    "jaxckpt.cost.heap._SMALLEST_SHARE": _of(2**-16, 2**-12, 2**-8),
    "jaxckpt.cost.fusion_rules._LONGEST_ROW": _of(2**13, 2**16, 2**19),
    "jaxckpt.cost.fusion_rules._SHORT_ROW": _of(32, 64, 256),
    "jaxckpt.cost.fusion_rules._FEW_ROWS": _of(2**14, 2**16, 2**18),
    "jaxckpt.cost.shared_passes._POSTPONED_STEPS": _of(12, 48, 192),
    "jaxckpt.cost.shared_passes._COLUMN_SUMS": _of(1, 2, 4),
    "jaxckpt.cost.shared_passes._PASSES": _of(1, 2, 4, 8),
    "jaxckpt.cost.rates._OPERATIONS": _of({}, import_module("jaxckpt.cost.rates")._OPERATIONS),
    "jaxckpt.cost.padding._ALIGNED": _of(4, 8, 16),
    "jaxckpt.schedule.argument_derived._BROADCAST": _of(1 / 32, 1 / 8, 1 / 2),
    "jaxckpt.schedule.prefetch._MOST_DESCENDANTS": _of(8, 32, 128),
    "Limits.well_used": _of(0.95, 0.985, 0.995),
    "Limits.faster": _of(0.98, 0.995, 0.999),
    "Limits.too_slow": _of(1.0, 1.05, 1.2),
    "Limits.margins": _of((0.0, 0.0, 0.0), (0.001, 0.02, 0.1), (0.01, 0.05, 0.2)),
    "Limits.rules_order": _of(0.9, 0.97, 1.0),
    "jaxckpt.planner.candidate_pool._SAME_FIGURES": _of(0.0, 0.0005, 0.005),
    "jaxckpt.planner.search._MISSES": _of(2, 3, 5),
    "Limits.larger_plans": _of(1, 4, 8),
    "Limits.growth": _of(1.1, 1.25, 1.5),
    "Limits.tilings": _of(1, 3, 6),
    "Limits.worth_tiling": _of(0.0, 0.05, 0.2),
    "jaxckpt.planner.floor._DOMINATES": _of(0.25, 0.5, 0.75),
    "jaxckpt.planner.floor._WIDENS": _of(2, 4, 8),
    "jaxckpt.planner.floor._MOST_RESIDUALS": _of(1, 3, 6),
    "jaxckpt.planner.floor._WORTH": _of(0.01, 0.02, 0.04),
    "jaxckpt.planner.floor._MOST_CHUNKS": _of(16, 64, 256),
    "jaxckpt.planner.floor._LEAST_SCORES": _of(256, 512, 1024),
    "jaxckpt.planner.floor._FLAT": _of(0.02, 0.05, 0.1),
    "Limits.asked": _of(1, 3, 6),
    "Limits.batches": _of(2, 6, 12),
    "Limits.batches_between": _of(1, 3, 6),
    "Limits.fast_batches": _of(1, 2, 4),
    "Limits.slowest_batch": _of(0.8, 0.9, 1.0),
}
"""By the module and the name, or the field of `Effort` or `Limits`."""


def default(name: str) -> Any:
    """Today's value of a constant."""
    owner, _, own = name.rpartition(".")
    return getattr({"Effort": Effort(), "Limits": Limits()}.get(owner) or import_module(owner), own)


def _usual(name: str) -> Effort:
    """The effort of plans with which those of a constant are compared."""
    return Effort() if name in LOCAL_SEARCH else Effort(op_runs=0)


@contextmanager
def with_value(name: str, value: Any) -> Iterator[None]:
    """Gives a constant another value; fields of `Limits` are those of a planner."""
    owner, _, own = name.rpartition(".")
    if owner in ("Effort", "Limits"):
        with with_default_effort(replace(_usual(name), **{own: value})) if owner == "Effort" else nullcontext():
            yield
        return
    module, before = import_module(owner), default(name)
    setattr(module, own, value)
    try:
        yield
    finally:
        setattr(module, own, before)


@cache
def planner(case: str) -> Planner:
    """A planner of a step, traced and compiled once for all constants."""
    each = CASES[case]
    return Planner(each.make(), target=each.target, **each.options)


@cache
def budgets(case: str) -> tuple[int, ...]:
    """Budgets of temporaries, from today's predictions."""
    problem = _fresh(case)
    least, most = (solve(problem, name).predicted.temp_bytes for name in ("full", "none"))
    return tuple(int(least + share * (most - least)) for share in SHARES)


def _fresh(case: str) -> Problem:
    """The problem of a step with nothing computed."""
    known = planner(case).problem
    fields = {
        each: getattr(known, each) for each in ("rates", "required", "offloading", "may_offload", "may_partition")
    }
    return Problem(graph=replace(known.graph), **fields)


### Effort: plans

SOLVED = ("readme-tanh", "gpt2-scan", "lstm", "graph-attention", "offload", "mesh")


def solved(strategy: str, cases: Iterable[str]) -> dict[str, tuple[GraphPlan, float]]:
    """The plan of each step and budget with the CPU seconds of solving; the first budget's include all preparation."""
    found = {}
    for case in cases:
        problem, solver = _fresh(case), None
        for share, budget in zip(SHARES, budgets(case), strict=True):
            start = time.process_time()
            if strategy == OFFLOADING_POLICY:
                plan = plan_from_policy(problem, load_policy(strategy)).plan
            elif strategy != "optimal":
                plan = named_strategy(strategy)(problem, budget)
            else:
                solver = solver or OptimalSolver(problem)
                plan = solver.solve(budget, allow_empty=False)
            found[f"{case} {share}"] = plan, time.process_time() - start
        if solver is not None:
            found |= {f"{case}{LEAST} {i}": (plan, 0.0) for i, plan in enumerate(solver.min_memory_plans)}
    return found


def of_plans(name: str, value: Any) -> Figures:
    """Plans with a value against those with today's."""
    strategy = CONSTANTS[name].strategy
    few = tuple(_cases_of(name, strategy))
    before, is_today = _solved_by_default(strategy, few, _usual(name)), value == default(name)
    with collector_paused(), with_default_effort(_usual(name)), with_value(name, value):
        after = before if is_today else solved(strategy, few)
    budgeted = [key for key in before if LEAST not in key]
    least = [key for key in before if key.endswith(f"{LEAST} 0")]
    pairs = {key: (before[key][0], after[key][0]) for key in (*budgeted, *least)}
    figures = {
        "plans": len(pairs),
        "same": sum(one.decisions == other.decisions and one.stages == other.stages for one, other in pairs.values()),
        "step_s": _mean(pairs[key][1].predicted.step_s / pairs[key][0].predicted.step_s for key in budgeted),
        "solve_s": sum(after[key][1] for key in budgeted) / sum(before[key][1] for key in budgeted),
    }
    if least:
        smallest = (pairs[key] for key in least)
        figures["least_bytes"] = _mean(other.predicted.temp_bytes / one.predicted.temp_bytes for one, other in smallest)
        figures["least_plans"] = (len(after) - len(budgeted)) / (len(before) - len(budgeted))
    return figures


def _cases_of(name: str, strategy: str) -> Iterator[str]:
    """Steps whose plans a constant may change."""
    for case in SOLVED:
        is_moving = bool(CASES[case].options)
        if name in LOCAL_SEARCH:
            is_read = case in SEARCHED
        elif "moved_options" in name or "prefetch" in name:
            is_read = is_moving
        elif strategy == "megatron":
            is_read = case == "gpt2-scan"
        else:
            is_read = name in CORRECTIONS or not is_moving
        if is_read:
            yield case


@cache
def _solved_by_default(strategy: str, cases: tuple[str, ...], effort: Effort) -> dict[str, tuple[GraphPlan, float]]:
    with collector_paused(), with_default_effort(effort):
        solved(strategy, cases[:1])  # what is done once, such as imports, is no part of the seconds
        return solved(strategy, cases)


### The model: errors

COMPILED_STRATEGIES = ("none", "full", "every:2")


def of_model(name: str, value: Any) -> Figures:
    """Errors of the predictions of plans that are compiled, with a value."""
    return _errors_today() if value == default(name) else _errors(name, value)


@cache
def _errors_today() -> Figures:
    return _errors("", None)


def _errors(name: str, value: Any) -> Figures:
    plans, errors_bytes, errors_s = _compiled_plans(), [], []
    with with_value(name, value) if name else nullcontext():
        problems = {case: _fresh(case) for case, _ in plans}
        for (case, _), (plan, total_bytes, step_s) in plans.items():
            predicted = problems[case].predict(plan)
            errors_bytes.append(abs(predicted.total_bytes / total_bytes - 1))
            errors_s.append(abs(predicted.step_s / step_s - 1))
    return {
        "plans": len(plans),
        "bytes_median": statistics.median(errors_bytes),
        "bytes_mean": statistics.mean(errors_bytes),
        "bytes_worst": max(errors_bytes),
        "seconds_median": statistics.median(errors_s),
        "seconds_mean": statistics.mean(errors_s),
        "seconds_worst": max(errors_s),
    }


@cache
def _compiled_plans() -> dict[tuple[str, str], tuple[GraphPlan, int, float]]:
    """Plans with their compiled totals and seconds."""
    found = {}
    for case in (case for case, each in CASES.items() if each.is_compiled):
        for strategy in COMPILED_STRATEGIES:
            plan = solve(_fresh(case), strategy)
            compiled = planner(case).measure(plan)
            found[case, strategy] = plan, compiled.footprint.total_bytes, compiled.step_s
            print(f"{case} {strategy}: {compiled.footprint.total_bytes:,} bytes {compiled.step_s:.5f} s", flush=True)
    return found


### Reports: remedies


def of_reports(name: str, value: Any) -> Figures:
    """Floors that name the same remedies with a value."""
    smallest = {case: planner(case).smallest().footprint for case in SEARCHED}
    before = [floor_of(smallest[case], planner(case).graph).remedies for case in SEARCHED]
    with with_value(name, value):
        after = [floor_of(smallest[case], planner(case).graph).remedies for case in SEARCHED]
    return {
        "reports": len(before),
        "same": sum(one == other for one, other in zip(before, after, strict=True)),
        "remedies": sum(map(len, after)) / max(1, sum(map(len, before))),
    }


### Searches: the model as the compiler

OFF = ((0.97, 1.08), (1.0, 1.0), (1.04, 1.03))
"""Compiled temporaries and seconds over predicted ones, by the number of stages."""


class Modelled(Planner):
    """A planner whose compiler is the model, off by a factor that depends on the plan."""

    def measure(self, plan: GraphPlan) -> CompiledPlan:
        expected, (bytes_factor, seconds_factor) = plan.predicted, OFF[len(plan.stages) % len(OFF)]
        self._footprints[plan] = Footprint(
            argument_bytes=expected.argument_bytes,
            output_bytes=expected.output_bytes,
            alias_bytes=0,
            temp_bytes=int(bytes_factor * expected.temp_bytes),
            step_s=seconds_factor * expected.step_s,
        )
        return CompiledPlan(plan, self._footprints[plan])

    def measure_all(self, plans: Iterable[GraphPlan]) -> list[CompiledPlan]:
        return list(map(self.measure, plans))


SEARCHED = ("readme-tanh", "gpt2-scan", "graph-attention")


def of_search(name: str, value: Any) -> Figures:
    """Compiled plans that searches return with a value, against those with today's."""
    with with_default_effort(Effort(op_runs=0)):
        before, after = _searched(), _searched() if value == default(name) else _searched(name, value)
    return {
        "plans": len(before),
        "same": sum(before[key] == after[key] for key in before),
        "step_s": _mean(after[key][0] / before[key][0] for key in before),
        "total_bytes": _mean(after[key][1] / before[key][1] for key in before),
        "compiles": sum(after[key][2] for key in before) / sum(before[key][2] for key in before),
    }


@cache
def _searched(name: str = "", value: Any = None) -> dict[str, tuple[float, int, int]]:
    """Seconds, total and compiles of the plan for each step and budget."""
    found = {}
    limits = replace(Limits(), **{name.rpartition(".")[2]: value}) if name.startswith("Limits") else Limits()
    with with_value(name, value) if name else nullcontext():
        for case in SEARCHED:
            known = planner(case)
            modelled = Modelled.of_traced(known.traced, target=known.target)
            modelled.limits = limits
            for share, budget in zip(SHARES, budgets(case), strict=True):
                plan = modelled.plan(budget=modelled.fixed_bytes + budget)
                assert plan.footprint is not None
                found[f"{case} {share}"] = plan.estimated_step_s, plan.footprint.total_bytes, len(plan.attempts)
    return found


### Searches over batches, and frontiers


def of_batches(name: str, value: Any) -> Figures:
    """The largest and the fastest batch with a value against those with today's."""
    before, after = _batches("", None), _batches(name, value)
    return {
        "largest": after.batch / before.batch,
        "items_per_s": after.fastest.items_per_s / before.fastest.items_per_s,
        "compiles": after.compiles / before.compiles,
        "traced": len(after.tried) / len(before.tried),
    }


def _batches(name: str, value: Any) -> BatchSearch:
    recipe = STRANGERS["readme-tanh"].recipe
    with with_value("jaxckpt.planner.batch_search.Planner", Modelled), with_default_effort(Effort(op_runs=0)):
        limits = replace(Limits(), **{name.rpartition(".")[2]: value}) if name else Limits()
        with with_value("jaxckpt.planner.batch_search.Limits", lambda: limits):
            return max_batch(lambda rows: recipe.build(rows=rows), target=TARGET, budget="3GiB", multiples_of=1024)


def of_frontiers(value: Any) -> Figures:
    """The expected frontier with a value against that with today's."""
    before, after = _frontier(Limits().asked), _frontier(value)
    return {"points": len(after[0]), "between": len(after[0].between), "solve_s": after[1] / before[1]}


@cache
def _frontier(asked: int) -> tuple[Frontier, float]:
    with with_default_effort(Effort(op_runs=0)):
        modelled = Modelled(CASES["gpt2-scan"].make(), target=TARGET)
        modelled.limits = replace(Limits(), asked=asked)
        start = time.process_time()
        return frontier_of(modelled), time.process_time() - start


def _mean(ratios: Iterable[float]) -> float:
    return statistics.geometric_mean(ratios)


def figures_of(name: str, value: Any) -> Figures:
    """The figures of a value, of the constant's kind."""
    if name.startswith("jaxckpt.planner.floor"):
        return of_reports(name, value)
    if name == "Limits.asked":
        return of_frontiers(value)
    if name.startswith(("Limits", "jaxckpt.planner.search", "jaxckpt.planner.candidate_pool")):
        return (of_batches if "batch" in name else of_search)(name, value)
    if name == "jaxckpt.schedule.prefetch._MOST_DESCENDANTS":  # which only offloaded values read
        return of_plans(name, value)
    return of_model(name, value) if name.startswith(("jaxckpt.cost", "jaxckpt.schedule")) else of_plans(name, value)


def table(constants: Mapping[str, Any]) -> str:
    """A line a value; the value of today is marked."""
    lines = ["| constant | value | figures |", "|---|---|---|"]
    for name, record in constants.items():
        for value, figures in record["values"].items():
            mark = " (today's)" if value == record["today"] else ""
            shown = ", ".join(f"{key} {each:.4g}" for key, each in figures.items())
            lines.append(f"| {name.removeprefix('jaxckpt.')} | {value}{mark} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="constants whose names contain one of these")
    parser.add_argument("--table", action="store_true", help="print the table of the results")
    arguments = parser.parse_args()
    known = read(NAME, PYTHON)["constants"] if (RESULTS / f"{NAME}-{PYTHON}.json").exists() else {}
    wanted = [name for name in CONSTANTS if any(part in name for part in arguments.names or ("",))]
    for name in () if arguments.table else wanted:
        values = CONSTANTS[name].values
        known[name] = {"today": str(default(name)), "values": {str(each): figures_of(name, each) for each in values}}
        print(table({name: known[name]}).split("\n", 2)[2], flush=True)
        keep(NAME, {"constants": {each: known[each] for each in CONSTANTS if each in known}})
    print(table(known))


if __name__ == "__main__":
    main()
