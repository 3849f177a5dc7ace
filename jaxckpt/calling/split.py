"""Pytrees split into arrays and a static rest, which is compared by equality.

The rest holds the structure and all leaves that are no arrays: functions, strings, flags. It hashes, so that jit traces
once for equal ones. Python numbers are arrays, as for `jax.jit`; in an argument that has an Equinox module or a leaf
that is no array they are static, as for `equinox.filter_jit`.

Paths of arrays read as a user would write them: `model.blocks.0.kernel` in an NNX object, `state['params']` elsewhere.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import jax
import numpy as np

from jaxckpt.calling.objects import SplitObject, StateKey

_NUMBERS = (bool, int, float, complex)


Place = tuple[str, Sequence[Any]]
"""The root of a path and JAX's entries; texts are made of them only where someone reads them."""


class _Hole:
    def __repr__(self) -> str:
        return "an array"


HOLE = _Hole()
"""Stands among static leaves where an array is."""


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """The rest of a pytree without its arrays.

    Attributes:
      tree: The structure, with all leaves.
      leaves: For each leaf its value, or `HOLE` for an array.
    """

    tree: Any
    leaves: tuple[Any, ...]

    def filled(self, arrays: Iterable[Any]) -> Any:
        """The pytree with arrays in the place of its own."""
        remaining = iter(arrays)
        return jax.tree.unflatten(self.tree, [next(remaining) if leaf is HOLE else leaf for leaf in self.leaves])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Static) or self.tree != other.tree or len(self.leaves) != len(other.leaves):
            return False
        return all(map(_equal, self.leaves, other.leaves))

    def __hash__(self) -> int:
        try:
            tree = hash(self.tree)
        except TypeError:  # a static field of the user's class has no hash; equality decides
            tree = 0
        return hash((tree, len(self.leaves), *map(type, self.leaves)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTree:
    """A pytree as arrays, the places where they are, and the static rest."""

    arrays: tuple[Any, ...]
    places: tuple[Place, ...]
    static: Static

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each array, as a user would write it."""
        return tuple(starmap(readable_path, self.places))


def split(tree: Any, root: str, *, numbers_are_static: bool) -> SplitTree:
    """Splits a pytree, whose objects are split already; paths begin with `root`.

    Example:
      >>> part = split({"scale": np.ones(2), "act": abs}, "model", numbers_are_static=True)
      >>> part.paths, part.static.filled(part.arrays)["act"]
      (("model['scale']",), <built-in function abs>)
    """
    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    is_kept = [is_array(leaf) and not (numbers_are_static and isinstance(leaf, _NUMBERS)) for _, leaf in pairs]
    kept = [pair for pair, is_one in zip(pairs, is_kept, strict=True) if is_one]
    leaves = tuple(HOLE if is_one else leaf for (_, leaf), is_one in zip(pairs, is_kept, strict=True))
    return SplitTree(
        arrays=tuple(leaf for _, leaf in kept),
        places=tuple((root, path) for path, _ in kept),
        static=Static(structure, leaves),
    )


def unsplit(value: Any) -> SplitTree:
    """A value that is static altogether."""
    return SplitTree(arrays=(), places=(), static=Static(jax.tree.structure(0), (value,)))


def readable_path(root: str, path: Sequence[Any]) -> str:
    """A path as a user would write it."""
    text, in_object = root, False
    for key in path:
        if isinstance(key, StateKey):
            in_object = True
        elif not in_object:
            text += str(key)
        elif (name := _name_of_key(key)) != "value" or key is not path[-1]:
            text += f".{name}"
    return text


def _name_of_key(key: Any) -> str:
    return str(next(getattr(key, each) for each in ("name", "key", "idx") if hasattr(key, each)))


def numbers_are_static(value: Any) -> bool:
    """True if Python numbers in an argument are settings and no data."""
    leaves = jax.tree.leaves(value, is_leaf=is_module)
    return any(is_module(leaf) or not (is_array(leaf) or isinstance(leaf, SplitObject)) for leaf in leaves)


def is_module(value: object) -> bool:
    """True for an Equinox module."""
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(value, equinox.Module)


def is_array(leaf: Any) -> bool:
    """True for an array, its description, or a number."""
    if isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct, np.generic, *_NUMBERS)):
        return True
    if isinstance(leaf, np.ndarray):
        return leaf.dtype.kind not in "OSUM m"
    if isinstance(leaf, type):
        return False
    return hasattr(leaf, "__jax_array__") or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except (TypeError, ValueError):  # values that compare as arrays do
        return False
