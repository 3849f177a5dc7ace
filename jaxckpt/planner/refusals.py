"""Errors for budgets that no plan meets: the least total, the buffers at its peak, and remedies."""

import math
from collections.abc import Iterable

from jaxckpt._errors import InfeasibleBudgetError
from jaxckpt._units import format_bytes
from jaxckpt.compiler import Footprint
from jaxckpt.ir import Graph
from jaxckpt.oom.remedies import Remedy
from jaxckpt.planner.floor import Floor, donation
from jaxckpt.solve import unaliased_output_bytes

_WHOLE_MIB = 2**25
"""From this total on a proposed budget is in whole MiB. Of 1.3 MiB the next whole one may hold the step as it is."""


def larger_arguments(
    budget: object,
    limit_bytes: int,
    graph: Graph,
    *,
    target: str,
    host_bytes: int = 0,
    remedies: Iterable[Remedy] = (),
) -> InfeasibleBudgetError:
    """The error for a budget that arguments and results alone exceed, without `host_bytes` of them in host memory."""
    results_bytes = unaliased_output_bytes(graph)
    argument_bytes = graph.argument_bytes - host_bytes
    larger = "arguments" if argument_bytes > limit_bytes else "arguments and results"
    without = f" without {format_bytes(host_bytes)} of state in host memory" if host_bytes else ""
    helpful = (each for each in (donation(graph), *remedies) if each.saves_bytes)
    closed_over_bytes = graph.size_bytes(graph.constants)
    closed_over = f", of these {format_bytes(closed_over_bytes)} of arrays that the step closes over,"
    changes = "".join(f"{each.command}, {format_bytes(each.saves_bytes or 0)} less, " for each in helpful)
    return InfeasibleBudgetError(
        f"plan(budget={budget!r}, target={target!r}) cannot be met: the {larger} alone are larger.",
        got=f"budget {format_bytes(limit_bytes)}",
        needed=f"more than {format_bytes(argument_bytes + results_bytes)}: arguments {format_bytes(argument_bytes)}"
        f"{closed_over if closed_over_bytes else ''}{without} and results that take over no donated argument"
        f" {format_bytes(results_bytes)}",
        advice=f"a larger budget, {changes}a smaller model, or arguments sharded over more devices",
        budget_bytes=limit_bytes,
        minimum_bytes=argument_bytes + results_bytes,
        minimum_measured=False,
        blocking=(),
    )


def undone_by_cpu(budget: object, limit_bytes: int, unplanned_bytes: int, *, target: str) -> InfeasibleBudgetError:
    """The error for a budget on the CPU below the total of the step as it is, in bytes."""
    return InfeasibleBudgetError(
        f"plan(budget={budget!r}, target={target!r}) cannot be met: XLA's compiler for CPUs undoes rematerialisation.",
        got=f"budget {format_bytes(limit_bytes)}; the step as it is takes about {format_bytes(unplanned_bytes)}",
        needed="a GPU or TPU as the target; the device need not be attached",
        advice='target="h200" (in the shell --target h200), or another of `jaxckpt targets`',
        budget_bytes=limit_bytes,
        minimum_bytes=unplanned_bytes,
        minimum_measured=False,
        blocking=(),
    )


def infeasible(
    budget: object, limit_bytes: int, smallest: Footprint, floor: Floor, *, target: str, strategy: str
) -> InfeasibleBudgetError:
    """The error for a budget below the smallest plan that was compiled, with that plan's footprint and its floor.

    A baseline strategy that does not meet it says nothing of other decisions.
    """
    memory = smallest.memory
    blocking = () if memory is None else memory.alive_at(memory.peak)
    standing = ", ".join(
        f"{b.dtype}[{','.join(map(str, b.shape))}] {format_bytes(b.size_bytes)} of `{b.scope or '/'}` {b.op}"
        for b in blocking[:3]
    )
    unit, name = (2**20, "MiB") if smallest.total_bytes >= _WHOLE_MIB else (2**10, "KiB")
    fits = f"{math.ceil(smallest.total_bytes / unit)}{name}"
    is_optimal = strategy == "optimal"
    met = "cannot be met by any decision" if is_optimal else f"is not met by strategy={strategy!r}"
    other = "" if is_optimal else 'strategy="optimal", '
    return InfeasibleBudgetError(
        f"plan(budget={budget!r}, target={target!r}) {met}.",
        got=f"budget {format_bytes(limit_bytes)}",
        needed=f"at least {_above(smallest.total_bytes, limit_bytes)} as compiled: arguments"
        f" {format_bytes(smallest.total_bytes - smallest.temp_bytes)}, temporaries {format_bytes(smallest.temp_bytes)}"
        + (f", of these at the peak {standing}" if standing else ""),
        advice=f'{other}budget="{fits}", a smaller batch, or {_advice(floor)}',
        budget_bytes=limit_bytes,
        minimum_bytes=smallest.total_bytes,
        minimum_measured=True,
        blocking=blocking,
        floor=floor,
    )


def _above(size_bytes: int, limit_bytes: int) -> str:
    """Bytes for people; to the byte where the rounded figure is that of the limit."""
    text = format_bytes(size_bytes)
    return f"{text} ({size_bytes - limit_bytes:,} bytes more)" if text == format_bytes(limit_bytes) else text


def _advice(floor: Floor) -> str:
    if not floor.remedies:
        return "the batch over more devices"
    remedy = floor.remedies[0]
    how = f": {remedy.command}" if remedy.command else ""
    return f"{remedy.title}, about {format_bytes(remedy.saves_bytes or 0)} less{how}"
