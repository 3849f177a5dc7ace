"""Steps whose authors recompute already, by `jax.checkpoint` with and without policies, nested, and in loops."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tests.zoo import mlp, plain_transformer
from tests.zoo.case import Case, descend

POLICIES = jax.checkpoint_policies


def named_block(p, x, *, heads: int):
    """A block with a name where its author thinks that saving pays."""
    normed = plain_transformer.layer_norm(x, p["norm_1"])
    mixed = plain_transformer.attention(p["attention"], normed, normed, heads=heads, causal=True)
    x = x + checkpoint_name(mixed, "mixed")
    return x + plain_transformer.feed_forward(p["feed_forward"], plain_transformer.layer_norm(x, p["norm_2"]))


def checkpointed(blocks, x, *, heads: int):
    """A different idea of what to save in each of four blocks; the last leaves the equation and recomputes nothing."""
    block = partial(named_block, heads=heads)
    by_block = (
        jax.checkpoint(block),
        jax.checkpoint(block, policy=POLICIES.dots_with_no_batch_dims_saveable),
        jax.checkpoint(block, policy=POLICIES.save_only_these_names("mixed")),
        jax.checkpoint(block, policy=POLICIES.everything_saveable),
    )
    for p, checkpointed_block in zip(blocks, by_block, strict=True):
        x = checkpointed_block(p, x)
    return x


def policies(size: str = "tiny") -> Case:
    s, params, tokens = plain_transformer.build(size)
    step = partial(plain_transformer.train_step, heads=s.heads, layers=checkpointed)
    return Case(step=step, args=(params, tokens), donate_argnums=(0,))


def nested_loops(layers, x):
    """A loop over groups of layers, both levels checkpointed: memory grows with the square root of the depth."""

    @partial(jax.checkpoint, prevent_cse=False)
    def one(x, p):
        return jnp.tanh(x @ p["w"] + p["b"]), None

    @partial(jax.checkpoint, prevent_cse=False)
    def group(x, ps):
        return jax.lax.scan(one, x, ps)

    return jax.lax.scan(group, x, layers)[0]


def nested_scan_step(params, x, y):
    def loss_fn(params):
        return jnp.mean((nested_loops(params["layers"], x) @ params["head"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return descend(params, grads), loss


def nested_scan(size: str = "tiny") -> Case:
    params, x, y = mlp.build(size)
    groups, depth = 3, 2
    width = params[1]["w"].shape[0]
    layers = jax.tree.map(lambda p: jnp.broadcast_to(p, (groups, depth, *p.shape)), params[1])
    params = {"layers": layers, "head": params[-1]["w"]}
    return Case(step=nested_scan_step, args=(params, jnp.tile(x, (1, width // x.shape[1])), y), donate_argnums=(0,))
