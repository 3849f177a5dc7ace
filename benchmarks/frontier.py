"""Plans against policies written by hand: for each model, compiled totals and estimated seconds of both, for an H200.

    python -m benchmarks.frontier [MODEL ...] [--minutes 10] [--strategies optimal full] [--again [plans]]

By hand are the model without rematerialisation and `jax.checkpoint` around each block, with JAX's policies. The planner
is asked for the least total that it reaches, for every total that is had by hand, and for totals evenly between the
least and that without rematerialisation. One estimator (`Footprint.step_s`) times all of them.

`--strategies offload offload:300` asks for what is had by hand again, with the host's memory allowed too, over the
target's own link or one of so many GB/s each way; seconds are then with what the copies delay.

Each model has a JSON file in results/frontier, written after each version; what is there is not made again, unless
asked for or the compiler is another. `benchmarks.frontier_tables` makes tables and pictures of these files.
"""

import argparse
import ast
import dataclasses
import gc
import json
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from benchmarks.models import MODELS, PLANNER, TrainingStep
from benchmarks.models.blocks import KEPT, Remat, as_written, naming, rematerialised
from benchmarks.record import RESULTS, made_with
from jaxckpt import InfeasibleBudgetError, Offloading, Plan, Planner, Target
from jaxckpt.compiler import Footprint, footprint
from jaxckpt.cost import Rates
from jaxckpt.hlo import MemoryMap, seconds_by_part, stall_s

FOLDER = RESULTS / "frontier"
TARGET = "h200"
OPTIMAL = "optimal"
OFFLOAD = "offload"
"""The optimum that may let values wait on the host; behind a colon GB/s of the link, if not the target's."""
SMALLEST = "smallest"
WITHOUT = "no remat"
NAMED = "save_only_these_names"
UNNAMED = ("bilstm", "gcn")
"""Models with nothing in their blocks that people would name."""
BETWEEN = 8
"""How many totals between the least and that without rematerialisation."""
COMPILER = ("jax", "jaxlib", "jax-cuda13-plugin")


def by_hand(model: str) -> dict[str, Remat]:
    """What the blocks of a model are wrapped in, by the name of JAX's policy."""
    policies = jax.checkpoint_policies
    made = {
        WITHOUT: as_written,
        "nothing_saveable": rematerialised(),
        "dots_saveable": rematerialised(policies.dots_saveable),
        "dots_with_no_batch_dims_saveable": rematerialised(policies.dots_with_no_batch_dims_saveable),
    }
    return made if model in UNNAMED else {**made, NAMED: rematerialised(policies.save_only_these_names(KEPT))}


@dataclass(slots=True, kw_only=True)
class Kept:
    """A model's file: what is known of it, and what is added.

    Attributes:
      path: The file.
      data: Its content.
    """

    path: Path
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def opened(cls, path: Path, *, made_for: Mapping[str, Any], again: str | None) -> "Kept":
        """The file as it is, or empty where it is not there, was made for something else, or shall be made again.

        Args:
          path: Where it is.
          made_for: Model, sizes, target and compiler: what decides whether it still holds.
          again: "plans" drops the plans, "all" drops everything.
        """
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get("made_for") != made_for or again == "all":
            known = {}
        data = {"made_for": dict(made_for), "by_hand": known.get("by_hand", {})}
        if again is None:
            data |= known
        return cls(path=path, data=data)

    def add(self, *keys: str, record: Any) -> None:
        """Puts a record at a path of keys, and writes the file."""
        *before, last = keys
        place = self.data
        for key in before:
            place = place.setdefault(key, {})
        place[last] = record
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.data, "made_with": made_with()}, indent=1) + "\n")

    def has(self, *keys: str) -> bool:
        """Whether there is a record."""
        place: Any = self.data
        for key in keys:
            if key not in place:
                return False
            place = place[key]
        return True


@dataclass(slots=True, kw_only=True)
class Runner:
    """Fills the file of one model.

    Attributes:
      model: Its name in `MODELS`.
      sizes: Arguments of its `step` that are not the real ones.
      target: The machine compiled for.
      strategies: Names for `Planner.plan`.
      kept: The file.
      between: How many totals between the ends.
      planners: One for each strategy that offloads, one for all others (""); made when they are first needed.
    """

    model: str
    sizes: Mapping[str, Any]
    target: Target
    strategies: Sequence[str]
    kept: Kept
    between: int = BETWEEN
    planners: dict[str, Planner] = field(default_factory=dict)

    def run(self, *, deadline: float) -> bool:
        """Makes what is missing until the deadline (of `time.monotonic`); whether nothing is missing any more."""
        for task in self.missing():
            if time.monotonic() > deadline:
                return False
            task()
            jax.clear_caches()
        return True

    def missing(self) -> Iterator[Callable[[], None]]:
        """What is not in the file yet, in order; the totals asked for are known once the ends are."""
        for name, remat in by_hand(self.model).items():
            if not self.kept.has("by_hand", name):
                yield lambda name=name, remat=remat: self.compile_by_hand(name, remat)
        for strategy in dict.fromkeys((OPTIMAL, *self.strategies)):
            if not self.kept.has("plans", strategy, SMALLEST):
                yield lambda strategy=strategy: self.find_smallest(strategy)
        for strategy in self.strategies:
            if strategy != OPTIMAL and "error" in self.kept.data["plans"][strategy][SMALLEST]:
                continue  # it cannot do anything with this model
            for label, budget_bytes in self.budgets(between=not offloads(strategy)).items():
                if not self.kept.has("plans", strategy, label):
                    yield lambda s=strategy, name=label, b=budget_bytes: self.plan(s, name, b)

    def budgets(self, *, between: bool = True) -> dict[str, int]:
        """Totals to ask for: those had by hand, and, unless told otherwise, those evenly between the ends."""
        totals = {name: made["total_bytes"] for name, made in self.kept.data["by_hand"].items() if "error" not in made}
        asked = {f"as {name}": total for name, total in totals.items() if name != WITHOUT}
        smallest = self.kept.data["plans"][OPTIMAL][SMALLEST]
        if between and WITHOUT in totals and "error" not in smallest:
            least, span = smallest["total_bytes"], totals[WITHOUT] - smallest["total_bytes"]
            parts = self.between + 1
            asked |= {f"{k}/{parts}": least + span * k // parts for k in range(1, parts)}
        return asked

    def compile_by_hand(self, name: str, remat: Remat) -> None:
        """One version of the model that people write."""

        def compiled() -> dict[str, Any]:
            made = self.step(remat=remat)
            with naming() if name == NAMED else nullcontext():
                return figures(
                    footprint(made.step, *made.args, target=self.target, donate_argnums=made.donate_argnums),
                    self.target.rates,
                )

        self.record("by_hand", name, make=compiled)

    def find_smallest(self, strategy: str) -> None:
        """The least total that a strategy reaches: what it names when it refuses all but the arguments."""

        def found() -> dict[str, Any]:
            planner, solver = self.planned(strategy)
            try:
                plan = planner.plan(budget=planner.fixed_bytes, strategy=solver)
            except InfeasibleBudgetError as error:
                plan = planner.plan(budget=error.minimum_bytes, strategy=solver)
            return of_plan(plan, planner.problem.rates)

        self.record("plans", strategy, SMALLEST, make=found)

    def plan(self, strategy: str, label: str, budget_bytes: int) -> None:
        """A plan for one total."""

        def found() -> dict[str, Any]:
            planner, solver = self.planned(strategy)
            try:
                plan = planner.plan(budget=budget_bytes, strategy=solver)
            except InfeasibleBudgetError as error:
                return {"budget_bytes": budget_bytes, "refused": True, "minimum_bytes": error.minimum_bytes}
            return {"budget_bytes": budget_bytes} | of_plan(plan, planner.problem.rates)

        self.record("plans", strategy, label, make=found)

    def planned(self, strategy: str) -> tuple[Planner, str]:
        """The model's planner for a strategy, and what it calls that; all plans of a planner share its compiles."""
        which, solver = (strategy, OPTIMAL) if offloads(strategy) else ("", strategy)
        if which not in self.planners:
            begun = time.perf_counter()
            made = self.step()
            planner = Planner(
                made.step, *made.args, target=self.target, donate_argnums=made.donate_argnums, **may_offload(which)
            )
            traced = time.perf_counter()
            _ = planner.solver
            if not which:
                known = {"ops": len(planner.graph.ops), "trace_s": traced - begun}
                self.kept.add("graph", record=known | {"prepare_s": time.perf_counter() - traced})
            self.planners[which] = planner
        return self.planners[which], solver

    def step(self, **how: Any) -> TrainingStep:
        """The model's training step."""
        return MODELS[self.model].step(**self.sizes, **how)

    def record(self, *keys: str, make: Callable[[], dict[str, Any]]) -> None:
        """Makes a record, or one of what went wrong, with the seconds that it took, and keeps it."""
        begun = time.perf_counter()
        try:
            made = make()
        except Exception as error:  # a benchmark goes on: what failed is a result
            made = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        made["wall_s"] = time.perf_counter() - begun
        self.kept.add(*keys, record=made)
        print(f"{self.model:12} {line(keys, made)}", flush=True)


def offloads(strategy: str) -> bool:
    """Whether a strategy is the optimum with the host's memory."""
    return strategy.partition(":")[0] == OFFLOAD


def may_offload(strategy: str) -> dict[str, Any]:
    """What a planner is told that may let values wait on the host."""
    if not offloads(strategy):
        return {}
    _, _, link = strategy.partition(":")
    bandwidth = 1e9 * float(link) if link else None
    return {"allow": ("recompute", "offload"), "offload": Offloading(bandwidth_bytes_per_s=bandwidth)}


def figures(made: Footprint, rates: Rates) -> dict[str, Any]:
    """What is compared of a compiled step."""
    found: dict[str, Any] = {
        "total_bytes": made.total_bytes,
        "temp_bytes": made.temp_bytes,
        "step_s": made.step_s,
        "compile_s": made.compile_s,
    }
    if made.memory is not None:
        parts = seconds_by_part(made.memory, rates)
        found["seconds_by_part"] = {part.value: seconds for part, seconds in sorted(parts.items())}
        found["peak_by_role"] = peak_by_role(made.memory)
    return found


def peak_by_role(memory: MemoryMap) -> dict[str, int]:
    """Bytes of temporaries alive at the peak, largest role first."""
    roles: Counter[str] = Counter()
    for buffer in memory.alive_at(memory.peak):
        roles[buffer.role.value] += buffer.size_bytes
    return dict(roles.most_common())


def of_plan(plan: Plan, rates: Rates) -> dict[str, Any]:
    """What is compared of a plan."""
    assert plan.footprint is not None
    made = figures(plan.footprint, rates)
    made["compile_s"] = sum(attempt.compile_s for attempt in plan.attempts)
    if plan.offloads and plan.footprint.memory is not None:
        made["stall_s"] = stall_s(plan.footprint.memory, rates)
        made["step_s"] += made["stall_s"]
        made["host_bytes"] = plan.predicted.host_bytes
    return made | {
        "predicted_bytes": plan.predicted.total_bytes,
        "predicted_temp_bytes": plan.predicted.temp_bytes,
        "predicted_s": plan.predicted.step_s,
        "recompute_s": plan.predicted.recompute_s,
        "saved_bytes": plan.predicted.saved_bytes,
        "gap": plan.predicted.gap,
        "attempts": [dataclasses.asdict(attempt) for attempt in plan.attempts],
    }


def line(keys: Sequence[str], made: Mapping[str, Any]) -> str:
    """A record in one line."""
    called = f"{' '.join(keys[1:]):48}"
    if "error" in made:
        return f"{called} {made['error'].splitlines()[0]}"
    if "refused" in made:
        return f"{called} refused, at least {made['minimum_bytes'] / 2**20:,.0f} MiB; {made['wall_s']:.0f} s"
    text = f"{called} {made['total_bytes'] / 2**20:9,.0f} MiB {1e3 * made['step_s']:8.2f} ms"
    if "predicted_bytes" in made:
        text += f", predicted {made['predicted_bytes'] / 2**20:9,.0f} MiB {1e3 * made['predicted_s']:8.2f} ms"
        text += f", {len(made['attempts'])} compiles"
    return f"{text}; {made['wall_s']:.0f} s"


def sizes_from(words: Sequence[str]) -> dict[str, Any]:
    """Reads "layers=6"."""
    pairs = (word.split("=", 1) for word in words)
    return {name: ast.literal_eval(value) for name, value in pairs}


def run_model(
    name: str,
    *,
    sizes: Mapping[str, Any],
    strategies: Sequence[str] = (OPTIMAL,),
    minutes: float = float("inf"),
    again: str | None = None,
    between: int = BETWEEN,
    target: str = TARGET,
    folder: Path = FOLDER,
) -> bool:
    """Fills the file of one model; whether it is complete."""
    versions = {package: version for package, version in made_with()["versions"].items() if package in COMPILER}
    made_for = {"model": name, "sizes": dict(sizes), "target": target, "between": between, "versions": versions}
    made_for = json.loads(json.dumps(made_for))  # as it will be read back
    kept = Kept.opened(folder / f"{name}.json", made_for=made_for, again=again)
    runner = Runner(
        model=name, sizes=sizes, target=Target(target), strategies=tuple(strategies), kept=kept, between=between
    )
    complete = runner.run(deadline=time.monotonic() + 60 * minutes)
    print(f"{name:12} {'complete' if complete else 'out of time; run again to go on'}", flush=True)
    return complete


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.frontier", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(PLANNER)}; all of them by default")
    parser.add_argument(
        "--strategies", nargs="+", default=[OPTIMAL, "full"], help=f"names for plan(strategy=), or {OFFLOAD}[:GB/s]"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for each model; no plan is begun later")
    parser.add_argument("--again", nargs="?", choices=["plans", "all"], const="all", help="forget what is there")
    parser.add_argument("--between", type=int, default=BETWEEN, help="totals between the ends")
    parser.add_argument("--sizes", nargs="+", default=[], metavar="NAME=VALUE", help="of the models, such as layers=6")
    options = parser.parse_args()
    for name in options.models or PLANNER:
        run_model(
            name,
            sizes=sizes_from(options.sizes),
            strategies=options.strategies,
            minutes=options.minutes,
            again=options.again,
            between=options.between,
        )
        gc.collect()


if __name__ == "__main__":
    main()
