"""Heads of model libraries that the tests do not require."""

import os

import jax
import optax
import pytest

from tests.rows.heads import BATCHED, PARAMETERS, VOCABULARY, hidden
from tests.rows.test_models import assert_same


def test_a_head_of_haiku_runs_in_pieces():
    haiku = pytest.importorskip("haiku")
    head = haiku.without_apply_rng(haiku.transform(lambda h: haiku.Linear(VOCABULARY)(h)))

    def loss(parameters, batch):
        own = {"linear": {"w": parameters["out"], "b": parameters["bias"]}}
        logits = head.apply(own, hidden(parameters, batch))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    assert_same(jax.value_and_grad(loss), (PARAMETERS, BATCHED))


@pytest.mark.parametrize("is_sparse", [True, False])
def test_a_head_and_a_loss_of_keras_run_in_pieces(monkeypatch, is_sparse):
    monkeypatch.setitem(os.environ, "KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras")
    head = keras.layers.Dense(VOCABULARY)
    head.build(BATCHED["x"].shape)
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    smoothed = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)

    def loss(parameters, batch):
        logits, _ = head.stateless_call([parameters["out"], parameters["bias"]], [], hidden(parameters, batch))
        if is_sparse:
            return sparse(batch["labels"], logits)
        return smoothed(jax.nn.one_hot(batch["labels"], VOCABULARY), logits)

    assert_same(jax.value_and_grad(loss), (PARAMETERS, BATCHED))
