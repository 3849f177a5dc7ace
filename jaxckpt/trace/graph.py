"""A program of JAX equations becomes an `ir.Graph`: plain data, one op an equation, one value a variable.

Sizes, splits, scopes, work, details and lines come from the files of their name; this one only numbers and connects.

Read after `program`, `size`, `split`, `exchange`, `scope`, `work`, `detail`.
"""

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt.ir import Graph, Kind, Loop, Op, Phase, Trait, Value
from jaxckpt.ir.branch import COND_END
from jaxckpt.ir.loop import ALL_ITERATIONS, CARRY, END, STACK
from jaxckpt.ir.scope import TAG
from jaxckpt.ir.shard_map import TO_SHARDS
from jaxckpt.program.flat_program import Equation, FlatProgram, OpenLoop
from jaxckpt.program.open_shard_map import is_local
from jaxckpt.program.scope import policy_digests, scope_path
from jaxckpt.trace.collectives import OperandShardings, Shared, shared
from jaxckpt.trace.detail import Details
from jaxckpt.trace.flops import WorkCounter
from jaxckpt.trace.sharding import ValueSharding, meshes_of, split_of_sharding
from jaxckpt.trace.size import aval_bytes, split_bytes
from jaxckpt.trace.source import SourceLines
from jaxckpt.trace.traits import Traits, placement_of

_UNREPEATABLE = frozenset({"rng_uniform", "pure_callback"})
"""Primitives without an effect in JAX's sense that must not run twice all the same: one would draw other numbers,
the other calls the user's host function once more."""


_CHEAP = frozenset({Kind.VIEW, Kind.ELEMENTWISE})
_NOTHING_SPLIT: Mapping[Any, ValueSharding] = MappingProxyType({})


def graph_of(
    program: FlatProgram,
    phases: Sequence[Phase],
    *,
    shardings: Sequence[Any],
    donated: frozenset[int],
    splits: Mapping[Any, ValueSharding] = _NOTHING_SPLIT,
) -> tuple[Graph, tuple[Any, ...]]:
    """Builds the graph of a program.

    Args:
      program: One level deep.
      phases: One an equation.
      shardings: For each flat argument its sharding, or None.
      donated: Flat arguments that the results may take over.
      splits: How variables are split over the mesh, as far as it is known.

    Returns:
      The graph, and the variable of each value by its id.
    """
    axes = tuple(next(meshes_of(program, shardings), jax.sharding.get_abstract_mesh()).shape.items())
    builder = _Builder(splits, dict(axes))
    inputs = tuple(map(builder.argument, program.invars, shardings))
    constants = tuple(builder.argument(variable, _array_sharding(array)) for variable, array in program.constants)
    for equation, phase in zip(program.equations, phases, strict=True):
        builder.op(equation, phase)
    graph = Graph(
        values=builder.values(),
        ops=tuple(builder.ops),
        inputs=inputs,
        constants=constants,
        outputs=tuple(builder.ids[v] for v in program.outvars if isinstance(v, jex.Var)),
        donated=frozenset(inputs[index] for index in donated),
        mesh=axes,
        loops=tuple(_loop(i, loop) for i, loop in enumerate(program.loops)),
    )
    return graph, tuple(builder.variables)


def _loop(number: int, loop: OpenLoop) -> Loop:
    if loop.cond_branch is not None:
        return Loop(id=number, length=1, reverse=False, parent=loop.parent, branch=loop.cond_branch.branch)
    unroll = max(1, int(loop.eqn.params.get("unroll", 1)))
    return Loop(
        id=number,
        length=loop.length,
        reverse=loop.reverse,
        parent=loop.parent,
        rolled=loop.length > unroll,
        unroll=unroll,
        is_clone=loop.is_clone,
    )


def _array_sharding(array: Any) -> Any:
    committed = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return array.sharding if committed else None


class _Builder:
    def __init__(self, splits: Mapping[Any, ValueSharding], axes: Mapping[str, int]) -> None:
        self.variables: list[Any] = []
        self._splits = splits
        self._axes = axes
        self._made_of_arguments: set[int] = set()
        self.ids: dict[Any, int] = {}
        self.ops: list[Op] = []
        self._sizes: list[int] = []
        self._split: list[ValueSharding] = []
        self._local: set[int] = set()
        self._names: dict[int, str] = {}
        self._untagged: dict[int, int] = {}
        self._works = WorkCounter()
        self._details = Details()
        self._sources = SourceLines()
        self._traits = Traits()

    def value(self, variable: Any, sharding: Any = None) -> int:
        self.ids[variable] = len(self.variables)
        self.variables.append(variable)
        split = () if sharding is not None else self._splits.get(variable, ())
        size_bytes = aval_bytes(variable.aval, sharding)
        if split:
            size_bytes = split_bytes(variable.aval, [prod(map(self._axis_size, axes)) for axes in split])
        elif isinstance(said := sharding or getattr(variable.aval, "sharding", None), jax.sharding.NamedSharding):
            split = split_of_sharding(said, len(variable.aval.shape))
        self._sizes.append(size_bytes)
        self._split.append(split)
        return self.ids[variable]

    def argument(self, variable: Any, sharding: Any = None) -> int:
        """A value that is there before the step begins."""
        self._made_of_arguments.add(number := self.value(variable, sharding))
        return number

    def op(self, equation: Equation, phase: Phase) -> None:
        eqn = equation.eqn
        primitive = eqn.primitive.name
        constraint = eqn.params.get("sharding") if primitive == "sharding_constraint" else None
        reads = tuple(self.ids[variable] for variable in equation.variables())
        known = constraint is None or any(v in self._splits for v in eqn.outvars)
        writes = tuple(self.value(variable, None if known else constraint) for variable in eqn.outvars)
        work, kind = self._works.of(eqn), self._works.kind(eqn)
        part = self._shared(eqn, kind, writes)
        light = kind in _CHEAP and all(v in self._made_of_arguments for v in reads)
        if light:
            self._made_of_arguments.update(writes)
        elif part.summed_bytes and (kind is Kind.ELEMENTWISE or primitive == TO_SHARDS):
            kind = Kind.OPAQUE  # what devices exchange is in memory
        if is_local(equation):
            self._local.update(writes)
        if primitive == "name":
            self._name(eqn.params["name"], *reads, *writes)
        self.ops.append(
            Op(
                id=len(self.ops),
                primitive=primitive,
                kind=kind,
                reads=reads,
                writes=writes,
                scope=scope_path(eqn.source_info.name_stack),
                phase=phase,
                flops=work.flops and work.flops / part.ways,
                traffic_bytes=work.traffic_bytes // part.ways,
                exchange_bytes=part.gathered_bytes + part.summed_bytes,
                gathered_bytes=part.gathered_bytes,
                workspace_bytes=work.workspace_bytes // (1 if primitive == "shard_map" else part.ways),
                effects=_effect_names(equation),
                source=self._sources.of(eqn),
                detail=self._details.of(eqn),
                traits=self._traits.of(eqn) | ({Trait.COLLECTIVE} if part.summed_bytes and not light else set()),
                placement=placement_of(eqn),
                policies=policy_digests(eqn.source_info.name_stack),
                loop=equation.loop,
            )
        )

    def _shared(self, eqn: Any, kind: Kind, writes: tuple[int, ...]) -> Shared:
        """The part of one device; all of it where there is no mesh."""
        if not self._axes or not writes:
            return Shared()
        ids = [self.ids[atom] if isinstance(atom, jex.Var) else None for atom in eqn.invars]
        operands = OperandShardings(
            reads=[() if i is None else self._split[i] for i in ids],
            read_bytes=[0 if i is None else self._sizes[i] for i in ids],
            write=self._split[writes[0]],
            write_bytes=self._sizes[writes[0]],
            size_of=self._axis_size,
        )
        return shared(eqn, kind, operands)

    def _axis_size(self, axis: str) -> int:
        _, slash, part = axis.rpartition("/")
        return int(part) if slash else self._axes.get(part, 1)

    def values(self) -> tuple[Value, ...]:
        return tuple(
            _value(i, variable.aval, size_bytes, self._names.get(i), split, i in self._local)
            for i, (variable, size_bytes, split) in enumerate(
                zip(self.variables, self._sizes, self._split, strict=True)
            )
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


def _value(number: int, aval: Any, size_bytes: int, name: str | None, split: ValueSharding, local: bool) -> Value:
    inner = getattr(aval, "inner_aval", aval)
    return Value(
        id=number,
        shape=tuple(getattr(inner, "shape", ())),
        dtype=str(inner.dtype) if hasattr(inner, "dtype") else type(aval).__name__,
        size_bytes=size_bytes,
        name=name,
        split=split,
        local=local,
    )


def _effect_names(equation: Equation) -> tuple[str, ...]:
    """Names of effects, also of those that hide in a body without being declared."""
    eqn = equation.eqn
    names = {type(effect).__name__ for effect in equation.effects}
    names.update(_unrepeatable(eqn))
    if eqn.primitive.name in (CARRY, END, STACK, COND_END):
        names.add(ALL_ITERATIONS)
    return tuple(sorted(names))


def _unrepeatable(eqn: Any) -> set[str]:
    if eqn.primitive.name in _UNREPEATABLE:
        return {eqn.primitive.name}
    found: set[str] = set()
    for jaxpr in jex.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            found |= _unrepeatable(inner)
    return found
