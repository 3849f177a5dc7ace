"""Loss heads in the spellings in which people write them; each from hidden states, weights and labels to a loss.

`HEADS` has losses of (parameters, batch); the parameters have the head's weights and what computes the hidden states.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

BATCH, SEQUENCE, WIDTH, VOCABULARY = 4, 6, 8, 64
Parameters = Mapping[str, jax.Array]
Batch = Mapping[str, jax.Array]

PARAMETERS = {
    "in": jax.random.normal(jax.random.key(0), (WIDTH, WIDTH)),
    "out": jax.random.normal(jax.random.key(1), (WIDTH, VOCABULARY)),
    "bias": jax.random.normal(jax.random.key(2), (VOCABULARY,)),
    "table": jax.random.normal(jax.random.key(3), (VOCABULARY, WIDTH)),
}
BATCHED = {
    "x": jax.random.normal(jax.random.key(4), (BATCH, SEQUENCE, WIDTH)),
    "labels": jax.random.randint(jax.random.key(5), (BATCH, SEQUENCE), 0, VOCABULARY),
    "mask": jax.random.bernoulli(jax.random.key(6), 0.7, (BATCH, SEQUENCE)),
    "weights": jax.random.uniform(jax.random.key(7), (BATCH, SEQUENCE)),
    "soft": jax.nn.softmax(jax.random.normal(jax.random.key(8), (BATCH, SEQUENCE, VOCABULARY))),
}


def hidden(parameters: Parameters, batch: Batch) -> jax.Array:
    return jnp.tanh(batch["x"] @ parameters["in"])


def logits(parameters: Parameters, batch: Batch) -> jax.Array:
    return hidden(parameters, batch) @ parameters["out"]


def optax_integers(p, b):
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"]).mean()


def optax_one_hot(p, b):
    return optax.softmax_cross_entropy(logits(p, b), jax.nn.one_hot(b["labels"], VOCABULARY)).mean()


def soft_labels(p, b):
    return optax.softmax_cross_entropy(logits(p, b), b["soft"]).mean()


def smoothed_labels(p, b):
    smooth = optax.smooth_labels(jax.nn.one_hot(b["labels"], VOCABULARY), 0.1)
    return optax.softmax_cross_entropy(logits(p, b), smooth).mean()


def log_sum_exp(p, b):
    z = logits(p, b)
    picked = jnp.take_along_axis(z, b["labels"][..., None], axis=-1)[..., 0]
    return (jax.scipy.special.logsumexp(z, axis=-1) - picked).mean()


def by_hand(p, b):
    z = logits(p, b)
    z = z - jax.lax.stop_gradient(z.max(-1, keepdims=True))
    log_p = z - jnp.log(jnp.exp(z).sum(-1, keepdims=True))
    return -(log_p * (b["labels"][..., None] == jnp.arange(VOCABULARY))).sum(-1).mean()


def log_softmax(p, b):
    log_p = jax.nn.log_softmax(logits(p, b))
    return -jnp.take_along_axis(log_p, b["labels"][..., None], axis=-1).mean()


def log_of_picked_softmax(p, b):
    picked = jnp.take_along_axis(jax.nn.softmax(logits(p, b)), b["labels"][..., None], axis=-1)
    return -jnp.log(picked + 1e-9).mean()


def masked(p, b):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"])
    return (losses * b["mask"]).sum() / jnp.maximum(b["mask"].sum(), 1)


def masked_by_where(p, b):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"])
    return jnp.where(b["mask"], losses, 0).sum() / b["mask"].sum()


def mean_where(p, b):
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"]).mean(where=b["mask"])


def weighted(p, b):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"])
    return (losses * b["weights"]).sum() / b["weights"].sum()


def z_loss(p, b):
    z = logits(p, b)
    log_z = jax.nn.logsumexp(z, axis=-1)
    picked = jnp.take_along_axis(z, b["labels"][..., None], axis=-1)[..., 0]
    return (log_z - picked + 1e-4 * log_z**2).mean()


def tied(p, b):
    h = jnp.tanh((p["table"][b["labels"]] + b["x"]) @ p["in"])
    return optax.softmax_cross_entropy_with_integer_labels(h @ p["table"].T, b["labels"]).mean()


def tied_by_einsum(p, b):
    z = jnp.einsum("bsd,vd->bsv", hidden(p, b), p["table"])
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def with_bias(p, b):
    z = logits(p, b) + p["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def soft_capped(p, b):
    z = 30 * jnp.tanh(logits(p, b) / 30)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def flattened_tokens(p, b):
    z = hidden(p, b).reshape(-1, WIDTH) @ p["out"]
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"].reshape(-1)).mean()


def flattened_logits(p, b):
    z = logits(p, b).reshape(-1, VOCABULARY)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"].reshape(-1)).mean()


def shifted_logits(p, b):
    z = logits(p, b)[:, :-1]
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"][:, 1:]).mean()


def indexed_by_arange(p, b):
    log_p = jax.nn.log_softmax(hidden(p, b).reshape(-1, WIDTH) @ p["out"])
    return -log_p[jnp.arange(BATCH * SEQUENCE), b["labels"].reshape(-1)].mean()


def indexed_by_two_aranges(p, b):
    log_p = jax.nn.log_softmax(logits(p, b))
    rows, columns = jnp.arange(BATCH)[:, None], jnp.arange(SEQUENCE)[None]
    return -log_p[rows, columns, b["labels"]].mean()


def flattened_and_indexed(p, b):
    log_p = jax.nn.log_softmax(logits(p, b)).reshape(-1, VOCABULARY)
    return -log_p[jnp.arange(BATCH * SEQUENCE), b["labels"].reshape(-1)].mean()


def under_vmap(p, b):
    def of_one(h, label):
        return -jax.nn.log_softmax(h @ p["out"])[label]

    return jax.vmap(jax.vmap(of_one))(hidden(p, b), b["labels"]).mean()


def mean_of_sequences(p, b):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"]) * b["mask"]
    return (losses.sum(1) / jnp.maximum(b["mask"].sum(1), 1)).mean()


def narrow_head(p, b):
    z = (hidden(p, b).astype(jnp.bfloat16) @ p["out"].astype(jnp.bfloat16)).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def focal(p, b):
    log_p = jax.nn.log_softmax(logits(p, b))
    picked = jnp.take_along_axis(log_p, b["labels"][..., None], axis=-1)[..., 0]
    return -((1 - jnp.exp(picked)) ** 2 * picked).mean()


def sigmoid(p, b):
    return optax.sigmoid_binary_cross_entropy(logits(p, b), b["soft"]).mean()


def distilled(p, b):
    teacher = jax.nn.log_softmax(b["x"] @ p["table"].T)
    return optax.losses.kl_divergence_with_log_targets(
        jax.nn.log_softmax(logits(p, b)), jax.lax.stop_gradient(teacher)
    ).mean()


def checkpointed(p, b):
    @jax.checkpoint
    def head(h, out):
        return optax.softmax_cross_entropy_with_integer_labels(h @ out, b["labels"]).sum()

    return head(hidden(p, b), p["out"]) / b["labels"].size


@jax.custom_vjp
def own_derivative(z, one_hot):
    """As T5X and MaxText have it: a derivative by hand, with a z-loss."""
    log_z = jax.nn.logsumexp(z, axis=-1)
    return log_z - (z * one_hot).sum(-1) + 1e-3 * log_z**2


def _own_forward(z, one_hot):
    log_z = jax.nn.logsumexp(z, axis=-1)
    return log_z - (z * one_hot).sum(-1) + 1e-3 * log_z**2, (z, one_hot, log_z)


def _own_backward(saved, slope):
    z, one_hot, log_z = saved
    softmax = jnp.exp(z - log_z[..., None])
    weights = slope * (1 + 2e-3 * log_z)
    return weights[..., None] * softmax - slope[..., None] * one_hot, None


own_derivative.defvjp(_own_forward, _own_backward)


def by_own_derivative(p, b):
    losses = own_derivative(logits(p, b), jax.nn.one_hot(b["labels"], VOCABULARY))
    return (losses * b["weights"]).sum() / b["weights"].sum()


def linen(p, b):
    module = nn.Dense(VOCABULARY)
    z = module.apply({"params": {"kernel": p["out"], "bias": p["bias"]}}, hidden(p, b))
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def linen_tied(p, b):
    module = nn.Embed(VOCABULARY, WIDTH)
    z = module.apply({"params": {"embedding": p["table"]}}, hidden(p, b), method="attend")
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def nnx_linear(p, b):
    module = nnx.eval_shape(lambda: nnx.Linear(WIDTH, VOCABULARY, rngs=nnx.Rngs(0)))
    nnx.update(module, {"kernel": p["out"], "bias": p["bias"]})
    return optax.softmax_cross_entropy_with_integer_labels(module(hidden(p, b)), b["labels"]).mean()


def equinox(p, b):
    module = eqx.nn.Linear(WIDTH, VOCABULARY, key=jax.random.key(0))
    module = eqx.tree_at(lambda m: (m.weight, m.bias), module, (p["out"].T, p["bias"]))
    z = jax.vmap(jax.vmap(module))(hidden(p, b))
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


HEADS: Mapping[str, Callable[[Any, Any], Any]] = {
    each.__name__: each
    for each in (
        *(optax_integers, optax_one_hot, soft_labels, smoothed_labels, log_sum_exp, by_hand, log_softmax),
        *(log_of_picked_softmax, masked, masked_by_where, mean_where, weighted, z_loss, tied, tied_by_einsum),
        *(with_bias, soft_capped, flattened_tokens, flattened_logits, shifted_logits, indexed_by_arange),
        *(
            indexed_by_two_aranges,
            flattened_and_indexed,
            by_own_derivative,
            under_vmap,
            mean_of_sequences,
            narrow_head,
            focal,
            sigmoid,
            distilled,
        ),
        *(checkpointed, linen, linen_tied, nnx_linear, equinox),
    )
}
