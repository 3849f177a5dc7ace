"""The largest batch of one model with a plan and without, planned without the device and then run on it.

Memory is nearly a line over batches: two batches are compiled for the target, and the line says where it meets what the
device's allocator may hand out, less a margin for what no compiler counts, and stays below where XLA rematerialises by
itself. Then the device has the word: the planned step at the large batch and the step as it is at its own one must
run, and the step as it is must not at the planned batch. What it does at its next one tells how tight the line is.
"""

import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from benchmarks.attached.questions import HEADLINE_MODEL
from benchmarks.attached.running import Stepper, memory_statistics, without_autotuner
from benchmarks.attached.starting import start_of
from benchmarks.attached.store import Store
from benchmarks.models import MODELS, TrainingStep
from jaxckpt import CompileError, Planner, Target
from jaxckpt.compiler import compile_step

MARGIN = 0.03
"""Of the memory, left for workspaces that are chosen on the device and for holes between allocations."""
CASES = ("planned", "unplanned", "unplanned-at-planned", "unplanned-next")
"""What is run, the most telling first."""
_XLA_SHARE = 0.79
"""Of the device: beyond 0.8 XLA's own rematerialisation sets in, and the plan would not be what is measured."""
_ROUNDS = 4
_MUST_NOT_RUN = ("unplanned-at-planned", "unplanned-next")
"""Compiled without the autotuner: to try algorithms for a new batch takes most of a compile's time."""
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")


def line_meets(limit: float, one: tuple[int, float], other: tuple[int, float], *, multiple: int) -> int:
    """The largest multiple at which a line through two points is still within a limit.

    Raises:
      ValueError: It does not rise.

    Example:
      >>> line_meets(100, (8, 20), (16, 36), multiple=8)
      48
    """
    growth = (other[1] - one[1]) / (other[0] - one[0])
    if growth <= 0:
        raise ValueError(
            f"{other[1]:,.0f} bytes at {other[0]} are no more than {one[1]:,.0f} at {one[0]}: no line rises"
        )
    at = one[0] + (limit - one[1]) / growth
    return max(multiple, int(at) // multiple * multiple)


def step_of(batch: int, *, small: bool) -> TrainingStep:
    sizes = dict(MODELS[HEADLINE_MODEL].small()) if small else {}
    return MODELS[HEADLINE_MODEL].step(**{**sizes, "batch": batch})


def plan_file(store: Store) -> Path:
    return store.file("plans", "headline.pickle")


def plan_headline(store: Store, target: Target, *, limit_bytes: int, small: bool) -> None:
    """Finds both batches and the plan, without the device."""
    if store.has("headline", "batches") and (store.has("headline", "planned") or plan_file(store).exists()):
        return
    store.record("headline", "batches", make=lambda: found_batches(store, target, limit_bytes, small))


def found_batches(store: Store, target: Target, limit_bytes: int, small: bool) -> dict[str, Any]:
    """The batches that two lines say, corrected by what the compiler says of them."""
    one, other, multiple = (2, 4, 2) if small else (8, 16, 4)
    budget_bytes = int(min((1 - MARGIN) * limit_bytes, _XLA_SHARE * target.memory_bytes))
    planners = {batch: made_planner(batch, target, small) for batch in (one, other)}
    whole = {batch: float(planner.unplanned.total_bytes) for batch, planner in planners.items()}
    least = {batch: float(smallest_total(planner)) for batch, planner in planners.items()}
    unplanned = line_meets(budget_bytes, *whole.items(), multiple=multiple)
    planned = line_meets(budget_bytes, *least.items(), multiple=multiple)
    for _ in range(_ROUNDS):  # where the line bends
        planner = made_planner(planned, target, small)
        candidate = planner.measure(least_plan(planner))
        total_bytes = candidate.footprint.total_bytes
        if total_bytes <= budget_bytes:
            break
        planned = max(multiple, int(0.98 * planned * budget_bytes / total_bytes) // multiple * multiple)
    else:
        raise RuntimeError(f"no batch fits after {_ROUNDS} compiles; the last took {total_bytes} bytes")
    plan = planner.as_plan(candidate)
    file = plan_file(store)
    file.with_suffix(".part").write_bytes(pickle.dumps(plan))
    file.with_suffix(".part").replace(file)
    assert plan.footprint is not None
    return {
        "model": HEADLINE_MODEL,
        "limit_bytes": limit_bytes,
        "budget_bytes": budget_bytes,
        "multiple": multiple,
        "unplanned": unplanned,
        "planned": planned,
        "unplanned_totals": {str(batch): total for batch, total in whole.items()},
        "least_totals": {str(batch): total for batch, total in least.items()},
        "planned_bytes": plan.footprint.total_bytes,
        "planned_step_s": plan.footprint.step_s,
    }


def made_planner(batch: int, target: Target, small: bool) -> Planner:
    made = step_of(batch, small=small)
    return Planner(made.step, *made.args, target=target, donate_argnums=made.donate_argnums, max_compiles=2)


def smallest_total(planner: Planner) -> int:
    """The compiled total of the plan that should take the least; one compile."""
    return planner.measure(least_plan(planner)).footprint.total_bytes


def least_plan(planner: Planner) -> Any:
    """The plan of the least temporaries by the model: what the largest batch needs."""
    return min(planner.solver.min_memory_plans, key=lambda plan: plan.predicted.temp_bytes)


def run_headline(
    store: Store, target: Target, *, small: bool, deadline: float, clock: Callable[[], float] = time.time
) -> None:
    """Runs the cases; the batches must be known."""
    batches = store.get("headline", "batches") or {}
    if "planned" not in batches:
        return
    at = {
        "planned": batches["planned"],
        "unplanned": batches["unplanned"],
        "unplanned-at-planned": batches["planned"],
        "unplanned-next": batches["unplanned"] + batches["multiple"],
    }
    for case in CASES:
        if not store.has("headline", case) and clock() < deadline:
            store.record("headline", case, make=lambda c=case: run_case(store, target, c, at[c], small=small))
            jax.clear_caches()


def run_case(store: Store, target: Target, case: str, batch: int, *, small: bool) -> dict[str, Any]:
    """Compiles and runs one case; that it runs out of memory is an answer."""
    begun = time.perf_counter()
    made = step_of(batch, small=small)
    step: Callable[..., Any] = made.step
    if case == "planned":
        step = pickle.loads(plan_file(store).read_bytes()).apply(made.step)
    found: dict[str, Any] = {"batch": batch, "ran": False, "out_of_memory": False}
    options = without_autotuner(target) if case in _MUST_NOT_RUN else ()
    try:
        compilation = compile_step(
            step, *made.args, target=target, donate_argnums=made.donate_argnums, compiler_options=options
        )
        found |= {"total_bytes": compilation.footprint.total_bytes, "compile_s": compilation.footprint.compile_s}
        stepper = Stepper(compilation=compilation, made=made, start=start_of(made))
        stepper.restart()
        timing, count = stepper.timed(budget_s=1.0)
    except (CompileError, RuntimeError, ValueError) as error:
        if not is_out_of_memory(error):
            raise
        return found | {"out_of_memory": True, "message": str(error)[:500], "wall_s": time.perf_counter() - begun}
    seconds = timing.median_s / count
    speed = {"measured_s": seconds, "spread": timing.spread, "items_per_s": batch / seconds}
    return found | {"ran": True, **speed, "memory_after": memory_statistics(), "wall_s": time.perf_counter() - begun}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was what lacked, by the error or by what it came from."""
    texts = []
    each: BaseException | None = error
    while each is not None:
        texts.append(str(each))
        each = each.__cause__
    return getattr(error, "resource_exhausted", False) or any(sign in text for text in texts for sign in _OUT_OF_MEMORY)
