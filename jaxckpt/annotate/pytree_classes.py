"""Subclasses of classes whose objects are pytrees: JAX knows a class by itself, and not by its base class.

Read before `decorate`.
"""

import copy
from collections.abc import Iterable
from typing import Any

import jax
from jax.tree_util import PyTreeDef


def register_like(cls: type, scoped: type) -> None:
    """Registers a subclass with the same fields as a pytree if the base class is one, and the subclass is not yet.

    Objects of the subclass are taken apart as the base class says, with the same keys.

    Example:
      >>> import jax
      >>> from flax import struct
      >>> @struct.dataclass
      ... class Dense:
      ...     weight: jax.Array
      >>> scoped = type("Dense", (Dense,), {})
      >>> register_like(Dense, scoped)
      >>> jax.tree.map(lambda weight: 2 * weight, scoped(3)).weight
      6
    """
    if not _is_pytree(cls) or _is_pytree(scoped):
        return

    def as_base(value: Any) -> Any:
        base = copy.copy(value)
        object.__setattr__(base, "__class__", cls)
        return base

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], PyTreeDef]:
        base = as_base(value)
        children, structure = jax.tree_util.tree_flatten_with_path(base, is_leaf=lambda node: node is not base)
        return [(path[0], child) for path, child in children], structure

    def flatten(value: Any) -> tuple[list[Any], PyTreeDef]:
        base = as_base(value)
        return jax.tree.flatten(base, is_leaf=lambda node: node is not base)

    def unflatten(structure: PyTreeDef, children: Iterable[Any]) -> Any:
        value = jax.tree.unflatten(structure, list(children))
        object.__setattr__(value, "__class__", scoped)
        return value

    jax.tree_util.register_pytree_with_keys(scoped, flatten_with_keys, unflatten, flatten)


def _is_pytree(cls: type) -> bool:
    """True if objects of a class are registered as pytrees, which an object without fields shows."""
    try:
        blank = object.__new__(cls)
    except TypeError:  # tuples and the like, which JAX takes apart by their base class
        return False
    try:
        return not jax.tree_util.treedef_is_leaf(jax.tree.structure(blank))
    except Exception:  # the user's own function to take an object apart misses the fields
        return True
