"""How the blocks of these models are rematerialised by hand: what `step(remat=...)` takes.

A model passes each of its blocks, a module's class or a function, through `remat` before it is called. By default that
is `as_written`; `rematerialised` makes those that JAX's users write, `jax.checkpoint` with a policy around each block.
Values have no names unless `naming` is active while the step is traced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import flax.linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name

Remat = Callable[[Any], Any]
"""From a block to one that is called in the same way."""
Between = Callable[[jax.Array], jax.Array]
"""Applied to what passes from block to block: on a mesh, a constraint that says how it is split."""

KEPT = "kept"
"""The name that `naming` gives."""
_INTO_ATTENTION = ("qkv", "query", "key", "value")


def as_written(block: Any) -> Any:
    """The block itself."""
    return block


def unconstrained(x: jax.Array) -> jax.Array:
    """What passes, left to the compiler."""
    return x


def rematerialised(policy: Callable[..., bool] | None = None) -> Remat:
    """Each block under `jax.checkpoint`.

    Args:
      policy: One of `jax.checkpoint_policies`; None saves nothing but what the block reads.
    """

    def wrapped(block: Any) -> Any:
        if isinstance(block, type):
            return nn.remat(block, policy=policy)
        # Functions here are what a `scan` runs, where nothing needs to be kept from being merged.
        return jax.checkpoint(block, policy=policy, prevent_cse=False)

    return wrapped


@contextmanager
def naming() -> Iterator[None]:
    """While it is active, what people save by hand has the name `KEPT`.

    That is of attention what goes into it and what it makes before it is projected, and what every convolution makes.
    """
    with nn.intercept_methods(_named):
        yield


def _named(call: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
    module = context.module
    if context.method_name != "__call__" or not isinstance(module, nn.Dense | nn.Conv | nn.ConvTranspose):
        return call(*args, **kwargs)
    if module.name == "proj":
        first, *others = args
        args = (checkpoint_name(first, KEPT), *others)
    made = call(*args, **kwargs)
    is_kept = not isinstance(module, nn.Dense) or module.name in _INTO_ATTENTION
    return checkpoint_name(made, KEPT) if is_kept else made
