"""Simple rules: `jax.checkpoint` around each block with four policies, and three of the library's baselines."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import jax

_SAVED = ("dot_general", "conv_general", "reduce", "arg", "sort", "top_k", "gather", "scatter", "cum")


def elementwise_recomputed(primitive: Any, *_: Any, **__: Any) -> bool:
    """A policy that saves products, reductions, sorts and indexed reads: all that is more than elementwise."""
    return primitive.name.startswith(_SAVED)


POLICIES: Mapping[str, Callable[..., bool]] = MappingProxyType(
    {
        "nothing_saveable": jax.checkpoint_policies.nothing_saveable,
        "dots_saveable": jax.checkpoint_policies.dots_saveable,
        "dots_with_no_batch_dims_saveable": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "elementwise_recomputed": elementwise_recomputed,
    }
)
"""Policies of `jax.checkpoint` around each block, by name."""

BASELINES = ("every:2", "sqrt", "full")
"""Strategies of `jaxckpt.plan` that need no marks."""


def checkpointed(policy: Callable[..., bool]) -> Callable[..., Any]:
    """A `wrap` that puts each block under `jax.checkpoint`."""

    def wrap(block: Callable[..., Any], *, in_loop: bool = False) -> Callable[..., Any]:
        # In the body of a scan nothing needs to be kept from common subexpression elimination.
        return jax.checkpoint(block, policy=policy, prevent_cse=not in_loop)

    return wrap
