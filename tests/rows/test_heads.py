"""Loss heads in many spellings: each is found, runs in pieces, and gives the numbers of the step as written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxckpt.program.inline import open_jaxpr
from jaxckpt.rewrite.chunk_rows import Chunk, with_chunk
from jaxckpt.rows import find_regions
from jaxckpt.trace import trace_step
from tests.rows.heads import BATCH, BATCHED, HEADS, PARAMETERS, SEQUENCE, VOCABULARY

TOKENS = BATCH * SEQUENCE


def run(traced, *args):
    closed = traced.jaxpr
    call = jax.jit(lambda *flat: jax.core.eval_jaxpr(open_jaxpr(closed), getattr(closed, "consts", ()), *flat))
    return call(*jax.tree.leaves(args))


def wide_values(traced):
    """The shapes of values outside of loops that have a column for each token of the vocabulary, and many rows."""
    avals = (v.aval for e in traced.program.equations for v in e.eqn.outvars)
    return [a.shape for a in avals if a.shape[-1:] == (VOCABULARY,) and a.size > TOKENS * VOCABULARY / 2]


@pytest.mark.parametrize("name", HEADS)
def test_a_head_in_pieces_has_the_gradients_of_the_head(name):
    step = jax.value_and_grad(HEADS[name])
    traced = trace_step(step, PARAMETERS, BATCHED)
    found = find_regions(traced)
    assert found.regions, found.refused
    wanted = run(traced, PARAMETERS, BATCHED)
    for region in found.regions[:2]:
        chunked = with_chunk(traced, Chunk(region=region, pieces=region.most_pieces(8)))
        assert not wide_values(chunked)
        assert sum(e.eqn.primitive.name == "scan" for e in chunked.program.equations) == 1
        narrow = name == "narrow_head"
        for ours, own in zip(run(chunked, PARAMETERS, BATCHED), wanted, strict=True):
            assert ours.dtype == own.dtype
            np.testing.assert_allclose(ours, own, rtol=2e-2 if narrow else 1e-5, atol=4e-3 if narrow else 2e-6)


def test_logits_are_in_the_step_as_written():
    assert (BATCH, SEQUENCE, VOCABULARY) in wide_values(
        trace_step(jax.value_and_grad(HEADS["log_sum_exp"]), PARAMETERS, BATCHED)
    )


def test_gradients_of_weights_are_summed_in_float32():
    traced = trace_step(jax.value_and_grad(HEADS["narrow_head"]), PARAMETERS, BATCHED)
    region = find_regions(traced).regions[0]
    assert any(v.aval.dtype == jnp.bfloat16 for v in region.sums)
    chunked = with_chunk(traced, Chunk(region=region, pieces=2))
    scan = next(e.eqn for e in chunked.program.equations if e.eqn.primitive.name == "scan")
    sums = [v.aval for v in scan.outvars if v.aval.shape in ((VOCABULARY, 8), (8, VOCABULARY))]
    assert sums and all(aval.dtype == jnp.float32 for aval in sums)


def test_a_head_before_a_loop_of_the_forward_pass_runs_in_pieces():
    weights = jax.random.normal(jax.random.key(8), (3, 8, 8)) / 4

    def loss(parameters, batch):
        hidden, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], weights * parameters["in"])
        return (jax.nn.softmax(batch["x"] @ parameters["out"]) ** 2).sum() + (hidden**2).sum()

    traced = trace_step(jax.value_and_grad(loss), PARAMETERS, BATCHED)
    regions = [region for region in find_regions(traced).regions if region.rows == BATCH]
    assert regions
    for region in regions:
        chunked = with_chunk(traced, Chunk(region=region, pieces=2))
        assert not wide_values(chunked)
        for ours, own in zip(run(chunked, PARAMETERS, BATCHED), run(traced, PARAMETERS, BATCHED), strict=True):
            np.testing.assert_allclose(ours, own, rtol=1e-5, atol=2e-6)
