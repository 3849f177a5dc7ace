"""Builds an `ir.Graph` from a program of JAX equations: plain data, one op an equation, one value a variable.

Sizes, shardings, scopes, work and other facts come from the modules of their name; this one numbers and connects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from types import MappingProxyType

import jax
import jax.core
import jax.extend.core as jex
from jax.sharding import NamedSharding, Sharding

from jaxckpt._compat import scan_operands
from jaxckpt.cost import Rates, arithmetic_costs, fuse, replay
from jaxckpt.ir import Graph, GraphPlan, Kind, Loop, Op, Phase, Trait, Value
from jaxckpt.ir.graph import axis_size
from jaxckpt.ir.regions import ALL_ITERATIONS, CARRY, COND_END, END, STACK, TO_SHARDS
from jaxckpt.ir.scope import TAG
from jaxckpt.program.flat_program import Equation, FlatProgram, OpenLoop, policy_digests, scope_path
from jaxckpt.program.open_shard_map import ValueSharding, is_local
from jaxckpt.schedule import schedule
from jaxckpt.trace.collectives import DeviceShare, OperandShardings, device_share
from jaxckpt.trace.flops import BodyMemory, WorkCounter
from jaxckpt.trace.op_facts import Details, SourceLines, TraitFinder, placement_of
from jaxckpt.trace.sharding import aval_bytes, meshes_of, split_bytes, split_of_sharding

_UNREPEATABLE = frozenset({"rng_uniform", "pure_callback"})
"""Primitives without an effect in JAX's sense that must not run twice all the same: one would draw other numbers,
the other calls the user's host function once more."""
_FUSIBLE = frozenset({Kind.VIEW, Kind.ELEMENTWISE})
_BYTES = Rates(
    name="bytes",
    matmul_flops_per_s=(),
    vector_flops_per_s=inf,
    memory_bandwidth_bytes_per_s=1.0,
    host_bandwidth_bytes_per_s=1.0,
    launch_s=0.0,
    memory_bytes=0,
)
_NO_SPLITS: Mapping[jex.Var, ValueSharding] = MappingProxyType({})


def graph_of(
    program: FlatProgram,
    phases: Sequence[Phase],
    *,
    shardings: Sequence[Sharding | None],
    donated: frozenset[int],
    splits: Mapping[jex.Var, ValueSharding] = _NO_SPLITS,
    work_around: WorkCounter | None = None,
) -> tuple[Graph, tuple[jex.Var, ...]]:
    """Builds the graph of a program from its phases and shardings, and gives the variable of each value by its id.

    `work_around` counts the work of the program that this one is a body of: then nothing is divided among devices.
    """
    mesh = next(meshes_of(program, shardings), jax.sharding.get_abstract_mesh())
    axes = tuple(mesh.shape.items()) if work_around is None else ()
    builder = _Builder(_GraphValues(splits, dict(axes)), work_around or WorkCounter(body_memory))
    inputs = tuple(map(builder.argument, program.invars, shardings))
    constants = tuple(builder.argument(variable, _array_sharding(array)) for variable, array in program.constants)
    for equation, phase in zip(program.equations, phases, strict=True):
        builder.op(equation, phase)
    graph = Graph(
        values=builder.values.data(),
        ops=tuple(builder.ops),
        inputs=inputs,
        constants=constants,
        outputs=tuple(builder.values.ids[v] for v in program.outvars if isinstance(v, jex.Var)),
        donated=frozenset(inputs[index] for index in donated),
        mesh=axes,
        loops=tuple(_loop(i, loop) for i, loop in enumerate(program.loops)),
    )
    return graph, tuple(builder.values.variables)


def body_memory(program: FlatProgram, work: WorkCounter) -> BodyMemory:
    """The memory of a body that stays one op, by the cost model that predicts the step.

    Seconds of a device that moves one byte a second, and does all else in no time, are bytes. Operands and results have
    memory outside of the body.
    """
    phases = [Phase.FORWARD] * len(program.equations)
    shardings = [None] * len(program.invars)
    graph, _ = graph_of(program, phases, shardings=shardings, donated=frozenset(), work_around=work)
    replayed = replay(
        graph,
        schedule(graph, GraphPlan(fingerprint=graph.fingerprint)),
        fusion=fuse(graph),
        arithmetic=arithmetic_costs(graph, _BYTES),
        rates=_BYTES,
        is_full_step=False,
    )
    return BodyMemory(traffic_bytes=round(replayed.step_s), workspace_bytes=replayed.peak_bytes)


def _loop(number: int, loop: OpenLoop) -> Loop:
    branch = None if loop.cond_branch is None else loop.cond_branch.branch
    unroll = max(1, int(loop.eqn.params.get("unroll", 1)))
    return Loop(
        id=number,
        length=loop.length,
        reverse=loop.reverse,
        parent=loop.parent,
        rolled=branch is not None or loop.is_while or loop.length > unroll,
        unroll=unroll,
        is_clone=loop.is_clone,
        branch=branch,
    )


def _array_sharding(array: object) -> Sharding | None:
    committed = isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer)
    return array.sharding if committed else None


class _GraphValues:
    """Numbers variables, with what the graph says of each."""

    def __init__(self, known_splits: Mapping[jex.Var, ValueSharding], axes: Mapping[str, int]) -> None:
        self.variables: list[jex.Var] = []
        self.ids: dict[jex.Var, int] = {}
        self.values: list[Value] = []
        self.has_mesh = bool(axes)
        self.axis_size = partial(axis_size, mesh=axes)
        self._known_splits = known_splits
        self._names: dict[int, str] = {}
        self._untagged: dict[int, int] = {}

    def add(self, variable: jex.Var, sharding: Sharding | None = None, *, local: bool = False) -> int:
        """Numbers a variable; its sharding is the one given, the propagated one, or that of its type."""
        number = self.ids[variable] = len(self.variables)
        self.variables.append(variable)
        aval = variable.aval
        inner = getattr(aval, "inner_aval", aval)
        split = () if sharding is not None else self._known_splits.get(variable, ())
        size_bytes = aval_bytes(aval, sharding)
        if split:
            size_bytes = split_bytes(aval, [prod(map(self.axis_size, axes)) for axes in split])
        elif isinstance(own := sharding or getattr(aval, "sharding", None), NamedSharding):
            split = split_of_sharding(own, len(aval.shape))
        shape = tuple(getattr(inner, "shape", ()))
        dtype = str(inner.dtype) if hasattr(inner, "dtype") else type(aval).__name__
        value = Value(id=number, shape=shape, dtype=dtype, size_bytes=size_bytes, split=split, local=local)
        self.values.append(value)
        return number

    def add_results(self, equation: Equation) -> tuple[int, ...]:
        """Numbers the results of an equation; a constraint shards its own where propagation did not."""
        eqn = equation.eqn
        sharding = eqn.params.get("sharding") if eqn.primitive.name == "sharding_constraint" else None
        if any(variable in self._known_splits for variable in eqn.outvars):
            sharding = None
        return tuple(self.add(variable, sharding, local=is_local(equation)) for variable in eqn.outvars)

    def name(self, name: str, operand: int, result: int) -> None:
        """Gives operand and result of `checkpoint_name` its name, where they have none.

        A tag of ours is no name: its operand and its result are one value, and either takes the other's name.
        """
        if name.startswith(TAG):
            self._untagged[result] = operand
            if operand in self._names:
                self._names.setdefault(result, self._names[operand])
            return
        for value in (result, operand, *([self._untagged[operand]] if operand in self._untagged else [])):
            self._names.setdefault(value, name)

    def data(self) -> tuple[Value, ...]:
        names = self._names
        return tuple(replace(value, name=names[value.id]) if value.id in names else value for value in self.values)


class _Builder:
    """Appends ops, one an equation."""

    def __init__(self, values: _GraphValues, work: WorkCounter) -> None:
        self.values = values
        self.ops: list[Op] = []
        self._argument_derived: set[int] = set()
        self._work = work
        self._details = Details()
        self._sources = SourceLines()
        self._traits = TraitFinder()

    def argument(self, variable: jex.Var, sharding: Sharding | None = None) -> int:
        """Numbers an argument or constant of the step."""
        self._argument_derived.add(number := self.values.add(variable, sharding))
        return number

    def op(self, equation: Equation, phase: Phase) -> None:
        eqn, primitive = equation.eqn, equation.eqn.primitive.name
        reads = tuple(self.values.ids[variable] for variable in equation.variables())
        writes = self.values.add_results(equation)
        if primitive == "name":
            self.values.name(eqn.params["name"], *reads, *writes)
        work, kind = self._work.of(eqn), self._work.kind(eqn)
        share = self._share(eqn, kind, writes)
        traits = self._traits.of(eqn)
        # The compiler clones views and elementwise work on arguments alone into each reader, shard by shard: nothing
        # of them is exchanged. Of other ops exchanged results are materialised, so they do not fuse.
        if kind in _FUSIBLE and self._argument_derived.issuperset(reads):
            self._argument_derived.update(writes)
        elif share.summed.size_bytes:
            traits |= {Trait.COLLECTIVE}
            if kind is Kind.ELEMENTWISE or primitive == TO_SHARDS:
                kind = Kind.OPAQUE
        self.ops.append(
            Op(
                id=len(self.ops),
                primitive=primitive,
                kind=kind,
                reads=reads,
                writes=writes,
                scope=scope_path(eqn.source_info.name_stack),
                phase=phase,
                flops=work.flops and work.flops / share.ways,
                traffic_bytes=work.traffic_bytes // share.ways,
                gathered=share.gathered,
                summed=share.summed,
                workspace_bytes=work.workspace_bytes // (1 if primitive == "shard_map" else share.ways),
                carries=_carries(eqn),
                effects=_effect_names(equation),
                source=self._sources.of(eqn),
                detail=self._details.of(eqn),
                traits=traits,
                placement=placement_of(eqn),
                policies=policy_digests(eqn.source_info.name_stack),
                loop=equation.loop,
            )
        )

    def _share(self, eqn: jex.JaxprEqn, kind: Kind, writes: tuple[int, ...]) -> DeviceShare:
        """The share of one device; all of the work where there is no mesh."""
        values = self.values
        if not values.has_mesh or not writes:
            return DeviceShare()
        reads = [values.values[values.ids[atom]] if isinstance(atom, jex.Var) else None for atom in eqn.invars]
        result = values.values[writes[0]]
        operands = OperandShardings(
            reads=[() if value is None else value.split for value in reads],
            read_bytes=[0 if value is None else value.size_bytes for value in reads],
            write=result.split,
            write_bytes=result.size_bytes,
            size_of=values.axis_size,
        )
        return device_share(eqn, kind, operands)


def _carries(eqn: jex.JaxprEqn) -> int:
    """The number of a loop's carries, which are its first results; 0 for other equations."""
    match eqn.primitive.name:
        case "while":
            return len(eqn.outvars)
        case "scan":
            _, carry, _ = scan_operands(eqn.params, eqn.invars)
            return len(carry)
    return 0


def _effect_names(equation: Equation) -> tuple[str, ...]:
    """Names of effects, including those in a body that JAX does not declare."""
    eqn = equation.eqn
    names = {type(effect).__name__ for effect in equation.effects}
    names.update(_unrepeatable(eqn))
    if eqn.primitive.name in (CARRY, END, STACK, COND_END):
        names.add(ALL_ITERATIONS)
    return tuple(sorted(names))


def _unrepeatable(eqn: jex.JaxprEqn) -> set[str]:
    if eqn.primitive.name in _UNREPEATABLE:
        return {eqn.primitive.name}
    found: set[str] = set()
    for jaxpr in jex.jaxprs_in_params(eqn.params):
        for inner in jaxpr.eqns:
            found |= _unrepeatable(inner)
    return found
