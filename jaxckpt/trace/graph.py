"""A program of JAX equations becomes an `ir.Graph`: plain data, one op an equation, one value a variable.

Sizes, scopes, work, details and lines come from the files of their name; this one only numbers and connects.

Read after `program`, `size`, `scope`, `work`, `detail`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt.ir import Graph, Loop, Op, Phase, Value
from jaxckpt.ir.loop import CARRY, END, STACK, TURNS
from jaxckpt.ir.scope import TAG
from jaxckpt.trace.detail import Details
from jaxckpt.trace.program import Equation, OpenLoop, Program
from jaxckpt.trace.scope import policy_digests, scope_path
from jaxckpt.trace.size import aval_bytes
from jaxckpt.trace.source import Sources
from jaxckpt.trace.traits import Traits, placement_of
from jaxckpt.trace.work import Works

_UNREPEATABLE = frozenset({"rng_uniform", "pure_callback"})
"""Primitives without an effect in JAX's sense that must not run twice all the same: one would draw other numbers,
the other calls the user's host function once more."""


def graph_of(
    program: Program, phases: Sequence[Phase], *, shardings: Sequence[Any], donated: frozenset[int]
) -> tuple[Graph, tuple[Any, ...]]:
    """Builds the graph of a program.

    Args:
      program: One level deep.
      phases: One an equation.
      shardings: For each flat argument its sharding, or None.
      donated: Flat arguments that the results may take over.

    Returns:
      The graph, and the variable of each value by its id.
    """
    builder = _Builder()
    inputs = tuple(map(builder.value, program.invars, shardings))
    constants = tuple(builder.value(variable, _array_sharding(array)) for variable, array in program.constants)
    for equation, phase in zip(program.equations, phases, strict=True):
        builder.op(equation, phase)
    graph = Graph(
        values=builder.values(),
        ops=tuple(builder.ops),
        inputs=inputs,
        constants=constants,
        outputs=tuple(builder.ids[v] for v in program.outvars if isinstance(v, jex.Var)),
        donated=frozenset(inputs[index] for index in donated),
        mesh=_mesh(shardings),
        loops=tuple(_loop(i, loop) for i, loop in enumerate(program.loops)),
    )
    return graph, tuple(builder.variables)


def _loop(number: int, loop: OpenLoop) -> Loop:
    params = loop.eqn.params
    length, unroll = params["length"], params.get("unroll", 1)
    return Loop(
        id=number, length=length, reverse=params["reverse"], parent=loop.parent, rolled=length > max(1, int(unroll))
    )


def _mesh(shardings: Sequence[Any]) -> tuple[tuple[str, int], ...]:
    """The axes of the first mesh that an argument is laid out over."""
    meshes = (getattr(sharding, "mesh", None) for sharding in shardings)
    return next((tuple(mesh.shape.items()) for mesh in meshes if mesh is not None), ())


def _array_sharding(array: Any) -> Any:
    committed = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return array.sharding if committed else None


class _Builder:
    def __init__(self) -> None:
        self.variables: list[Any] = []
        self.ids: dict[Any, int] = {}
        self.ops: list[Op] = []
        self._sizes: list[int] = []
        self._names: dict[int, str] = {}
        self._untagged: dict[int, int] = {}
        self._works = Works()
        self._details = Details()
        self._sources = Sources()
        self._traits = Traits()

    def value(self, variable: Any, sharding: Any = None) -> int:
        self.ids[variable] = len(self.variables)
        self.variables.append(variable)
        self._sizes.append(aval_bytes(variable.aval, sharding))
        return self.ids[variable]

    def op(self, equation: Equation, phase: Phase) -> None:
        eqn = equation.eqn
        primitive = eqn.primitive.name
        constraint = eqn.params.get("sharding") if primitive == "sharding_constraint" else None
        reads = tuple(self.ids[variable] for variable in equation.variables())
        writes = tuple(self.value(variable, constraint) for variable in eqn.outvars)
        work = self._works.of(eqn)
        if primitive == "name":
            self._name(eqn.params["name"], *reads, *writes)
        self.ops.append(
            Op(
                id=len(self.ops),
                primitive=primitive,
                kind=self._works.kind(eqn),
                reads=reads,
                writes=writes,
                scope=scope_path(eqn.source_info.name_stack),
                phase=phase,
                flops=work.flops,
                traffic_bytes=work.traffic_bytes,
                workspace_bytes=work.workspace_bytes,
                effects=_effect_names(eqn),
                source=self._sources.of(eqn),
                detail=self._details.of(eqn),
                traits=self._traits.of(eqn),
                placement=placement_of(eqn),
                policies=policy_digests(eqn.source_info.name_stack),
                loop=equation.loop,
            )
        )

    def values(self) -> tuple[Value, ...]:
        return tuple(
            _value(i, variable.aval, size_bytes, self._names.get(i))
            for i, (variable, size_bytes) in enumerate(zip(self.variables, self._sizes, strict=True))
        )

    def _name(self, name: str, *values: int) -> None:
        """`checkpoint_name` names what it is given as well as what it gives; the first name stays.

        A tag of ours is no name: what it is put on and what it gives are one value, and either has the other's name.
        """
        given, made = values
        if name.startswith(TAG):
            self._untagged[made] = given
            if given in self._names:
                self._names.setdefault(made, self._names[given])
            return
        for value in (made, given, *([self._untagged[given]] if given in self._untagged else [])):
            self._names.setdefault(value, name)


def _value(number: int, aval: Any, size_bytes: int, name: str | None) -> Value:
    inner = getattr(aval, "inner_aval", aval)
    return Value(
        id=number,
        shape=tuple(getattr(inner, "shape", ())),
        dtype=str(inner.dtype) if hasattr(inner, "dtype") else type(aval).__name__,
        size_bytes=size_bytes,
        name=name,
    )


def _effect_names(eqn: Any) -> tuple[str, ...]:
    """Names of effects, also of those that hide in a body without being declared."""
    names = {type(effect).__name__ for effect in eqn.effects}
    names.update(_unrepeatable(eqn))
    if eqn.primitive.name in (CARRY, END, STACK):
        names.add(TURNS)
    return tuple(sorted(names))


def _unrepeatable(eqn: Any) -> set[str]:
    if eqn.primitive.name in _UNREPEATABLE:
        return {eqn.primitive.name}
    found: set[str] = set()
    for jaxpr in jex.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            found |= _unrepeatable(inner)
    return found
