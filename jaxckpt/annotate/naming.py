"""Names for values, by which policies find them."""

from typing import TypeVar

import jax
from jax.ad_checkpoint import checkpoint_name

from jaxckpt._errors import ArgumentError
from jaxckpt.ir.scope import TAG

_Tree = TypeVar("_Tree")


def name(x: _Tree, name: str) -> _Tree:
    """Names the arrays of a pytree, so that rules of policies can select them.

    Values do not change, and leaves that are no arrays are returned unchanged. The name is a
    `jax.ad_checkpoint.checkpoint_name`, so JAX's own policies can use it too.

    Raises:
      ArgumentError: The name is no text, is empty, or is reserved for jaxckpt.

    Example:
      >>> import jax.numpy as jnp
      >>> name({"q": jnp.ones(2), "scale": None}, "qkv")["q"].shape
      (2,)
    """
    if not isinstance(name, str) or not name or name.startswith(TAG):
        raise ArgumentError(
            "jaxckpt.name(x, ...) cannot give this name.",
            got=repr(name),
            needed=f'a text that is not empty and does not begin with "{TAG}"',
            advice='jaxckpt.name(x, "qkv")',
        )
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, name) if isinstance(leaf, jax.Array) else leaf, x)
