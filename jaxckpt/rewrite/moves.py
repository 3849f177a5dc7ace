"""Equations of moves: stores to the host and loads from there, and partitions over a mesh axis and back.

An offload is a `device_put` to JAX's host memory space, which every backend lowers. A partition is a constraint on one
dimension; the other dimensions are left to the compiler. Where the axis is explicit it is a change of the value's type,
which names them all. Each equation is traced from the public function, so its parameters are those of the installed
version.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.extend.core as jex
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import Offload, Partition
from jaxckpt.schedule import Move

HOST = "pinned_host"

AxesByDim = tuple[tuple[str, ...], ...]
"""For each dimension the mesh axes that it is sharded over."""


def move_eqn(
    step: Move, variable: jex.Var, aval: jax.core.ShapedArray, mesh: jax.sharding.Mesh | None, split: AxesByDim = ()
) -> jex.JaxprEqn:
    """The equation of a move.

    Args:
      step: The move.
      variable: The variable that is moved.
      aval: The type of the value at its producer.
      mesh: The mesh of the step's arguments, or None.
      split: How the value is sharded at its producer, as far as that is known.

    Returns:
      An equation that reads `variable` and writes a new one.

    Raises:
      UnsupportedDecisionError: There is no such memory space, mesh axis or dimension.
    """
    if isinstance(step.decision, Offload):
        require_space(step.decision)
        space = jax.memory.Space.Device if step.restores else jax.memory.Space.Host
        eqn = traced_eqn(lambda x: jax.device_put(x, space), variable.aval)
    else:
        require_axis(step.decision, aval.shape, mesh, split)
        eqn = traced_eqn(_constraint(step, aval, mesh, split), variable.aval)
    return eqn.replace(invars=[variable], outvars=[jex.Var(eqn.outvars[0].aval)])


def _constraint(
    step: Move, aval: jax.core.ShapedArray, mesh: jax.sharding.Mesh, split: AxesByDim
) -> Callable[[jax.Array], jax.Array]:
    """The function that shards a value, or undoes that: a change of its type where the axis is explicit."""
    decision = step.decision
    assert isinstance(decision, Partition), "offloads need no mesh"
    explicit = dict(zip(mesh.axis_names, mesh.axis_types, strict=True)).get(decision.axis) == AxisType.Explicit
    if not explicit:
        sharding = partitioned(decision, len(aval.shape), mesh, restores=step.restores, split=split)
        return lambda x: jax.lax.with_sharding_constraint(x, sharding)
    if step.restores:
        return lambda x: jax.sharding.reshard(x, aval.sharding)
    parts = [*aval.sharding.spec, *(None for _ in range(len(aval.shape) - len(aval.sharding.spec)))]
    own = parts[decision.dim]
    before = own if isinstance(own, tuple) else () if own is None else (own,)
    parts[decision.dim] = (*before, decision.axis)
    return lambda x: jax.sharding.reshard(x, NamedSharding(aval.sharding.mesh, PartitionSpec(*parts)))


def require_space(decision: Offload) -> None:
    """Refuses memory spaces that JAX does not offer inside a step."""
    if decision.space == HOST:
        return
    raise UnsupportedDecisionError(
        f"an offload to {decision.space!r} cannot be carried out.",
        got=f"space = {decision.space!r}",
        needed=f"{HOST!r}: the host memory that devices read directly",
        advice=f'space = "{HOST}", or leave it out',
        decisions=(decision,),
    )


def require_axis(
    decision: Partition, shape: tuple[int, ...], mesh: jax.sharding.Mesh | None, split: AxesByDim = ()
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
        " arguments with shardings, or `jax.set_mesh(mesh)` around a call under jax.jit",
        decisions=(decision,),
    )


def partitioned(
    decision: Partition, rank: int, mesh: jax.sharding.Mesh, *, restores: bool, split: AxesByDim = ()
) -> NamedSharding:
    """The sharding of a partitioned value, or of one that is restored; other dimensions are left open."""
    assert decision.dim is not None, "a settled partition has a dimension"
    spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * rank
    own = tuple(axis for axis in (split[decision.dim] if split else ()) if axis in mesh.shape)
    axes = own if restores else (*own, decision.axis)
    spec[decision.dim] = axes or None
    return NamedSharding(mesh, PartitionSpec(*spec))


def traced_eqn(function: Callable[[jax.Array], jax.Array], aval: jax.core.ShapedArray) -> jex.JaxprEqn:
    """The one equation of a function of one array, over variables of its own."""
    closed = jax.make_jaxpr(function)(aval)
    (eqn,) = getattr(closed, "jaxpr", closed).eqns
    return eqn
