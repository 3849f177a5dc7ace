"""A step with its arguments becomes a program of operations: traced once for each kind of arguments, never compiled.

Read after `operation` and `op_costs`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jaxckpt._errors import ArgumentError
from jaxckpt.dynamic import Program, program_from_graph
from jaxckpt.dynamic.eager.operation import VIEWS, Literal, Operation, operand_of
from jaxckpt.dynamic.program import Constant
from jaxckpt.ir import Graph
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A traced step as operations over tensors: call `i` of the program is equation `i` of the step."""

    traced: Traced
    program: Program = field(repr=False)
    operations: tuple[Operation, ...] = field(repr=False)
    constants: tuple[tuple[int, Any], ...] = field(repr=False)  # with the flat argument's position or the array itself
    results: tuple[Any, ...] = field(repr=False)  # for each flat result a tensor or a literal

    def arrays(self, leaves: Sequence[Any]) -> dict[int, Any]:
        """The arrays that are there from the start, by tensor, from the step's flat arguments.

        Raises:
          ArgumentError: An argument is a description of an array.
        """
        traced = self.traced
        _refuse_descriptions(traced.paths, leaves)
        flat = [_array(leaf, spec) for leaf, spec in zip(leaves, traced.specs, strict=True)]
        return {t: flat[source] if isinstance(source, int) else source.value for t, source in self.constants}


def prepare(traced: Traced, price: Callable[[Graph, list[str]], Sequence[float] | None]) -> Prepared:
    """Makes a program of a step traced with `eager=True`, with a call for each equation.

    `price` makes the prices of ops from the graph and a key for each op; None for the bytes that they move.
    """
    graph = traced.graph
    keys = [_key(graph, i) for i in range(len(graph.ops))]
    program = program_from_graph(graph, prices=price(graph, keys), views=VIEWS)
    first = [step.tensor for step in program.steps if isinstance(step, Constant)]
    given = tuple(dict.fromkeys((*graph.inputs, *graph.constants)))
    tensor = dict(zip(given, first, strict=True))
    for op, call in zip(graph.ops, program.calls, strict=True):
        tensor.update(zip(op.writes, call.writes, strict=False))
    value = {variable: i for i, variable in enumerate(traced.variables)}
    operations = tuple(
        Operation(
            eqn=equation.eqn,
            operands=tuple(operand_of(atom, lambda v: tensor[value[v]]) for atom in equation.eqn.invars),
            writes=tuple(tensor[value[v]] for v in equation.eqn.outvars),
            key=key,
        )
        for equation, key in zip(traced.program.equations, keys, strict=True)
    )
    arrays = dict(zip(graph.constants, (Literal(array) for _, array in traced.program.constants), strict=True))
    positions = {v: i for i, v in reversed(list(enumerate(graph.inputs)))}
    return Prepared(
        traced=traced,
        program=program,
        operations=operations,
        constants=tuple((tensor[v], positions.get(v, arrays.get(v))) for v in given),
        results=tuple(operand_of(atom, lambda v: tensor[value[v]]) for atom in traced.program.outvars),
    )


def _key(graph: Graph, op: int) -> str:
    made = graph.ops[op]
    shapes = " ".join(str(graph.values[v]) for v in (*made.reads, *made.writes))
    return f"{made.primitive} {made.detail} {shapes}"


def _array(leaf: Any, spec: jax.ShapeDtypeStruct) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf, None if spec.weak_type else spec.dtype)


def _refuse_descriptions(paths: Sequence[str], leaves: Sequence[Any]) -> None:
    described = [path for path, leaf in zip(paths, leaves, strict=True) if isinstance(leaf, jax.ShapeDtypeStruct)]
    if described:
        raise ArgumentError(
            f"dynamic.run: {len(described)} of the step's {len(leaves)} argument leaves are descriptions.",
            got="; ".join(described[:20]),
            needed="arrays: the step is run",
            advice="jaxckpt.dynamic.simulate(graph, budget=...) for a step that is not to be run",
            paths=tuple(described),
        )
