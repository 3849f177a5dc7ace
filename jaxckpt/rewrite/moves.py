"""Equations of moves: stores to the host and loads from there, and partitions over a mesh axis and back.

An offload is a `device_put` to JAX's host memory space, which every backend lowers. A partition is a constraint on one
dimension; the other dimensions are left to the compiler. Where the axis is explicit it is a change of the value's type,
which names them all. Each equation is traced from the public function, so its parameters are those of the installed
version.

In steps for TPUs the offloaded values of one type are rows of one array on the host (`HostStacks`). One of libtpu's
passes moves a load up through barriers to its store, so that nothing leaves the device. A slice of a larger array on
the host stays where it is. The array is passed on: each store makes a new version of it, so does each barrier, and the
next reader takes the newest.
"""

import math
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
from jax.experimental.xla_metadata import set_xla_metadata
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import GraphPlan, Offload, Partition
from jaxckpt.program.flat_program import HOST_MEMORY, traced_eqns
from jaxckpt.program.open_shard_map import ValueSharding, split_of
from jaxckpt.schedule import Move, Schedule

_COPY_LIMIT = "xla_gpu_experimental_parallel_async_compute_limit", 64
"""The copies and other asynchronous work that XLA's scheduler for GPUs has under way at once, 2 by default.

It ends a copy early so that another one can start. A step that stores and loads two arrays of state a layer took
71.2 ms with 2 and 54.0 with 4 (h200, jax 0.12.0.1, of which 49.7 are kernels)."""

_KERNEL_NS = 1000
"""Nanoseconds that every kernel takes in the reckoning of XLA's scheduler for GPUs, in steps with copies.

The scheduler takes 5 ms for the latency of a copy, of any size, and starts the copy so much work before the op that
waits for the copy. With real times a copy of more than 5 ms is late, and so is a copy that queues on the link. With
short kernels a copy starts as soon as the schedule lets it: a store behind its value, a load behind its barrier. With 0
all copies that are under way start where the first of them must. A plan that offloads 1.7 GiB of a decoder of 8 layers
of width 4,096 waits 15.5 ms for copies with real times and two copies under way, 8.9 ms with 0 and 16 copies, and
nothing with 1,000 or 5,000 and 64 copies (h200, jax 0.12.0.1)."""


def copy_options(plan: GraphPlan, platform: str) -> tuple[tuple[str, Any], ...]:
    """XLA options for a plan with values in host memory."""
    return (_COPY_LIMIT,) if platform == "cuda" and plan.copies else ()


def copy_metadata(plan: GraphPlan, *, for_tpu: bool) -> AbstractContextManager[Any]:
    """A context whose equations carry `_KERNEL_NS`, if a plan has values in host memory; none in steps for TPUs."""
    return set_xla_metadata(latency_metadata=str(_KERNEL_NS)) if plan.copies and not for_tpu else nullcontext()


def move_eqn(
    step: Move, variable: jex.Var, aval: jax.core.ShapedArray, mesh: jax.sharding.Mesh | None, split: ValueSharding = ()
) -> jex.JaxprEqn:
    """The equation of a move from `variable` to a new one; `aval` and `split` are those at the producer."""
    if isinstance(step.decision, Offload):
        if step.decision.space != HOST_MEMORY:
            raise UnsupportedDecisionError(
                f"an offload to {step.decision.space!r} cannot be carried out.",
                got=f"space = {step.decision.space!r}",
                needed=f"{HOST_MEMORY!r}: the host memory that devices read directly",
                advice=f'space = "{HOST_MEMORY}", or leave it out',
                decisions=(step.decision,),
            )
        space = jax.memory.Space.Device if step.restores else jax.memory.Space.Host
        (eqn,) = traced_eqns(lambda x: jax.device_put(x, space), [variable])
    else:
        require_axis(step.decision, aval.shape, mesh, split)
        (eqn,) = traced_eqns(_constraint(step, aval, mesh, split), [variable])
    return eqn


def _constraint(
    step: Move, aval: jax.core.ShapedArray, mesh: jax.sharding.Mesh, split: ValueSharding
) -> Callable[[jax.Array], jax.Array]:
    """The function that shards a value, or undoes that: a change of its type where the axis is explicit."""
    decision = step.decision
    assert isinstance(decision, Partition), "offloads need no mesh"
    assert decision.dim is not None, "a settled partition has a dimension"
    explicit = dict(zip(mesh.axis_names, mesh.axis_types, strict=True)).get(decision.axis) == AxisType.Explicit
    if not explicit:
        spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * len(aval.shape)
        own = tuple(axis for axis in (split[decision.dim] if split else ()) if axis in mesh.shape)
        spec[decision.dim] = (own if step.restores else (*own, decision.axis)) or None
        return lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec)))
    if step.restores:
        return lambda x: jax.sharding.reshard(x, aval.sharding)
    parts = list(split_of(aval.sharding.spec, len(aval.shape)))
    parts[decision.dim] += (decision.axis,)
    return lambda x: jax.sharding.reshard(x, NamedSharding(aval.sharding.mesh, PartitionSpec(*parts)))


def require_axis(
    decision: Partition, shape: tuple[int, ...], mesh: jax.sharding.Mesh | None, split: ValueSharding = ()
) -> None:
    """Refuses a partition over an axis, or of a dimension, that does not exist or cannot be divided."""
    axes = {} if mesh is None else dict(mesh.shape)
    if decision.axis in axes and decision.dim is not None and decision.dim < len(shape):
        own = math.prod(axes.get(axis, 1) for axis in (split[decision.dim] if split else ()))
        if shape[decision.dim] % (own * axes[decision.axis]) == 0:
            return
    listed = ", ".join(f"{axis} ({size} devices)" for axis, size in axes.items()) or "none: no argument has a sharding"
    raise UnsupportedDecisionError(
        f"a value of shape {shape} cannot be partitioned over {decision.axis!r} in dimension {decision.dim}.",
        got=f"mesh axes: {listed}",
        needed="an axis of the mesh whose size divides that dimension",
        advice="another axis or dim, or none: then one is chosen, and what nothing divides is not partitioned;"
        " arguments with shardings, or in_shardings, for the jit directly around the step; or `jax.set_mesh(mesh)`"
        " around the call",
        decisions=(decision,),
    )


_FEWEST_ROWS = 2
"""A single row is all of its array, which XLA does not treat as a slice."""


@dataclass(slots=True)
class _Stack:
    """One array: its rows, how many of them are written, and their instances, each with the array's newest variable."""

    count: int
    instances: list[int] = field(default_factory=list)
    written: int = 0


class HostStacks:
    """The arrays of a step, and the rows of its offloaded instances; no arrays where steps need none."""

    def __init__(
        self, variables: dict[int, jex.Var], schedule: Schedule, *, stacked: bool, apart: Collection[int] = ()
    ):
        """Gives arrays as many rows as the schedule stores values of each type; keeps `variables` up to date.

        Values `apart`, arguments and results of the step, are arrays of their own.
        """
        self._apart = apart
        self._variables = variables
        self._origin = schedule.origin
        self._stacks: dict[tuple[tuple[int, ...], Any], _Stack] = {}
        self._places: dict[int, tuple[_Stack, int]] = {}
        for step in schedule.steps if stacked else ():
            if isinstance(step, Move) and self._may_take(step) and not step.restores:
                self._stacks.setdefault(self._type(step), _Stack(0)).count += 1

    def takes(self, step: Move) -> bool:
        """True if a move stores to an array, or loads from one."""
        return self._may_take(step) and self._type(step) in self._stacks

    def move(self, step: Move, variable: jex.Var) -> list[jex.JaxprEqn]:
        """The equations of a store or load; the last one writes the array, or the value that is loaded."""
        (read,), (write,) = step.reads, step.writes
        if step.restores:
            row = self._places[read][1]
            return traced_eqns(lambda array: _loaded(array, row), [variable])
        stack = self._stacks[self._type(step)]
        row, stack.written = stack.written, stack.written + 1
        rows = max(_FEWEST_ROWS, stack.count)
        first = [] if stack.instances else traced_eqns(lambda: _empty(rows, variable.aval), [])
        before = first[-1].outvars[0] if first else self._variables[stack.instances[-1]]
        eqns = [*first, *traced_eqns(lambda array, value: _stored(array, value, row), [before, variable])]
        self._add(write, stack, row)
        self.renew(write, eqns[-1].outvars[0])
        return eqns

    def passed(self, read: int, write: int) -> None:
        """Notes that an instance has passed a barrier as another one, and its array with it."""
        if read in self._places:
            self._add(write, *self._places[read])
            self.renew(write, self._variables[write])

    def renew(self, instance: int, variable: jex.Var) -> None:
        """Makes a variable the one of an instance, and of all instances in the same array."""
        self._variables[instance] = variable
        if instance in self._places:
            self._variables.update(dict.fromkeys(self._places[instance][0].instances, variable))

    def _add(self, instance: int, stack: _Stack, row: int) -> None:
        self._places[instance] = stack, row
        stack.instances.append(instance)

    def _may_take(self, step: Move) -> bool:
        """True if a move is an offload of numbers outside of loops; loops have residual stacks anyway."""
        is_apart = self._origin[step.reads[0]] in self._apart
        is_offload = step.decision.on_host and step.loop is None and not is_apart
        return is_offload and not jax.dtypes.issubdtype(self._type(step)[1], jax.dtypes.extended)

    def _type(self, step: Move) -> tuple[tuple[int, ...], Any]:
        aval = self._variables[self._origin[step.reads[0]]].aval
        return aval.shape, aval.dtype


def _empty(count: int, aval: jax.core.ShapedArray) -> jax.Array:
    return jax.device_put(jax.lax.full((count, *aval.shape), 0, aval.dtype), jax.memory.Space.Host)


def _stored(array: jax.Array, value: jax.Array, row: int) -> jax.Array:
    on_host = jax.device_put(value, jax.memory.Space.Host)
    return jax.lax.dynamic_update_slice(array, on_host[None], (row, *(0 for _ in value.shape)))


def _loaded(array: jax.Array, row: int) -> jax.Array:
    shape = array.shape[1:]
    on_host = jax.lax.dynamic_slice(array, (row, *(0 for _ in shape)), (1, *shape))
    return jax.device_put(on_host.reshape(shape), jax.memory.Space.Device)
