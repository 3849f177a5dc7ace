"""Opens the bodies of `shard_map`: their equations join the program, between equations that enter and leave shards.

1. Opened are those without effects that belong to a gradient, over meshes all of whose axes are manual in the body.
2. A later body that takes in what an earlier one gave out, sharded the same, reads the device's own value from the
   earlier body: the residual of a body, decided on like any other.

`outline` puts equations of a body back into `shard_map` equations. The two primitives are explained in
`jaxckpt.ir.regions`.
"""

from collections.abc import Hashable
from typing import TypeAlias

import jax.core
import jax.extend.core as jex
from jax.extend.source_info_util import NameStack
from jax.sharding import PartitionSpec

from jaxckpt import _compat
from jaxckpt.ir.regions import FROM_SHARDS, TO_SHARDS
from jaxckpt.program.flat_program import Atom, Equation, ManualMesh, boundary_eqn
from jaxckpt.program.open_loops import belongs_to_gradient

ValueSharding: TypeAlias = tuple[tuple[str, ...], ...]
"""For each dimension the mesh axes that it is sharded over; part of an axis is written "axis/4"."""


def can_open_shard_map(eqn: jex.JaxprEqn, name_stack: NameStack) -> bool:
    """True if an equation is a `shard_map` without effects, over a full mesh, that is part of a gradient."""
    if eqn.primitive.name != "shard_map" or _compat.lasting_effects(eqn.effects):
        return False
    mesh = eqn.params["mesh"]
    if set(eqn.params["newly_manual_axes"]) != set(mesh.axis_names):
        return False
    if not all(isinstance(atom.aval, jax.core.ShapedArray) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    if any(spec.unreduced or spec.reduced for spec in (*eqn.params["in_specs"], *eqn.params["out_specs"])):
        return False
    return belongs_to_gradient(name_stack, [eqn.params["jaxpr"]])


class ShardMapOpener:
    """Opens bodies of `shard_map` while a program is inlined."""

    def __init__(self) -> None:
        self.manuals: list[ManualMesh] = []
        self._ids: dict[Hashable, int] = {}
        self._left: dict[jex.Var, tuple[int, ValueSharding, Atom]] = {}
        self._entered: dict[Hashable, jex.Var] = {}

    def begin(self, eqn: jex.JaxprEqn) -> int:
        """The manual mesh of a `shard_map`; the same one for equal meshes and checks."""
        key = (eqn.params["mesh"], eqn.params["check_vma"])
        if key not in self._ids:
            self._ids[key] = len(self.manuals)
            self.manuals.append(ManualMesh(eqn=eqn))
        return self._ids[key]

    def enter(
        self, manual: int, array: Atom, spec: PartitionSpec, aval: jax.core.AbstractValue, loop: int | None
    ) -> Equation | Atom:
        """A device's shard of an array: a new equation, the result of an equal one, or an earlier body's own value."""
        shard = jex.Var(aval)
        if isinstance(array, jex.Var):
            split = split_of(spec, len(array.aval.shape))
            if self._left.get(array, (None, None))[:2] == (manual, split):
                return self._left[array][2]
            known = self._entered.setdefault((array, manual, split, loop), shard)
            if known is not shard:
                return known
        return shard_boundary(self.manuals[manual], TO_SHARDS, array, shard, spec, manual=manual, loop=loop)

    def leave(self, manual: int, value: Atom, spec: PartitionSpec, result: jex.Var, loop: int | None) -> Equation:
        """The equation of the array that all devices' shards make up."""
        self._left[result] = (manual, split_of(spec, len(result.aval.shape)), value)
        return shard_boundary(self.manuals[manual], FROM_SHARDS, value, result, spec, manual=manual, loop=loop)


def split_of(spec: PartitionSpec, rank: int) -> ValueSharding:
    """The axes of each dimension that a spec names."""
    parts = (part if isinstance(part, tuple) else (part,) for part in (*spec, *[None] * (rank - len(spec))))
    return tuple(tuple(axis for axis in part if isinstance(axis, str)) for part in parts)


def shard_boundary(
    mesh: ManualMesh, name: str, read: Atom, write: jex.Var, spec: PartitionSpec, *, manual: int, loop: int | None
) -> Equation:
    """The equation of a device's shard of an array (`to_shards`), or of the array that all shards make up."""
    array = read if name == TO_SHARDS else write
    params = {"spec": spec, "split": split_of(spec, len(array.aval.shape)), "mesh": mesh.mesh}
    return Equation(boundary_eqn(mesh.eqn, name, [read], [write], **params), loop=loop, manual=manual)


def is_local(equation: Equation) -> bool:
    """True if the results of an equation are each device's own."""
    return equation.manual is not None and equation.eqn.primitive.name != FROM_SHARDS


def all_devices_var(mesh: ManualMesh, variable: jex.Var) -> tuple[jex.Var, PartitionSpec]:
    """A variable for the array that holds all devices' values of a variable, and its spec."""
    aval, spec = _per_device(mesh, variable.aval)
    with mesh.eqn.ctx.manager:
        unsharded = _compat.unsharded_aval(aval, spec, mesh.mesh, check_vma=mesh.check_vma)
    return jex.Var(unsharded), spec


def varying_axes_key(mesh: ManualMesh, variable: jex.Var) -> Hashable:
    """A key for the axes over which the values of devices may differ; all axes where types do not say."""
    return str(_per_device(mesh, variable.aval)[1])


def is_varying(mesh: ManualMesh, variable: jex.Var) -> bool:
    """True if the type of a variable says that devices may have different values of it."""
    return mesh.check_vma and any(_per_device(mesh, variable.aval)[1])


def _per_device(mesh: ManualMesh, aval: jax.core.ShapedArray) -> tuple[jax.core.ShapedArray, PartitionSpec]:
    """The type of a value with at least one dimension, and the spec under which each device keeps its own."""
    aval = aval if aval.shape else _compat.stacked_aval(1, aval)
    return aval, _compat.per_device_spec(aval, mesh.mesh, check_vma=mesh.check_vma)
