"""One small transformer in four dialects of JAX, with dropout, batch norm and MaxText's names.

The same arithmetic in each: pre-norm attention with fused projections, a gated feed-forward part behind a batch norm,
dropout after both, an untied head. What differs is what a tool sees: module paths (Linen), none (NNX, Equinox,
plain), `vmap` around everything (Equinox), where the state is. Every step is `step(state, tokens, key)` and returns
`(state, loss, gradients)`; `state` is `{"params": ..., "statistics": ...}`.
"""

from importlib import import_module

from tests.zoo.case import Case

DIALECTS = {"plain": None, "linen": "flax", "nnx": "flax", "equinox": "equinox"}
"""By dialect, the package that it needs."""

NAMES = (
    *("decoder_layer_input", "qkv_proj", "query_proj", "key_proj", "value_proj", "context", "out_proj"),
    *("mlpwi", "mlpwi_0", "mlpwi_1", "mlpwo"),
)
"""The names that every one of them gives its values, which are MaxText's."""


def dialect(name: str) -> Case:
    """The step of a dialect."""
    return import_module(f"tests.zoo.dialects.{name}_dialect").build()
