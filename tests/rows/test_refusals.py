"""Steps whose rows cannot be computed in pieces, each refused with its reason."""

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxckpt import ChunkError
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rows import find_regions
from jaxckpt.rows.axis import RowAxis
from jaxckpt.trace import trace_step
from tests.rows.heads import BATCHED, PARAMETERS, WIDTH, hidden, logits, optax_integers

TOKENS = {
    "x": BATCHED["x"].reshape(-1, WIDTH),
    "labels": BATCHED["labels"].reshape(-1),
}


def losses(p, b):
    return optax.softmax_cross_entropy_with_integer_labels(logits(p, b), b["labels"])


def returns_logits(p, b):
    z = logits(p, b)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean(), z


def contrastive(p, b):
    one = hidden(p, b)
    z = one @ jnp.roll(b["x"], 1, axis=0).T @ jnp.ones((24, 24)) @ jnp.ones((24, 24))
    labels = jnp.arange(len(one))
    both = [optax.softmax_cross_entropy_with_integer_labels(each, labels).mean() for each in (z, z.T)]
    return both[0] + both[1]


def log_of_sum(p, b):
    return jnp.log(losses(p, b).sum())


def normalised_by_losses(p, b):
    each = losses(p, b)
    return (each * jax.nn.softmax(each)).sum()


def hardest_tokens(p, b):
    return jnp.sort(losses(p, b))[-8:].mean()


def hardest_by_top_k(p, b):
    return jax.lax.top_k(losses(p, b), 8)[0].mean()


def batch_norm(p, b):
    z = logits(p, b)
    z = (z - z.mean(0)) / jnp.sqrt(z.var(0) + 1e-5)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def mixed_by_attention(p, b):
    z = logits(p, b)
    h = hidden(p, b)
    z = z + jax.nn.softmax(h @ h.T) @ z
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def running_sum(p, b):
    return optax.softmax_cross_entropy_with_integer_labels(jnp.cumsum(logits(p, b), axis=0), b["labels"]).mean()


def prints(p, b):
    z = logits(p, b)
    jax.debug.print("{}", z)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


def drops_logits(p, b):
    z = logits(p, b)
    z = z * jax.random.bernoulli(jax.random.key(0), 0.9, z.shape)
    return optax.softmax_cross_entropy_with_integer_labels(z, b["labels"]).mean()


TRAPS = [
    (returns_logits, "is a result of the step"),
    (contrastive, "mixes rows"),
    (log_of_sum, "the rows are coupled"),
    (normalised_by_losses, "mixes rows"),
    (hardest_tokens, "sort"),
    (hardest_by_top_k, "top_k"),
    (batch_norm, "the rows are coupled"),
    (mixed_by_attention, "reads other rows than its own"),
    (running_sum, "cumsum"),
    (prints, "has an effect"),
    (drops_logits, "is computed for all rows at once"),
]


@pytest.mark.parametrize(("loss", "reason"), TRAPS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_trap_is_refused_with_its_reason(loss, reason):
    step = jax.value_and_grad(loss, has_aux=loss is returns_logits)
    traced = trace_step(step, PARAMETERS, TOKENS)
    found = find_regions(traced)
    assert not [region for region in found.regions if region.dimension == 0 and region.rows == 24]
    assert any(reason in refused.reason for refused in found.refused if refused.dimension == 0), found.refused


def test_pieces_divide_the_rows():
    traced = trace_step(jax.value_and_grad(optax_integers), PARAMETERS, BATCHED)
    region = find_regions(traced).regions[0]
    assert region.pieces == (2, 4) and region.most_pieces(3) == 2 and region.most_pieces(1) == 1
    for pieces in (1, 3):
        with pytest.raises(ChunkError, match="divisor of 4"):
            with_chunk(traced, Chunk(region=region, pieces=pieces))


def test_the_first_region_whose_rows_divide_is_found_by_pieces():
    found = find_regions(trace_step(jax.value_and_grad(optax_integers), PARAMETERS, BATCHED))
    assert [found.with_pieces(n).rows for n in (2, 4, 6)] == [4, 4, 6]
    assert found.with_pieces(5) is None


@pytest.mark.parametrize("column", [lambda n: jnp.arange(n).astype("uint8"), lambda n: jax.lax.iota("uint8", n)])
@pytest.mark.parametrize("rows", [256, 512])
def test_row_numbers_that_wrap_in_their_type_are_no_row_numbers(column, rows):
    def loss(weights, x):
        return -jax.nn.log_softmax(x @ weights)[column(rows), jnp.zeros(rows, int)].sum()

    traced = trace_step(jax.value_and_grad(loss), PARAMETERS["out"], jnp.ones((rows, WIDTH)))
    assert [region.rows for region in find_regions(traced).regions] == ([rows] if rows == 256 else [])


def test_arrays_without_elements_have_no_rows():
    assert RowAxis(dimension=0).reshaped((8, 0), (2, 4, 0), 8) is None
