"""A Keras 3 model on JAX, trained by its stateless functions in a step of its own, fitted into a budget."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import jax
import jax.numpy as jnp
import keras

import jaxckpt

LAYERS, ROWS, WIDTH, BUDGET = 6, 8192, 256, "430MiB"


def new_model():
    inputs = x = keras.Input((WIDTH,))
    for _ in range(LAYERS):
        hidden = keras.layers.Dense(4 * WIDTH, activation="gelu")(keras.layers.LayerNormalization()(x))
        x = x + keras.layers.Dense(WIDTH)(hidden)
    return keras.Model(inputs, x)


keras.utils.set_random_seed(0)
model, optimizer = new_model(), keras.optimizers.AdamW(1e-3)
optimizer.build(model.trainable_variables)


def loss_of(trainable, fixed, batch):
    predicted, fixed = model.stateless_call(trainable, fixed, batch, training=True)
    return jnp.mean((predicted - 1) ** 2), fixed


@jax.jit(donate_argnums=0)
def train_step(state, batch):
    trainable, fixed, opt_state = state
    (loss, fixed), gradients = jax.value_and_grad(loss_of, has_aux=True)(trainable, fixed, batch)
    trainable, opt_state = optimizer.stateless_apply(opt_state, gradients, trainable)
    return (trainable, fixed, opt_state), loss


def train(step):
    groups = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    state, losses = jax.tree.map(lambda v: jnp.array(v.value), [list(group) for group in groups]), []
    for number in range(3):
        state, loss = step(state, jax.random.normal(jax.random.key(number), (ROWS, WIDTH)))
        losses.append(float(loss))
    return losses


# The lines of jaxckpt.
groups = model.trainable_variables, model.non_trainable_variables, optimizer.variables
shapes = [[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in group] for group in groups]
args = shapes, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
as_written = jaxckpt.footprint(train_step, *args, target="h200")
plan = jaxckpt.plan(train_step, *args, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
