"""Shared by loop splitting and loop tiling: the loops that a plan asks for, and a step with other equations.

Complexity: linear in equations, and in loops times requests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import jax.extend.core as jex

from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import Graph, LoopSplit, LoopTiling, Phase
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import Equation, OpenLoop
from jaxckpt.trace.graph import graph_of
from jaxckpt.trace.step import Traced

Request = TypeVar("Request", LoopTiling, LoopSplit)


def requested_loops(
    traced: Traced,
    requests: Sequence[Request],
    groups: Sequence[tuple[int, ...]],
    *,
    fits: Callable[[Request, int], bool],
    refusal: Callable[[Request], tuple[str, str, str]],
) -> dict[int, Request]:
    """Finds the loops that a plan names, and those that change with them: for each its request that fits its length.

    No two requests are for one group, or for a loop inside of another one's. `refusal` gives problem, got and needed.
    """
    graph = traced.graph
    found: dict[int, Request] = {}
    for request in requests:
        group = next((group for group in groups if request.loop in group), ())
        if not group or _overlaps(graph, group, found) or not fits(request, graph.loops[request.loop].length):
            fitting = ", ".join(f"loop {group[0]} of {graph.loops[group[0]].length} iterations" for group in groups)
            problem, got, needed = refusal(request)
            raise PlanMismatchError(
                problem,
                got=got,
                needed=f"{needed} ({fitting or 'there is none'})",
                advice="plan again for this step, these shapes and this version of jax",
                planned=str(request),
                found=fitting,
            )
        found.update(dict.fromkeys(group, request))
    return found


def _overlaps(graph: Graph, group: Sequence[int], loops: Iterable[int]) -> bool:
    """True if some of a group's loops are around or inside of others, or the same."""
    around = {each for loop in group for each in graph.path(loop)}
    return any(loop in around or not set(group).isdisjoint(graph.path(loop)) for loop in loops)


def with_equations(
    traced: Traced,
    equations: Iterable[tuple[Equation, Phase]],
    loops: Iterable[OpenLoop],
    copies: Mapping[jex.Var, Sequence[jex.Var]],
) -> tuple[Traced, tuple[tuple[int, ...], ...]]:
    """A traced step with other equations that compute the same from the same arguments, its graph and jaxpr made anew.

    `copies` has for variables of the step those that stand for them, sharded alike; the others stand for themselves.
    Also returns for each value of the old step the ids of what stands for it, as far as it exists.
    """
    pairs = tuple(equations)
    program = traced.program.replace(equations=tuple(e for e, _ in pairs), loops=tuple(loops))
    variables = [copies.get(variable, (variable,)) for variable in traced.variables]
    graph, named = graph_of(
        program,
        [phase for _, phase in pairs],
        shardings=[spec.sharding for spec in traced.specs],
        donated=traced.donated,
        splits=_splits(traced, variables),
    )
    ids = {variable: i for i, variable in enumerate(named)}
    jaxpr = closed_jaxpr(program, program.equations, program.outvars)
    changed = replace(traced, graph=graph, program=program, jaxpr=jaxpr, variables=named)
    return changed, tuple(tuple(ids[copy] for copy in each if copy in ids) for each in variables)


def _splits(traced: Traced, variables: Sequence[Sequence[jex.Var]]) -> dict[jex.Var, tuple[tuple[str, ...], ...]]:
    """How the variables that stand for sharded values are sharded: as these values."""
    pairs = zip(traced.graph.values, variables, strict=True)
    return {copy: value.split for value, each in pairs if value.split for copy in each}
