"""A training step of any of these models, with a description of its arguments and real ones to run it on.

A model says what its variables are, what its loss is and what a batch looks like; the rest is the same for all: loss,
gradient, update. Variables are Linen's: "params" is trained, other collections (the statistics of batch
normalisation) are carried along.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

SGD = optax.sgd(0.1, momentum=0.9)
"""What networks of convolutions are usually trained with."""
ADAMW = optax.adamw(1e-4)
"""What transformers are usually trained with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """A step with a description of its arguments.

    Attributes:
      step: (variables, optimiser state, batch) to (variables, optimiser state, loss).
      args: Descriptions of these; nothing is allocated.
      donate_argnums: Variables and optimiser state.
      optimiser: What makes updates of gradients.
      batch: From a random key, a batch.
    """

    step: Callable[..., Any]
    args: tuple[Any, ...]
    donate_argnums: tuple[int, ...]
    optimiser: optax.GradientTransformation
    batch: Callable[[jax.Array], Any]

    def real(self, seed: int = 0) -> tuple[Any, ...]:
        """Random arguments for the step; a full-size model takes the memory that it takes."""
        variables = random_variables(self.args[0], seed)
        return variables, self.optimiser.init(variables["params"]), self.batch(jax.random.key(seed))

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(prod(leaf.shape) for leaf in jax.tree.leaves(self.args[0]["params"]))


def training_step(
    *,
    init: Callable[[jax.Array, Any], Mapping[str, Any]],
    loss: Callable[[Mapping[str, Any], Any], tuple[jax.Array, Mapping[str, Any]]],
    batch: Callable[[jax.Array], Any],
    optimiser: optax.GradientTransformation,
) -> TrainingStep:
    """Loss, gradient and update of a model.

    Args:
      init: From a random key and a batch, the variables; only their shapes are asked for.
      loss: From variables and a batch, the loss and the collections that changed.
      batch: From a random key, a batch.
      optimiser: What makes updates of gradients.
    """

    def step(variables: Mapping[str, Any], state: Any, batch: Any) -> tuple[Any, Any, jax.Array]:
        carried = {name: collection for name, collection in variables.items() if name != "params"}

        def of_parameters(parameters: Any) -> tuple[jax.Array, Mapping[str, Any]]:
            return loss({"params": parameters, **carried}, batch)

        parameters = variables["params"]
        (value, changed), gradients = jax.value_and_grad(of_parameters, has_aux=True)(parameters)
        updates, state = optimiser.update(gradients, state, parameters)
        return {"params": optax.apply_updates(parameters, updates), **carried, **changed}, state, value

    key = jax.eval_shape(lambda: jax.random.key(0))
    made = jax.eval_shape(batch, key)
    variables = jax.eval_shape(init, key, made)
    state = jax.eval_shape(optimiser.init, variables["params"])
    return TrainingStep(
        step=step, args=(variables, state, made), donate_argnums=(0, 1), optimiser=optimiser, batch=batch
    )


def random_variables(described: Any, seed: int) -> Any:
    """Variables that training can start from.

    NumPy draws them, by their names and shapes alone: to compile the initialisers of a hundred different shapes takes
    minutes on a CPU.

    Args:
      described: Their shapes, in Linen's collections.
      seed: Of the generator.
    """
    generator = np.random.default_rng(seed)

    def drawn(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        match path[-1].key:
            case "scale" | "var":
                values = np.ones(leaf.shape)
            case "bias" | "mean":
                values = np.zeros(leaf.shape)
            case _:
                values = generator.standard_normal(leaf.shape, np.float32) / max(1, prod(leaf.shape[:-1])) ** 0.5
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(drawn, described)
