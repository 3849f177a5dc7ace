"""A bidirectional LSTM that names a sequence, float32, Adam.

Hochreiter and Schmidhuber 1997 with forget gates; Schuster and Paliwal 1997 for the two directions. Time is a `scan`,
which is one op of the step, or a loop in Python, where each moment has ops of its own.
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

ADAM = optax.adam(1e-3)


class Direction(nn.Module):
    """One layer in one direction: (batch, time, inputs) to (batch, time, hidden)."""

    hidden: int
    reverse: bool
    unrolled: bool
    remat: Remat = as_written

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        inputs, gates = x.shape[-1], 4 * self.hidden
        weights = (
            self.param("of_inputs", nn.initializers.lecun_normal(), (inputs, gates)),
            self.param("of_hidden", nn.initializers.orthogonal(), (self.hidden, gates)),
            self.param("bias", nn.initializers.zeros, (gates,)),
        )
        zeros = jnp.zeros((x.shape[0], self.hidden), x.dtype)
        return (self.looped if self.unrolled else self.scanned)(weights, (zeros, zeros), x)

    def scanned(self, weights: Any, carry: Any, x: jax.Array) -> jax.Array:
        """Time as a `scan`."""
        moment = self.remat(cell)

        def body(carry: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            carry = moment(weights, carry, x)
            return carry, carry[0]

        _, outputs = jax.lax.scan(body, carry, x.swapaxes(0, 1), reverse=self.reverse)
        return outputs.swapaxes(0, 1)

    def looped(self, weights: Any, carry: Any, x: jax.Array) -> jax.Array:
        """Time as a loop in Python."""
        moments = range(x.shape[1])
        outputs: dict[int, jax.Array] = {}
        for time in reversed(moments) if self.reverse else moments:
            carry = cell(weights, carry, x[:, time])
            outputs[time] = carry[0]
        return jnp.stack([outputs[time] for time in moments], axis=1)


def cell(weights: Any, carry: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One moment: from hidden and memory, each (batch, hidden), and inputs (batch, inputs), the next two."""
    of_inputs, of_hidden, bias = weights
    hidden, memory = carry
    entry, forget, new, out = jnp.split(x @ of_inputs + hidden @ of_hidden + bias, 4, axis=-1)
    memory = jax.nn.sigmoid(forget + 1.0) * memory + jax.nn.sigmoid(entry) * jnp.tanh(new)
    return jax.nn.sigmoid(out) * jnp.tanh(memory), memory


class BiLSTM(nn.Module):
    """Layers of both directions side by side, and a classifier of where each direction ends."""

    hidden: int
    layers: int
    classes: int
    unrolled: bool
    remat: Remat

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for i in range(self.layers):
            onward = Direction(self.hidden, False, self.unrolled, self.remat, name=f"layer_{i}_onward")(x)
            back = Direction(self.hidden, True, self.unrolled, self.remat, name=f"layer_{i}_back")(x)
            x = jnp.concatenate([onward, back], axis=-1)
        ends = jnp.concatenate([onward[:, -1], back[:, 0]], axis=-1)
        return nn.Dense(self.classes, name="head")(ends)


def step(
    *,
    batch: int = 2048,
    sequence: int = 128,
    inputs: int = 100,
    hidden: int = 256,
    layers: int = 1,
    classes: int = 2,
    unrolled: bool = False,
    optimiser: optax.GradientTransformation = ADAM,
    remat: Remat = as_written,
) -> TrainingStep:
    """The LSTM of Coop's figures, or another size of it.

    Args:
      batch: Sequences a step.
      sequence: Moments of a sequence.
      inputs: Numbers of a moment, a word's embedding for example.
      hidden: Numbers of a direction's state.
      layers: Layers.
      classes: Classes.
      unrolled: Each moment has ops of its own, as an eager framework would run them.
      optimiser: What makes updates of gradients.
      remat: Applied to each moment of a `scan`, before it is called; see `blocks`.
    """
    model = BiLSTM(hidden, layers, classes, unrolled, remat)

    def made(key: jax.Array) -> dict[str, jax.Array]:
        for_words, for_labels = jax.random.split(key)
        return {
            "words": jax.random.normal(for_words, (batch, sequence, inputs)),
            "labels": jax.random.randint(for_labels, (batch,), 0, classes),
        }

    def init(key: jax.Array, batch: Any) -> Mapping[str, Any]:
        return model.init(key, batch["words"])

    def loss(variables: Mapping[str, Any], batch: Any) -> tuple[jax.Array, Mapping[str, Any]]:
        return cross_entropy(model.apply(variables, batch["words"]), batch["labels"]), {}

    return training_step(init=init, loss=loss, batch=made, optimiser=optimiser)


def small() -> dict[str, Any]:
    """Arguments of `step` for a CPU."""
    return {"batch": 4, "sequence": 6, "inputs": 5, "hidden": 8}
