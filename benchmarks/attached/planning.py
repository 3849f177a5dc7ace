"""Without the device: what each version of a model takes by the compiler's word, and the plans that will be run.

Each version's part is written as soon as it is known, its plan beside it, so that whoever has the device can begin.
"""

import copyreg
import pickle
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax

from benchmarks.attached.questions import (
    AT_RULE,
    BUDGETS,
    BY_HAND,
    LEAST,
    NONE,
    OFFLOAD,
    OFFLOAD_POLICY,
    Group,
    is_marked,
    is_ours,
)
from benchmarks.attached.store import Store
from benchmarks.attached.strangers import RULES
from benchmarks.frontier import NAMED, peak_by_role
from benchmarks.models.blocks import naming
from benchmarks.strangers.questions import UNLIMITED
from jaxckpt import InfeasibleBudgetError, Plan, Planner, Target, load_policy
from jaxckpt.compiler import Footprint, footprint
from jaxckpt.hlo import Kernel
from jaxckpt.ir import Offload

_FIRST = (NONE, LEAST, "plan-60", "plan-80", "nothing_saveable", OFFLOAD)
"""In this order; others follow, and plans at the totals of rules after the rules."""


def mapping_of(pairs: dict[Any, Any]) -> Mapping[Any, Any]:
    """A mapping that nobody changes, as a plan holds its decisions; pickles need it by a name."""
    return MappingProxyType(pairs)


copyreg.pickle(MappingProxyType, lambda mapping: (mapping_of, (dict(mapping),)))


def plan_group(group: Group, store: Store, target: Target) -> None:
    """Asks all that can be asked about a model without a device."""
    planner: Planner | None = None
    for version in sorted(group.versions, key=planning_place):
        key = ("predicted", group.model, version)
        is_plan = not is_marked(version)
        if store.has(*key) and not (is_plan and needs_plan(store, group.model, version)):
            continue
        if planner is None and (is_plan or version == NONE):
            made, most = group.step(), 6 if group.model in RULES else 3
            planner = Planner(
                made.step, *made.args, target=target, donate_argnums=made.donate_argnums, max_compiles=most
            )
        if is_plan or version == NONE:
            rule = store.get("predicted", group.model, version.removeprefix(AT_RULE)) or {}
            budget: Any = BUDGETS.get(version) or rule.get("total_bytes")
            file = plan_file(store, group.model, version)
            store.record(*key, make=lambda p=planner, v=version, f=file, b=budget: planned(p, v, f, budget=b))
        else:
            store.record(*key, make=lambda v=version: compiled_by_hand(group, v, target))
        jax.clear_caches()


def planning_place(version: str) -> tuple[int, bool]:
    """A key that sorts versions in the order in which they are planned."""
    return _FIRST.index(version) if version in _FIRST else len(_FIRST), version.startswith(AT_RULE)


def plan_file(store: Store, model: str, version: str) -> Path:
    """Where a plan is handed over."""
    return store.file("plans", model, f"{version}.pickle")


def needs_plan(store: Store, model: str, version: str) -> bool:
    """Whether a version was not run yet and its plan, which one file of results does not keep, is not there."""
    return not store.has("measured", model, version) and not plan_file(store, model, version).exists()


def planned(planner: Planner | None, version: str, file: Path, *, budget: float | None) -> dict[str, Any]:
    """A plan, kept in a file, and what is predicted of it; of "none" the step as it is."""
    assert planner is not None
    if version == NONE:
        return figures(planner.unplanned) | of_model(planner, planner.solver.empty_plan)
    plan = made_plan(planner, version, budget)
    assert plan.footprint is not None
    file.with_suffix(".part").write_bytes(pickle.dumps(plan))
    file.with_suffix(".part").replace(file)
    more = {"budget_bytes": plan.budget_bytes, "notes": list(plan.notes), "attempts": len(plan.attempts)}
    offloaded = [each for each in plan.described if isinstance(plan.decisions[each.value], Offload)]
    more["offloaded_bytes"] = sum(each.size_bytes for each in offloaded)
    return figures(plan.footprint) | of_model(planner, plan) | more


def made_plan(planner: Planner, version: str, budget: float | None) -> Plan:
    """The plan of a version; where its budget cannot be met, that of the least total."""
    if version == OFFLOAD:
        return planner.follow(load_policy(OFFLOAD_POLICY))
    if not is_ours(version):
        return planner.plan(budget=UNLIMITED, strategy=version)
    if version == LEAST:
        return planner.as_plan(planner.smallest())
    if budget is None:
        raise ValueError(f"the rule of {version} has no compiled total")
    try:
        return planner.plan(budget=budget)
    except InfeasibleBudgetError:
        return planner.as_plan(planner.smallest(), notes=("The budget cannot be met.",))


def of_model(planner: Planner, plan: Any) -> dict[str, Any]:
    """What our own model predicts, before any compiler; of a followed policy it says nothing of time."""
    del planner
    predicted = getattr(plan, "prediction", None)
    if predicted is None:
        return {}
    return {
        "predicted_bytes": predicted.total_bytes,
        "predicted_s": predicted.step_s,
        "recompute_s": predicted.recompute_s,
    }


def compiled_by_hand(group: Group, version: str, target: Target) -> dict[str, Any]:
    """A version that people write, compiled."""
    made = group.step(version)
    with named(version):
        return figures(footprint(made.step, *made.args, target=target, donate_argnums=made.donate_argnums))


def named(version: str) -> AbstractContextManager[None]:
    """What must be active while a version is traced."""
    return naming() if BY_HAND.get(version) == NAMED else nullcontext()


def figures(made: Footprint) -> dict[str, Any]:
    """What is compared of a compiled step."""
    found: dict[str, Any] = {
        "total_bytes": made.total_bytes,
        "argument_bytes": made.argument_bytes,
        "output_bytes": made.output_bytes,
        "alias_bytes": made.alias_bytes,
        "temp_bytes": made.temp_bytes,
        "program_bytes": made.program_bytes,
        "host_bytes": made.host_bytes,
        "step_s": made.step_s,
        "compile_s": made.compile_s,
        "caveats": list(made.caveats),
    }
    if made.memory is not None:
        found["peak_by_role"] = peak_by_role(made.memory)
    return found


def rows_of_kernels(kernels: tuple[Kernel, ...]) -> list[list[Any]]:
    """Kernels that do the same as one row, so that another model of time can be tried on them later."""
    counts: dict[tuple[Any, ...], int] = {}
    for kernel in kernels:
        stem = kernel.name.rstrip("0123456789.")
        row = (stem, kernel.opcode, kernel.op, kernel.is_priced, kernel.flops, kernel.matmul_flops)
        row += (kernel.matmul_dtype, kernel.traffic_bytes)
        counts[row] = counts.get(row, 0) + kernel.count
    return [[*row, count] for row, count in counts.items()]


def kernels_of_rows(rows: list[list[Any]]) -> Iterator[Kernel]:
    """The kernels of `rows_of_kernels`."""
    for name, opcode, op, is_priced, flops, matmul_flops, dtype, traffic_bytes, count in rows:
        yield Kernel(
            name=name,
            opcode=opcode,
            op=op,
            is_priced=is_priced,
            flops=flops,
            matmul_flops=matmul_flops,
            matmul_dtype=dtype,
            traffic_bytes=traffic_bytes,
            count=count,
        )
