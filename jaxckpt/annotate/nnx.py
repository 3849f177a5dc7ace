"""Scopes on Flax NNX modules: the state of every module among the arguments goes in and comes out again.

As `flax.nnx.remat` does it, with our checkpoint in the place of JAX's. Flax is imported when one of its modules is
used.

Read after `checkpoint`.
"""

import sys
from collections.abc import Callable
from typing import Any

import jax

from jaxckpt.annotate.checkpoint import Checkpoint, is_array

_CONTEXT = "jaxckpt"
"""The tag of our update context, which NNX needs to distinguish nested contexts."""


def is_nnx(value: object) -> bool:
    """True for a module, a variable or another object with state."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(value, nnx.Pytree | nnx.Variable)


def has_nnx(tree: object) -> bool:
    """True if a leaf of the arguments is an object with state."""
    return any(map(is_nnx, jax.tree.leaves(tree, is_leaf=is_nnx)))


def call_with_state(
    function: Callable[..., Any], checkpoint: Checkpoint, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Calls a checkpointed function; its changes of modules are carried out."""
    from flax import nnx
    from flax.nnx.transforms import general

    leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_nnx)
    crossing = [i for i, leaf in enumerate(leaves) if is_nnx(leaf) or is_array(leaf)]

    def call(*crossed: Any) -> Any:
        filled = list(leaves)
        for position, leaf in zip(crossing, crossed, strict=True):
            filled[position] = leaf
        args, kwargs = jax.tree.unflatten(tree, filled)
        return function(*args, **kwargs)

    inside = general.merge_inputs(call, ctxtag=_CONTEXT)
    split = general.split_inputs(lambda *pure: checkpoint(inside, *pure), ctxtag=_CONTEXT)
    return nnx.update_context(_CONTEXT)(split)(*[leaves[position] for position in crossing])
