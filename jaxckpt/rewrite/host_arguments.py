"""A step whose optimiser state is in host memory: the types and shardings of such arguments and results.

The memory space is part of an array's type. A step is traced with all arguments on the device; a plan with
`host_arguments` gives some of them the host's type, and the results that take over their memory get it from the
`device_put` that stores them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import jax
import jax.core
import jax.extend.core as jex

from jaxckpt._errors import PlanMismatchError
from jaxckpt.program.flat_program import HOST_MEMORY, is_on_host
from jaxckpt.trace import Traced

_MOVES_IN_TRACES = ContextVar("jaxckpt_moves_in_traces", default=False)


def with_host_arguments(traced: Traced, arguments: Sequence[int]) -> Traced:
    """The traced step with some arguments, by value id, of the host's type; the equations that read them are not."""
    variables = list(traced.variables)
    for argument in arguments:
        variables[argument] = jex.Var(variables[argument].aval.update(memory_space=jax.memory.Space.Host))
    names = dict(zip(traced.variables, variables, strict=True))
    program = traced.program.replace(invars=tuple(names[v] for v in traced.program.invars))
    specs = map(host_spec, traced.specs, (v.aval for v in program.invars))
    return replace(traced, program=program, variables=tuple(variables), specs=tuple(specs))


def host_spec(spec: jax.ShapeDtypeStruct, aval: jax.core.AbstractValue) -> jax.ShapeDtypeStruct:
    """The description of an argument, in host memory if its type says so."""
    return spec.update(sharding=host_sharding(spec.sharding)) if is_on_host(aval) else spec


def host_sharding(sharding: jax.sharding.Sharding | None) -> jax.sharding.Sharding:
    """The same sharding in host memory; that of the first device where there is none."""
    return (sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])).with_memory_kind(HOST_MEMORY)


def moved_to(leaf: Any, aval: jax.core.AbstractValue, donated: bool) -> Any:
    """An argument in the memory of its type; one that was elsewhere, and is donated, is deleted there."""
    if _has_memory_of(leaf, aval):
        return leaf
    moved = jax.device_put(leaf, _sharding_in(leaf, aval))
    if donated and isinstance(leaf, jax.Array):
        moved.block_until_ready()
        leaf.delete()
    return moved


def described_in(leaf: Any, aval: jax.core.AbstractValue) -> Any:
    """An argument, or its description in the memory of its type."""
    if _has_memory_of(leaf, aval):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_sharding_in(leaf, aval))


@contextmanager
def moves_in_traces() -> Iterator[None]:
    """In this context arguments of a trace are copied to the memory of their types; they are not donated there."""
    before = _MOVES_IN_TRACES.set(True)
    try:
        yield
    finally:
        _MOVES_IN_TRACES.reset(before)


def moved_in_trace(
    name: str, paths: Sequence[str], leaves: Sequence[jax.Array], avals: Sequence[Any]
) -> Sequence[jax.Array]:
    """Arguments of a trace in the memory of their types.

    They have to be there, since a copy in the trace would free nothing, and XLA would give a donated argument's memory
    to a result in another one.
    """
    if _MOVES_IN_TRACES.get():
        return [_copied(leaf, aval) for leaf, aval in zip(leaves, avals, strict=True)]
    pairs = zip(paths, leaves, avals, strict=True)
    wrong = [path for path, leaf, aval in pairs if not _has_memory_of(leaf, aval)]
    if wrong:
        raise PlanMismatchError(
            f"apply({name}): {len(wrong)} arguments are in another memory than the plan has them in, under jax.jit.",
            got="; ".join(wrong[:8]) + ("; ..." if len(wrong) > 8 else ""),
            needed="optimiser state that the plan has in host memory, in host memory; all else on the device",
            advice="plan.apply(step, donate_argnums=...) without jax.jit around it: it compiles itself, and moves its"
            " arguments; or jax.device_put(leaf, leaf.sharding.with_memory_kind('pinned_host')) for these",
            differing=tuple(wrong),
        )
    return leaves


def _has_memory_of(leaf: Any, aval: jax.core.AbstractValue) -> bool:
    """True for an argument in the memory of a type."""
    return is_on_host(aval) == is_on_host(jax.typeof(leaf))


def _copied(leaf: jax.Array, aval: jax.core.AbstractValue) -> jax.Array:
    space = jax.memory.Space.Host if is_on_host(aval) else jax.memory.Space.Device
    return leaf if _has_memory_of(leaf, aval) else jax.device_put(leaf, space)


def _sharding_in(leaf: Any, aval: jax.core.AbstractValue) -> jax.sharding.Sharding:
    sharding = host_sharding(getattr(leaf, "sharding", None))
    return sharding if is_on_host(aval) else sharding.with_memory_kind("device")
