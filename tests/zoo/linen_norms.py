"""A Linen network whose state is more than parameters: batch statistics that change, dropout that draws.

`apply` with `mutable` and `rngs`, statistics carried beside the parameters, the key folded with the step's number: the
form of Flax's own ImageNet and dropout guides.
"""

from typing import Any

import flax.linen as nn
import jax
import numpy as np
import optax
from flax.training import train_state

from tests.zoo.case import SIZES, Case, integers, normal, quick_jit


class Network(nn.Module):
    """Dense layers, each with batch norm and dropout."""

    width: int
    depth: int
    classes: int

    @nn.compact
    def __call__(self, x, *, train: bool):
        for _ in range(self.depth):
            x = nn.Dense(self.width)(x)
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.Dropout(0.2, deterministic=not train)(nn.relu(x))
        return nn.Dense(self.classes)(x)


class TrainState(train_state.TrainState):
    """A train state with batch statistics and the key that dropout folds from."""

    batch_stats: Any
    key: jax.Array


def train_step(state: TrainState, images, labels):
    def loss_fn(params):
        logits, updates = state.apply_fn(
            {"params": params, "batch_stats": state.batch_stats},
            images,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": jax.random.fold_in(state.key, state.step)},
        )
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, (logits, updates["batch_stats"])

    (loss, (logits, batch_stats)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    state = state.apply_gradients(grads=grads, batch_stats=batch_stats)
    return state, {"loss": loss, "accuracy": (logits.argmax(-1) == labels).mean()}


def dropout_and_batch_norm(size: str = "tiny") -> Case:
    s = SIZES[size]
    draw = np.random.default_rng(0)
    images, labels = normal(draw, 4 * s.batch, s.width), integers(draw, 10, 4 * s.batch)
    model = Network(width=s.width, depth=s.depth, classes=10)

    @quick_jit
    def init(key):
        variables = model.init(key, images, train=False)
        return TrainState.create(
            apply_fn=model.apply,
            params=variables["params"],
            tx=optax.sgd(0.1, momentum=0.9),
            batch_stats=variables["batch_stats"],
            key=key,
        )

    return Case(step=train_step, args=(init(jax.random.key(0)), images, labels), donate_argnums=(0,))
