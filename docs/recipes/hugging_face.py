"""A Flax model of Hugging Face Transformers (GPT-2, from its configuration), fitted into a budget."""

import jax
import jax.numpy as jnp
import optax
from flax.training.train_state import TrainState
from transformers import FlaxGPT2LMHeadModel, GPT2Config

import jaxckpt

LAYERS, ROWS, TOKENS, BUDGET = 4, 4, 256, "200MiB"
config = GPT2Config(n_layer=LAYERS, n_embd=256, n_head=4, vocab_size=8192, n_positions=TOKENS)
model = FlaxGPT2LMHeadModel(config, input_shape=(1, TOKENS), seed=0)  # or .from_pretrained("gpt2")


def new_state():
    params = jax.tree.map(jnp.array, model.params)
    return TrainState.create(apply_fn=model.__call__, params=params, tx=optax.adamw(1e-3))


@jax.jit(donate_argnums=0)
def train_step(state, tokens, dropout_key):
    def loss_of(params):
        logits = state.apply_fn(tokens, params=params, dropout_rng=dropout_key, train=True).logits
        return optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], tokens[:, 1:]).mean()

    loss, gradients = jax.value_and_grad(loss_of)(state.params)
    return state.apply_gradients(grads=gradients), loss


def train(step):
    state, losses = new_state(), []
    for key in jax.random.split(jax.random.key(1), 3):
        tokens = jax.random.randint(key, (ROWS, TOKENS), 0, config.vocab_size)
        state, loss = step(state, tokens, key)
        losses.append(float(loss))
    return losses


# The lines of jaxckpt.
shapes = jax.eval_shape(new_state), jax.ShapeDtypeStruct((ROWS, TOKENS), jnp.int32), jax.random.key(1)
as_written = jaxckpt.footprint(train_step, *shapes, target="h200")
plan = jaxckpt.plan(train_step, *shapes, budget=BUDGET, target="h200")
print("as written:", as_written.summary())
print("planned:", plan.summary())
print("losses as written:", train(train_step))
print("losses with plan: ", train(plan.apply(train_step)))
