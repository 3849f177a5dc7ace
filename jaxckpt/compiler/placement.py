"""Arguments are described where the caller has them; the compiler needs them on the target.

A description (`jax.ShapeDtypeStruct`) may lie nowhere, on one device, or on a mesh. What already lies on the
target stays. A mesh of other devices is rebuilt on the target with the same shape and axis names. Beside a mesh,
what lies nowhere or on one device is left to jax, as it does for arrays that are not committed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import jax
import jax.extend.core as jex
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxckpt import _compat
from jaxckpt._errors import TargetError
from jaxckpt.machine import Target


def place(
    specs: Sequence[jax.ShapeDtypeStruct], target: Target, *, own: Mesh | None = None
) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Puts descriptions of arrays on a target's devices, or leaves them to jax.

    `own` is the mesh that the step itself names (`target_mesh_of_step`). Meshes of as many devices are rebuilt on its
    devices, and what lies nowhere or on one device is left to jax.

    Raises a `TargetError` if a mesh has more devices than the target, or a sharding is of a kind that we cannot
    rebuild.
    """
    lone = _lone_sharding(specs, target) if own is None else None
    return tuple(spec.update(sharding=place_sharding(spec.sharding, target, lone=lone, own=own)) for spec in specs)


def target_mesh_of_step(jaxpr: jex.Jaxpr | jex.ClosedJaxpr, target: Target) -> Mesh | None:
    """The first mesh that a step names, at any level, of devices of the target or of others of the same kind."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        for named in (eqn.params.get("mesh"), getattr(eqn.params.get("sharding"), "mesh", None)):
            if isinstance(named, Mesh) and not named.empty and _lies_on(target, NamedSharding(named, PartitionSpec())):
                return named
        for inner in jex.jaxprs_in_params(eqn.params):
            if (found := target_mesh_of_step(inner, target)) is not None:
                return found
    return None


def place_sharding(
    sharding: Sharding | None, target: Target, *, lone: Sharding | None = None, own: Mesh | None = None
) -> Sharding | None:
    """Puts one sharding on a target; `lone` stands for nowhere or one device, where None leaves it to jax."""
    if isinstance(sharding, NamedSharding):
        return _place_named(sharding, target, own)
    if sharding is None:
        return lone
    if len(sharding.device_set) == 1:
        kind = memory_kind(sharding)
        return lone.with_memory_kind(kind) if lone is not None and kind else lone
    if _lies_on(target, sharding):
        return sharding
    raise TargetError(
        f'a {type(sharding).__name__} cannot be moved to target "{target.name}".',
        got=repr(sharding),
        needed="a NamedSharding, or one on the target's own devices",
        advice=f'jax.sharding.NamedSharding(jaxckpt.Target("{target.name}").mesh(shape, axis_names), spec)',
        target=target.name,
    )


@contextmanager
def mesh_of_target(target: Target) -> Iterator[None]:
    """Where the caller has set a mesh (`jax.set_mesh`), sets its like on the target meanwhile."""
    mesh = jax.sharding.get_mesh()
    if mesh.empty:
        yield
    else:
        with jax.set_mesh(_place_mesh(mesh, target)):
            yield


def _lone_sharding(specs: Sequence[jax.ShapeDtypeStruct], target: Target) -> Sharding | None:
    if any(isinstance(spec.sharding, NamedSharding) for spec in specs):
        return None
    for spec in specs:
        if isinstance(spec.sharding, SingleDeviceSharding) and _lies_on(target, spec.sharding):
            return SingleDeviceSharding(*spec.sharding.device_set)
    return target.sharding


def _place_named(sharding: NamedSharding, target: Target, own: Mesh | None) -> NamedSharding:
    mesh = sharding.mesh
    if own is not None and mesh.size == own.size:
        placed = Mesh(own.devices.reshape(mesh.axis_sizes), mesh.axis_names, axis_types=mesh.axis_types)
    elif isinstance(mesh, Mesh) and _lies_on(target, sharding):
        return sharding
    else:
        placed = _place_mesh(mesh, target)
    kind = memory_kind(sharding) if isinstance(mesh, Mesh) else None
    return NamedSharding(placed, sharding.spec, memory_kind=kind)


def _place_mesh(mesh: Mesh | AbstractMesh, target: Target) -> Mesh:
    if isinstance(mesh, Mesh) and _lies_on(target, NamedSharding(mesh, PartitionSpec())):
        return mesh
    return target.mesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types)


def _lies_on(target: Target, sharding: Sharding) -> bool:
    """True if a sharding can be compiled for as it is: on the target's own devices, or on others of the same kind."""
    theirs = sharding.device_set
    if theirs <= frozenset(target.devices):
        return True
    mine = target.devices[0]
    return target.compile_only and all(
        _compat.is_compile_only(device) and device.platform == mine.platform and device.device_kind == mine.device_kind
        for device in theirs
    )


def memory_kind(sharding: Sharding | None) -> str | None:
    """The memory that a sharding names, unless it is the one its devices use anyway."""
    kind = getattr(sharding, "memory_kind", None)
    if kind is None or sharding is None:
        return None
    usual = "device"
    if not isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        device = next(iter(sharding.device_set))
        with suppress(RuntimeError):  # compile-only devices: UNIMPLEMENTED
            usual = device.default_memory().kind
    return None if kind == usual else kind
