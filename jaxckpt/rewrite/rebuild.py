"""A traced step with other equations that compute the same from the same arguments: its graph and jaxpr made anew.

Read after `step`; `stretch` and `nest` ask.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxckpt.ir import Phase
from jaxckpt.outline.outline import closed_jaxpr
from jaxckpt.program.flat_program import Equation, OpenLoop
from jaxckpt.trace.graph import graph_of
from jaxckpt.trace.step import Traced

Replacements = Mapping[Any, Sequence[Any]]
"""For variables of a step those that stand for them; the others stand for themselves."""


def rebuilt(
    traced: Traced,
    equations: Iterable[tuple[Equation, Phase]],
    loops: Iterable[OpenLoop],
    copies: Replacements,
) -> tuple[Traced, tuple[tuple[int, ...], ...]]:
    """Builds a step of other equations.

    Args:
      traced: The step.
      equations: In order, each with its phase.
      loops: Whose bodies stand open among them.
      copies: What stands for variables of the step; copies are split over the mesh as what they stand for.

    Returns:
      The new step, and for each value of the old one the ids of what stands for it, as far as it is there.
    """
    made = tuple(equations)
    program = traced.program.replace(equations=tuple(e for e, _ in made), loops=tuple(loops))
    variables = [copies.get(variable, (variable,)) for variable in traced.variables]
    splits = {
        copy: value.split
        for value, each in zip(traced.graph.values, variables, strict=True)
        if value.split
        for copy in each
    }
    graph, named = graph_of(
        program,
        [phase for _, phase in made],
        shardings=[spec.sharding for spec in traced.specs],
        donated=traced.donated,
        splits=splits,
    )
    ids = {variable: i for i, variable in enumerate(named)}
    jaxpr = closed_jaxpr(program, program.equations, program.outvars)
    built = replace(traced, graph=graph, program=program, jaxpr=jaxpr, variables=named)
    return built, tuple(tuple(ids[copy] for copy in each if copy in ids) for each in variables)
