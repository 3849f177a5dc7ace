"""Graphs with messages on their edges: attention over neighbours, and perceptrons of both ends and the edge."""

from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.strangers.layers import (
    cross_entropy,
    dense,
    dense_weights,
    layer_norm,
    mean_square,
    mlp,
    mlp_weights,
    norm_weights,
)
from benchmarks.strangers.training import Recipe, array, as_written, integers, training_step
from jaxckpt import Step


def graph_attention(
    *, nodes: int = 170_000, edges: int = 2_000_000, width: int = 256, heads: int = 8, layers: int = 3,
    classes: int = 40, dtype: str = "float32", wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Each node weighs the messages that arrive by a softmax over its edges (Brody and others 2022)."""

    @wrap
    def block(weights: Any, x: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        count = x.shape[0]
        values = dense(weights["values"], x).reshape(count, heads, -1)
        targets = dense(weights["targets"], x).reshape(count, heads, -1)
        pairs = jax.nn.leaky_relu(values[senders] + targets[receivers], 0.2)
        scores = jnp.einsum("ehd,hd->eh", pairs, weights["scores"])
        largest = jax.ops.segment_max(scores, receivers, count)
        powers = jnp.exp(scores - largest[receivers])
        shares = powers / jax.ops.segment_sum(powers, receivers, count)[receivers]
        messages = values[senders] * shares[..., None]
        return jax.nn.elu(jax.ops.segment_sum(messages, receivers, count).reshape(count, -1))

    def loss(weights: Any, x: jax.Array, senders: jax.Array, receivers: jax.Array, labels: jax.Array) -> jax.Array:
        for each in weights["layers"]:
            x = block(each, x, senders, receivers)
        return cross_entropy(dense(weights["head"], x), labels)

    layer = {
        "values": dense_weights(width, width, dtype),
        "targets": dense_weights(width, width, dtype),
        "scores": array(heads, width // heads, dtype=dtype),
    }
    weights = {"layers": [layer] * layers, "head": dense_weights(width, classes, dtype)}
    ends = integers(edges), integers(edges)
    return training_step(loss, weights, array(nodes, width, dtype=dtype), *ends, integers(nodes))


def message_passing(
    *, nodes: int = 50_000, edges: int = 400_000, width: int = 128, layers: int = 6, dtype: str = "float32",
    wrap: Any = as_written,
) -> Step:  # fmt: skip
    """Edges and nodes have states, each updated by a perceptron (Battaglia and others 2018)."""

    @wrap
    def block(weights: Any, x: jax.Array, e: jax.Array, senders: jax.Array, receivers: jax.Array) -> Any:
        ends = jnp.concatenate([e, x[senders], x[receivers]], axis=-1)
        e = e + layer_norm(weights["edge_norm"], mlp(weights["edge"], ends))
        arriving = jax.ops.segment_sum(e, receivers, x.shape[0])
        x = x + layer_norm(weights["node_norm"], mlp(weights["node"], jnp.concatenate([x, arriving], axis=-1)))
        return x, e

    def loss(weights: Any, x: jax.Array, e: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        for each in weights:
            x, e = block(each, x, e, senders, receivers)
        return mean_square(x)

    layer = {
        "edge": mlp_weights((3 * width, width, width), dtype),
        "edge_norm": norm_weights(width, dtype),
        "node": mlp_weights((2 * width, width, width), dtype),
        "node_norm": norm_weights(width, dtype),
    }
    states = array(nodes, width, dtype=dtype), array(edges, width, dtype=dtype)
    return training_step(loss, [layer] * layers, *states, integers(edges), integers(edges))


SMALL = {"nodes": 10, "edges": 30, "width": 16, "layers": 2}

NAMED = {
    "graph-attention-2m": Recipe(family="graph", build=graph_attention, small={**SMALL, "heads": 2, "classes": 3}),
}

RECIPES = {
    "graph-attention": Recipe(
        family="graph",
        build=graph_attention,
        small={**SMALL, "heads": 2, "classes": 3},
        choices={
            "nodes": (50_000, 100_000),
            "edges": (500_000, 1_000_000),
            "width": (128, 192, 256),
            "layers": (3, 4, 6),
        },
        draws=2,
    ),
    "message-passing": Recipe(
        family="graph",
        build=message_passing,
        small=SMALL,
        choices={
            "edges": (200_000, 400_000),
            "width": (64, 128),
            "layers": (4, 6, 10),
            "dtype": ("float32", "bfloat16"),
        },
        draws=2,
    ),
}
