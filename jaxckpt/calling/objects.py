"""Flax NNX objects in arguments and results: modules, optimisers, metrics, rngs, single variables.

Outside of a trace each object is split into a definition (static) and its state (arrays); within, it is merged again.
What the step writes comes out as state and is put into the user's own objects, by the bookkeeping of
`nnx.update_context`: two arguments that share a variable share it within, and a result that is one of the arguments
is that argument.

Flax is used only where it is imported already: without it there are no such objects.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
from jax.tree_util import GetAttrKey

_TAG = "jaxckpt.calling"
"""The tag of our update context, which NNX needs to distinguish nested contexts."""


class StateKey(GetAttrKey):  # type: ignore[misc]  # jax gives the class no type
    """The entry of a path that leads from an object to its state."""


@jax.tree_util.register_pytree_with_keys_class
@dataclass(frozen=True, slots=True)
class SplitObject:
    """An object as its definition and its state."""

    definition: Any
    state: Any

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], Any]:
        """The state as the only child."""
        return ((StateKey("state"), self.state),), self.definition

    @classmethod
    def tree_unflatten(cls, definition: Any, children: tuple[Any, ...]) -> "SplitObject":
        """The object of a state."""
        return cls(definition, *children)


def is_object(value: object) -> bool:
    """True for a module, a variable or another NNX object with state."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def is_variable(value: object) -> bool:
    """True for a variable that is an argument by itself, or in a state."""
    return isinstance(value, sys.modules["flax.nnx"].Variable)


def objects_in(tree: object) -> list[tuple[Any, Any]]:
    """The objects in a pytree, each after its path."""
    leaves = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_object)[0]
    return [(path, leaf) for path, leaf in leaves if is_object(leaf)]


def has_objects(tree: object) -> bool:
    """True if there is an object in a pytree."""
    return "flax.nnx" in sys.modules and any(map(is_object, jax.tree.leaves(tree, is_leaf=is_object)))


def update_context() -> Any:
    """The context in which one call is split, traced and given back."""
    nnx = sys.modules.get("flax.nnx")
    return nullcontext() if nnx is None else nnx.update_context(_TAG)


@contextmanager
def splitting(*, tag: str | None = _TAG) -> Iterator[Any]:
    """Gives a function that splits the objects in pytrees; objects that are met again are not split twice."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        yield lambda tree: tree
        return
    with nnx.split_context(tag) as context:

        def split(leaf: Any) -> Any:
            return SplitObject(*context.split(leaf)) if is_object(leaf) else leaf

        yield lambda tree: jax.tree.map(split, tree, is_leaf=is_object)


@contextmanager
def merging(*, inner: bool, tag: str | None = _TAG) -> Iterator[Any]:
    """Gives a function that merges the split objects in pytrees: new ones within, the user's own outside."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        yield lambda tree: tree
        return
    with nnx.merge_context(tag, inner) as context:

        def merge(leaf: Any) -> Any:
            return context.merge(leaf.definition, leaf.state) if isinstance(leaf, SplitObject) else leaf

        yield lambda tree: jax.tree.map(merge, tree, is_leaf=lambda leaf: isinstance(leaf, SplitObject))


def variables_in(tree: object) -> Iterator[tuple[str, Any]]:
    """The variables of all objects in a pytree, each after its path from its object (".blocks.0.kernel")."""
    nnx = sys.modules["flax.nnx"]
    for _, found in objects_in(tree):
        for path, node in nnx.iter_graph(found):
            if isinstance(node, nnx.Variable):
                yield "".join(f".{part}" for part in path), node


def is_outer_object(error: Exception) -> bool:
    """True if Flax refused to write to an object of an outer trace, or to differentiate one."""
    errors = sys.modules.get("flax.errors")
    if errors is None:
        return False
    return isinstance(error, errors.TraceContextError) or "from different trace level" in str(error)


def modules_in(root: str, tree: object) -> Iterator[tuple[str, Any]]:
    """The modules that can be called, each after its path."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        return
    for _, found in objects_in(tree):
        for path, node in nnx.iter_graph(found):
            if isinstance(node, nnx.Module) and callable(node):
                yield ".".join((root, *map(str, path))), node
