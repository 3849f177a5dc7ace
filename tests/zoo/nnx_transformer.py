"""A transformer in Flax NNX, its step in the two forms that people write under `jax.jit`.

`split`: parameters, random state and optimiser state are separate pytrees and the update is optax's. `merged`: what
`nnx.jit` does by itself, written out: model and optimiser are one state, merged inside, changed in place, split again.
Modules give no path in the name stack. Dropout keeps typed keys and counters in the state.
"""

import jax
import numpy as np
import optax
from flax import nnx

from tests.zoo.case import SIZES, Case, integers, quick_jit


class Block(nnx.Module):
    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs):
        self.norm_1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(heads, width, decode=False, rngs=rngs)
        self.norm_2 = nnx.LayerNorm(width, rngs=rngs)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs)
        self.down = nnx.Linear(4 * width, width, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        causal = nnx.make_causal_mask(x[..., 0])
        x = x + self.attention(self.norm_1(x), mask=causal)
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm_2(x)))))


class Transformer(nnx.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, depth: int, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(vocabulary, width, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, rngs=rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, vocabulary, use_bias=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss_fn(model: Transformer, tokens):
    logits = model(tokens[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


OPTIMIZER = optax.adam(1e-3)


def build(size: str):
    """Model and optimiser as a graph and a state, and tokens."""
    s = SIZES[size]

    @quick_jit
    def init():
        model = Transformer(s.vocabulary, s.width, s.heads, s.depth, rngs=nnx.Rngs(0))
        return nnx.split((model, nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)))

    return *init(), integers(np.random.default_rng(0), s.vocabulary, s.batch, s.length + 1)


def split(size: str = "tiny") -> Case:
    graphdef, state, tokens = build(size)
    model, _ = nnx.merge(graphdef, state)
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def train_step(params, rest, opt_state, tokens):
        def loss_of(params, rest):
            # A copy, because dropout's counters may not be moved in a trace that they are not of.
            model = nnx.merge(graphdef, params, rest, copy=True)
            return loss_fn(model, tokens), nnx.state(model, nnx.Not(nnx.Param))

        (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(params, rest)
        updates, opt_state = OPTIMIZER.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), rest, opt_state, loss

    return Case(
        step=train_step, args=(params, rest, quick_jit(OPTIMIZER.init)(params), tokens), donate_argnums=(0, 1, 2)
    )


def merged(size: str = "tiny") -> Case:
    graphdef, state, tokens = build(size)

    def train_step(state, tokens):
        model, optimizer = nnx.merge(graphdef, state)
        loss, grads = nnx.value_and_grad(loss_fn)(model, tokens)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return Case(step=train_step, args=(state, tokens), donate_argnums=(0,))
