"""A graph convolutional network over a whole graph at once, float32, Adam: 110 thousand parameters.

Kipf and Welling 2016, equation 2: each node takes the mean of its neighbours and itself, weighted by the roots of both
degrees. The shape is that of ogbn-arxiv, edges in both directions.
"""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from benchmarks.models.blocks import Remat, as_written
from benchmarks.models.tasks import cross_entropy
from benchmarks.models.training import TrainingStep, training_step

ADAM = optax.adam(1e-2)


class Convolution(nn.Module):
    """Nodes, transformed, gather what the edges bring them."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, weights: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        messages = nn.Dense(self.features, use_bias=False)(x)[senders] * weights[:, None]
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return jax.ops.segment_sum(messages, receivers, num_segments=x.shape[0]) + bias


class Layer(nn.Module):
    """A convolution, normalised, with ReLU."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, weights: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        x = Convolution(self.features, name="convolution")(x, weights, senders, receivers)
        return nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9, name="norm")(x))


class GCN(nn.Module):
    """Convolutions, normalised between, to the classes of nodes."""

    layers: int
    hidden: int
    classes: int
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        itself = jnp.arange(x.shape[0], dtype=senders.dtype)
        senders, receivers = (jnp.concatenate([ends, itself]) for ends in (senders, receivers))
        degrees = jax.ops.segment_sum(jnp.ones(receivers.shape, x.dtype), receivers, num_segments=x.shape[0])
        roots = jax.lax.rsqrt(degrees)
        weights = roots[senders] * roots[receivers]
        for i in range(self.layers - 1):
            x = self.remat(Layer)(self.hidden, name=f"layer_{i}")(x, weights, senders, receivers)
        return Convolution(self.classes, name="head")(x, weights, senders, receivers)


def step(
    *,
    nodes: int = 169_343,
    edges: int = 2_315_598,
    features: int = 128,
    layers: int = 3,
    hidden: int = 256,
    classes: int = 40,
    optimiser: optax.GradientTransformation = ADAM,
    remat: Remat = as_written,
) -> TrainingStep:
    """The network.

    Args:
      nodes: Nodes of the graph.
      edges: Edges, each direction counted.
      features: Numbers of a node.
      layers: Convolutions.
      hidden: Numbers of a node between them.
      classes: Classes of nodes.
      optimiser: What makes updates of gradients.
      remat: Applied to each layer but the last, before it is called; see `blocks`.
    """
    model = GCN(layers, hidden, classes, remat)

    def made(key: jax.Array) -> dict[str, jax.Array]:
        keys = jax.random.split(key, 4)
        return {
            "features": jax.random.normal(keys[0], (nodes, features)),
            "senders": jax.random.randint(keys[1], (edges,), 0, nodes),
            "receivers": jax.random.randint(keys[2], (edges,), 0, nodes),
            "labels": jax.random.randint(keys[3], (nodes,), 0, classes),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["features"], batch["senders"], batch["receivers"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        inputs = batch["features"], batch["senders"], batch["receivers"]
        logits, changed = model.apply(variables, *inputs, mutable=["batch_stats"])
        return cross_entropy(logits, batch["labels"]), changed

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"nodes": 20, "edges": 60, "features": 8, "hidden": 16, "classes": 4}
