"""Arguments of a step: arrays and descriptions of arrays, in any pytree.

All leaves that are neither are reported at once, with their paths, before the step is traced. The step is traced
without the shardings that the compiler is free to change (automatic meshes): with them jax traces other equations, and
a plan for described arguments would not fit the same arguments on real devices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.core
import numpy as np

from jaxckpt._errors import ArgumentError
from jaxckpt.program.flat_program import array_spec

_NUMBERS = (bool, int, float, complex, np.generic)


def argument_paths(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, static: frozenset[int | str]
) -> tuple[tuple[str, Any], ...]:
    """The leaves of a step's traced arguments, in the order of its flat arguments, each after its path.

    A path is as `jax.tree_util.keystr` writes it ("[0]['params']"); a keyword's begins with its name.
    """
    dynamic = [(f"[{i}]", arg) for i, arg in enumerate(args) if i not in static]
    dynamic += [(f"['{name}']", kwargs[name]) for name in sorted(kwargs) if name not in static]
    return tuple(
        (root + jax.tree_util.keystr(path), leaf)
        for root, arg in dynamic
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]
    )


def check_arguments(leaves: Sequence[tuple[str, Any]]) -> None:
    """Refuses leaves that are no arrays; the error names every such leaf and its type."""
    wrong = [(path, type(leaf)) for path, leaf in leaves if not _is_array(leaf)]
    if not wrong:
        return
    listed = [f"({i}) {path} is a {kind.__name__}" for i, (path, kind) in enumerate(wrong, 1)]
    raise ArgumentError(
        f"trace_step: {len(wrong)} of the step's {len(leaves)} argument leaves are no arrays.",
        got="; ".join(listed[:20]) + ("; ..." if len(listed) > 20 else ""),
        needed="arrays, jax.ShapeDtypeStructs, numbers, key arrays or None, in any pytree",
        advice="static_argnums for an argument that is no array; for a module with functions among its leaves"
        " split it first (equinox.partition, nnx.split) and close over the rest",
        wrong=tuple((path, kind.__name__) for path, kind in wrong),
    )


def without_automatic_shardings(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, static: frozenset[int | str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments to trace with: those sharded over an automatic mesh become descriptions without sharding.

    Shardings over explicit meshes are part of the types and stay; so do memory spaces.
    """
    return (
        tuple(arg if i in static else jax.tree.map(_unsharded, arg) for i, arg in enumerate(args)),
        {name: arg if name in static else jax.tree.map(_unsharded, arg) for name, arg in kwargs.items()},
    )


def leaf_sharding(leaf: Any) -> jax.sharding.Sharding | None:
    """The sharding that an array or its description brings along; a tracer's is in its type, without devices."""
    if isinstance(leaf, jax.core.Tracer):
        return None
    return getattr(leaf, "sharding", None)


def _unsharded(leaf: Any) -> Any:
    sharding = getattr(leaf.aval, "sharding", None) if isinstance(leaf, jax.core.Tracer) else leaf_sharding(leaf)
    if not isinstance(sharding, jax.sharding.NamedSharding) or sharding.mesh.empty:
        return leaf
    automatic = all(kind == jax.sharding.AxisType.Auto for kind in sharding.mesh.axis_types)
    if not automatic or sharding.memory_kind not in (None, "device"):
        return leaf
    return array_spec(leaf)


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, *_NUMBERS)):
        return True
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind not in "OSUM m"
    return hasattr(leaf, "__jax_array__") or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
