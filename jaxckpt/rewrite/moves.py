"""The equations that put a value into the form in which it waits for the backward, and bring it back.

To the host it goes by `device_put` to JAX's host memory space, which every backend lowers. A partition is a constraint
on one dimension; the other dimensions are left to the compiler. Each equation is traced from the public function, so
its parameters are those of the installed version.
"""

from typing import Any

import jax
import jax.extend.core as jex
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import Move, Offload, Partition

HOST = "pinned_host"


def move_eqn(step: Move, variable: Any, whole: Any, mesh: Any) -> Any:
    """The equation of a move.

    Args:
      step: The move.
      variable: What is moved.
      whole: The type of the value where it is made.
      mesh: The mesh of the step's arguments, or None.

    Returns:
      An equation that reads `variable` and writes a new one.

    Raises:
      UnsupportedDecisionError: There is no such memory space, mesh axis or dimension.
    """
    if isinstance(step.decision, Offload):
        require_space(step.decision)
        space = jax.memory.Space.Device if step.back else jax.memory.Space.Host
        eqn = _traced(lambda x: jax.device_put(x, space), variable.aval)
    else:
        require_axis(step.decision, whole.shape, mesh)
        sharding = partitioned(step.decision, len(whole.shape), mesh, back=step.back)
        eqn = _traced(lambda x: jax.lax.with_sharding_constraint(x, sharding), variable.aval)
    return eqn.replace(invars=[variable], outvars=[jex.Var(eqn.outvars[0].aval)])


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


def require_axis(decision: Partition, shape: tuple[int, ...], mesh: Any) -> None:
    """Refuses a partition over an axis or of a dimension that is not there."""
    axes = {} if mesh is None else dict(mesh.shape)
    if decision.axis in axes and decision.dim < len(shape) and shape[decision.dim] % axes[decision.axis] == 0:
        return
    listed = ", ".join(f"{axis} ({size} devices)" for axis, size in axes.items()) or "none: no argument has a sharding"
    raise UnsupportedDecisionError(
        f"a value of shape {shape} cannot be partitioned over {decision.axis!r} in dimension {decision.dim}.",
        got=f"mesh axes: {listed}",
        needed="an axis of the mesh whose size divides that dimension",
        advice="another axis or dim; arguments with shardings, or `jax.set_mesh(mesh)` around a call under jax.jit",
        decisions=(decision,),
    )


def partitioned(decision: Partition, rank: int, mesh: Any, *, back: bool) -> NamedSharding:
    """The sharding of a partitioned value, or of one that comes back whole."""
    spec: list[Any] = [PartitionSpec.UNCONSTRAINED] * rank
    spec[decision.dim] = None if back else decision.axis
    return NamedSharding(mesh, PartitionSpec(*spec))


def _traced(function: Any, aval: Any) -> Any:
    closed = jax.make_jaxpr(function)(aval)
    (eqn,) = getattr(closed, "jaxpr", closed).eqns
    return eqn
