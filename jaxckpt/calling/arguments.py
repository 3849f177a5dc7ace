"""Arguments of a step that `jax.jit` takes as they are: arrays and descriptions of arrays, in any pytree.

All leaves that are neither are reported at once, with their paths, before the step is traced. Steps are traced
without the shardings that the compiler is free to change (automatic meshes): with them jax traces other equations, and
a plan for described arguments would not fit the same arguments on real devices.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.core

from jaxckpt._errors import ArgumentError
from jaxckpt.calling.split import is_array
from jaxckpt.program.flat_program import HOST_MEMORY, array_spec, is_on_host


def check_arguments(leaves: Sequence[tuple[str, Any]]) -> None:
    """Refuses leaves that are no arrays; the error names every such leaf and its type."""
    wrong = [(path, leaf) for path, leaf in leaves if not is_array(leaf)]
    if not wrong:
        return
    listed = [f"({i}) {path} is {_kind(leaf)}" for i, (path, leaf) in enumerate(wrong, 1)]
    raise ArgumentError(
        f"{len(wrong)} of the step's {len(leaves)} argument leaves are no arrays, and it is under jax.jit.",
        got="; ".join(listed[:20]) + ("; ..." if len(listed) > 20 else ""),
        needed="arrays, jax.ShapeDtypeStructs, numbers, key arrays or None, in any pytree",
        advice="static_argnames in its jax.jit for such an argument; for a module with functions among its leaves"
        " equinox.filter_jit, or the step without jax.jit",
        wrong=tuple((path, type(leaf).__name__) for path, leaf in wrong),
    )


def _kind(value: Any) -> str:
    """The type of a value in words; the value itself, perhaps a tree of parameters, is not shown.

    Example:
      >>> _kind("relu"), _kind(object()), _kind(jax.numpy.ones(2))
      ('a str', 'an object', 'an array')
    """
    if is_array(value):
        return "an array"
    name = type(value).__name__
    dtype = f" of dtype {value.dtype}" if hasattr(value, "dtype") else ""
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}{dtype}"


def check_static(name: str, value: Any) -> None:
    """Refuses a static argument that `jax.jit` cannot look up; the value itself is not shown."""
    try:
        hash(value)
    except TypeError:
        holds_arrays = any(map(is_array, jax.tree.leaves(value)))
        raise ArgumentError(
            f"the argument `{name}` is static, and cannot be hashed.",
            got=f"{_kind(value)} without __hash__",
            needed="a static argument with __hash__ and __eq__, so that jit can tell one call from another",
            advice="leave it out of static_argnums and static_argnames: arrays are traced"
            if holds_arrays
            else "dataclass(frozen=True) or eq=False for its class, or pass its arrays as arguments of their own",
            argument=name,
        ) from None


def static_object(name: str) -> ArgumentError:
    """The error of an NNX object as a static argument, which `nnx.jit` refuses too: its variables would be lost."""
    return ArgumentError(
        f"the argument `{name}` is static, and an NNX object.",
        got="variables that the step may write, as constants of the step",
        needed="NNX objects that are traced: what is written to them is given back",
        advice="leave it out of static_argnums and static_argnames",
        argument=name,
    )


def leaf_sharding(leaf: Any) -> jax.sharding.Sharding | None:
    """The sharding that an array or its description brings along; a tracer's is in its type, without devices."""
    if isinstance(leaf, jax.core.Tracer):
        return None
    return getattr(leaf, "sharding", None)


def unsharded(leaf: Any) -> Any:
    """The leaf to trace with: a description without sharding of one that is sharded over an automatic mesh.

    Shardings over explicit meshes are part of the types and stay; so do memory spaces.
    """
    sharding = getattr(leaf.aval, "sharding", None) if isinstance(leaf, jax.core.Tracer) else leaf_sharding(leaf)
    if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.mesh.empty:
        return leaf
    automatic = all(kind == jax.sharding.AxisType.Auto for kind in sharding.mesh.axis_types)
    if not automatic or sharding.memory_kind not in (None, "device"):
        return leaf
    return array_spec(leaf)


def on_device(leaf: Any) -> Any:
    """The leaf to trace a step with that reads it on the device: a description of one that is in host memory."""
    if isinstance(leaf, jax.core.Tracer):
        return array_spec(jax.typeof(leaf)) if is_on_host(leaf.aval) else leaf
    sharding = leaf_sharding(leaf)
    if sharding is None or sharding.memory_kind != HOST_MEMORY:
        return leaf
    return array_spec(jax.typeof(leaf), sharding.with_memory_kind("device"))
