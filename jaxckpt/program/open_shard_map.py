"""The bodies of `shard_map` are opened: their equations stand in the program, between equations of ours.

Opened are those without effects that belong to a gradient, over meshes all of whose axes they see. What a later one
takes as an earlier one gave it is one and the same value on each device: the later body reads it where the earlier one
makes it. That is what a residual of a body is, and it is decided on like any other.

`regions` puts equations of a body back into `shard_map` equations. What the two primitives mean is said in
`jaxckpt.ir.shard_map`.

Read after `program` and `loops`; `inline` calls it.
"""

from collections.abc import Hashable
from typing import Any

import jax.core
import jax.extend.core as jex

from jaxckpt import _compat
from jaxckpt.ir.scope import JVP, TRANSPOSE
from jaxckpt.ir.shard_map import FROM_SHARDS, TO_SHARDS
from jaxckpt.program.flat_program import Atom, Equation, ManualMesh
from jaxckpt.program.open_scan import has_transpose

PRIMITIVES = {name: jex.Primitive(name) for name in (TO_SHARDS, FROM_SHARDS)}
"""They are never bound and never lowered: a program with open bodies is closed first."""

ValueSharding = tuple[tuple[str, ...], ...]


def can_open_shard_map(eqn: Any, name_stack: Any) -> bool:
    """Whether a `shard_map` can be opened and it can help: without effects, over a whole mesh, part of a gradient."""
    if eqn.primitive.name != "shard_map" or _compat.lasting_effects(eqn.effects):
        return False
    mesh = eqn.params["mesh"]
    if set(eqn.params["newly_manual_axes"]) != set(mesh.axis_names):
        return False
    if not all(isinstance(atom.aval, jax.core.ShapedArray) for atom in (*eqn.invars, *eqn.outvars)):
        return False
    if any(spec.unreduced or spec.reduced for spec in (*eqn.params["in_specs"], *eqn.params["out_specs"])):
        return False
    marks = _compat.name_stack_marks(name_stack)
    return JVP in marks or TRANSPOSE in marks or has_transpose(eqn.params["jaxpr"])


class ShardMapOpener:
    """Opens bodies of `shard_map` while a program is inlined."""

    def __init__(self) -> None:
        self.manuals: list[ManualMesh] = []
        self._known: dict[Hashable, int] = {}
        self._given: dict[Any, tuple[int, ValueSharding, Atom]] = {}
        self._taken: dict[Hashable, Any] = {}

    def begin(self, eqn: Any) -> int:
        """The way in which devices run the body of a `shard_map`; the same one for equal meshes and checks."""
        key = (eqn.params["mesh"], eqn.params["check_vma"])
        if key not in self._known:
            self._known[key] = len(self.manuals)
            self.manuals.append(ManualMesh(eqn=eqn))
        return self._known[key]

    def enter(self, manual: int, array: Atom, spec: Any, aval: Any, loop: int | None) -> Equation | Atom:
        """A device's part of an array: what shows it, what has shown it, or what an earlier body made."""
        split = split_of(spec, len(array.aval.shape))
        if isinstance(array, jex.Var):
            if self._given.get(array, (None, None))[:2] == (manual, split):
                return self._given[array][2]
            if (array, manual, split, loop) in self._taken:
                return self._taken[array, manual, split, loop]
        part = jex.Var(aval)
        if isinstance(array, jex.Var):
            self._taken[array, manual, split, loop] = part
        return to_shards(self.manuals[manual], array, part, spec, manual=manual, loop=loop)

    def leave(self, manual: int, value: Atom, spec: Any, result: Any, loop: int | None) -> Equation:
        """The array that all devices' parts make."""
        self._given[result] = (manual, split_of(spec, len(result.aval.shape)), value)
        return from_shards(self.manuals[manual], value, result, spec, manual=manual, loop=loop)


def split_of(spec: Any, rank: int) -> ValueSharding:
    """The axes of each dimension that a spec names."""
    parts = (*spec, *(None for _ in range(rank - len(spec))))
    return tuple(part if isinstance(part, tuple) else () if part is None else (part,) for part in parts)


def to_shards(asked: ManualMesh, array: Atom, part: Any, spec: Any, *, manual: int, loop: int | None) -> Equation:
    """The equation that shows a device its part of an array."""
    return _ours(asked, TO_SHARDS, array, part, spec, array.aval, manual=manual, loop=loop)


def from_shards(asked: ManualMesh, value: Atom, result: Any, spec: Any, *, manual: int, loop: int | None) -> Equation:
    """The equation that makes an array of all devices' parts."""
    return _ours(asked, FROM_SHARDS, value, result, spec, result.aval, manual=manual, loop=loop)


def _ours(
    asked: ManualMesh, name: str, read: Atom, write: Any, spec: Any, whole: Any, *, manual: int, loop: int | None
) -> Equation:
    params = {"spec": spec, "split": split_of(spec, len(whole.shape)), "mesh": asked.mesh}
    eqn = asked.eqn.replace(
        primitive=PRIMITIVES[name], invars=[read], outvars=[write], params=params, effects=frozenset()
    )
    return Equation(eqn, loop=loop, manual=manual)


def is_local(equation: Equation) -> bool:
    """Whether what an equation makes is each device's own."""
    return equation.manual is not None and equation.eqn.primitive.name != FROM_SHARDS


def all_devices_var(asked: ManualMesh, variable: Any) -> tuple[Any, Any]:
    """A variable for the array that holds all devices' values of a variable, and its spec."""
    aval, spec = _waiting(asked, variable.aval)
    with asked.eqn.ctx.manager:
        whole = _compat.unsharded_aval(aval, spec, asked.mesh, check_vma=asked.check_vma)
    return jex.Var(whole), spec


def varying_axes_key(asked: ManualMesh, variable: Any) -> Hashable:
    """Over which axes the values of devices may differ, as a key; all where types do not say."""
    return str(_waiting(asked, variable.aval)[1])


def is_varying(asked: ManualMesh, variable: Any) -> bool:
    """Whether the type of a variable says that devices may have different values of it."""
    return asked.check_vma and any(_waiting(asked, variable.aval)[1])


def _waiting(asked: ManualMesh, aval: Any) -> tuple[Any, Any]:
    aval = aval if aval.shape else _compat.stacked_aval(1, aval)
    return aval, _compat.per_device_spec(aval, asked.mesh, check_vma=asked.check_vma)
