"""Steps of the battery of strangers in the form that the harness runs: `TrainingStep`."""

from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.models import TrainingStep
from benchmarks.strangers import STRANGERS
from benchmarks.strangers.rules import POLICIES, checkpointed
from benchmarks.strangers.training import ADAM, as_written

RULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "residual-gelu-12": ("nothing_saveable", "dots_saveable"),
        "scanned-decoder-1": ("every:2", "dots_with_no_batch_dims_saveable"),
        "coupling-flow-1": ("sqrt",),
        "radiance-field-1": ("sqrt",),
        "message-passing-2": ("dots_saveable",),
        "dropout-mlp-2": ("every:2",),
        "batch-norm-mlp-1": ("nothing_saveable",),
        "selective-states-1": ("nothing_saveable",),
        "soft-experts-1": ("elementwise_recomputed",),
        "speech-lstm-1": ("nothing_saveable",),
        "plain-convolutions-1": ("full",),
        "unet-2d-1": ("every:2",),
        "fourier-operator-1": ("every:2",),
        "crossed-features-1": ("nothing_saveable",),
        "graph-attention-1": ("dots_saveable",),
    }
)
"""Rules by the name of the step, the smallest total first.

The last rule of a step takes the fewest estimated seconds of all that save a quarter of the total.
"""
_COUNTS = ("nodes", "vocabulary", "classes", "words")
"""Sizes that integers of a batch count to."""


def small_sizes(name: str) -> Mapping[str, Any]:
    """Sizes for a CPU."""
    return STRANGERS[name].recipe.small


def stranger_step(name: str, sizes: Mapping[str, Any], rule: str) -> TrainingStep:
    """A step of the battery, its blocks wrapped by a rule if the rule is a policy of `jax.checkpoint`.

    Args:
      name: Its name in `STRANGERS`.
      sizes: Those that are not the ones of the battery.
      rule: A version of it; names that are no policies give the step as written.
    """
    stranger = STRANGERS[name]
    sizes = {**stranger.sizes, **sizes}
    wrap = checkpointed(POLICIES[rule]) if rule in POLICIES else as_written
    made = stranger.recipe.build(**sizes, wrap=wrap)
    weights, *others = made.args
    has_state = made.donate_argnums != 0  # plain gradient descent has none
    state = others.pop(0) if has_state else ()

    def step(weights: Any, state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        *variables, loss = made.function(weights, *([state] if has_state else []), *batch)
        return variables[0], variables[1] if has_state else (), loss

    args = (weights, state, tuple(others))
    bound = integer_bound(stranger.recipe.build, sizes)
    return TrainingStep(
        step=step, args=args, donate_argnums=(0, 1), optimiser=ADAM, batch=lambda key: drawn(args[2], key, bound=bound)
    )


def integer_bound(build: Callable[..., Any], sizes: Mapping[str, Any]) -> int:
    """The bound of the integers in a batch, exclusive: nodes, words or classes."""
    all_sizes = {name: each.default for name, each in signature(build).parameters.items()} | dict(sizes)
    return min((all_sizes[name] for name in _COUNTS if name in all_sizes), default=2)


def drawn(described: tuple[Any, ...], key: jax.Array, *, bound: int) -> tuple[Any, ...]:
    """Random arrays of these descriptions; integers are below the bound."""

    def array(key: jax.Array, each: jax.ShapeDtypeStruct) -> Any:
        if jnp.issubdtype(each.dtype, jax.dtypes.prng_key):
            return key
        if jnp.issubdtype(each.dtype, jnp.integer):
            return jax.random.randint(key, each.shape, 0, bound, each.dtype)
        return jax.random.normal(key, each.shape, each.dtype)

    return tuple(array(jax.random.fold_in(key, i), each) for i, each in enumerate(described))
