"""A step with its arguments becomes a program of operations: traced once for each kind of arguments, never compiled.

Read after `operation`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from jaxckpt._errors import ArgumentError
from jaxckpt.dynamic.eager.operation import VIEWS, Literal, Operation
from jaxckpt.dynamic.from_graph import write_graph
from jaxckpt.dynamic.program import Program
from jaxckpt.ir import Graph, Op
from jaxckpt.trace import Traced


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A traced step as operations over tensors: call `i` of the program is equation `i` of the step."""

    traced: Traced
    program: Program = field(repr=False)
    operations: tuple[Operation, ...] = field(repr=False)
    constants: dict[int, int | Literal] = field(repr=False)  # by tensor a flat argument's position, or the array
    results: tuple[int | Literal, ...] = field(repr=False)  # for each flat result a tensor or a literal

    def arrays(self, leaves: Sequence[Any], *, called: str = "dynamic.run") -> dict[int, Any]:
        """The arrays that are there from the start, by tensor, from the step's flat arguments.

        Raises:
          ArgumentError: An argument is a description of an array.
        """
        _refuse_descriptions(self.traced.paths, leaves, called)
        flat = [_array(leaf, spec) for leaf, spec in zip(leaves, self.traced.specs, strict=True)]
        return {t: flat[source] if isinstance(source, int) else source.value for t, source in self.constants.items()}


def prepare(traced: Traced, price: Callable[[Graph, list[str]], Sequence[float]] | None = None) -> Prepared:
    """Makes a program of a step traced with `eager=True`, with a call for each equation.

    `price` makes the prices of ops from the graph and a key for each op; without it they are the bytes that ops move.
    """
    graph = traced.graph
    keys = [_key(graph, op) for op in graph.ops]
    program, ids = write_graph(graph, prices=price and price(graph, keys), views=VIEWS)
    tensors = {variable: ids[value] for value, variable in enumerate(traced.variables) if value in ids}
    operations = tuple(
        Operation(
            eqn=equation.eqn,
            operands=_operands(equation.eqn.invars, tensors),
            writes=tuple(tensors[variable] for variable in equation.eqn.outvars),
            key=key,
        )
        for equation, key in zip(traced.program.equations, keys, strict=True)
    )
    sources: dict[int, int | Literal] = {value: i for i, value in reversed(list(enumerate(graph.inputs)))}
    for value, (_, array) in zip(graph.constants, traced.program.constants, strict=True):
        sources.setdefault(value, Literal(array))
    return Prepared(
        traced=traced,
        program=program,
        operations=operations,
        constants={ids[value]: source for value, source in sources.items()},
        results=_operands(traced.program.outvars, tensors),
    )


def _operands(atoms: Sequence[Any], tensors: Mapping[Any, int]) -> tuple[int | Literal, ...]:
    """The tensor of each variable; literals as they are."""
    return tuple(tensors[a] if isinstance(a, jex.Var) else Literal(a.val, a.aval.dtype) for a in atoms)


def _key(graph: Graph, op: Op) -> str:
    shapes = " ".join(str(graph.values[v]) for v in (*op.reads, *op.writes))
    return f"{op.primitive} {op.detail} {shapes}"


def _array(leaf: Any, spec: jax.ShapeDtypeStruct) -> Any:
    return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf, None if spec.weak_type else spec.dtype)


def _refuse_descriptions(paths: Sequence[str], leaves: Sequence[Any], called: str) -> None:
    described = [path for path, leaf in zip(paths, leaves, strict=True) if isinstance(leaf, jax.ShapeDtypeStruct)]
    if described:
        raise ArgumentError(
            f"{called}: {len(described)} of the step's {len(leaves)} argument leaves are descriptions.",
            got="; ".join(described[:20]),
            needed="arrays: the step is run",
            advice="jaxckpt.dynamic.simulate(graph, budget=...) for a step that is not to be run",
            paths=tuple(described),
        )
