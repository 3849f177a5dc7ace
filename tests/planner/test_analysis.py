"""Where residuals are: counted by hand on steps that are small enough."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from jaxckpt._errors import NoGradientError, UnknownTargetError
from jaxckpt.planner import analyze

pytestmark = pytest.mark.usefixtures("no_local_search")

LAYERS, ROWS, WIDTH = 4, 512, 64
WEIGHTS = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
ACTIVATION_BYTES = 4 * ROWS * WIDTH


def step(weights, x):
    def loss(weights):
        hidden = x
        for i, w in enumerate(weights):
            with jax.named_scope(f"block_{i}"):
                hidden = jnp.tanh(hidden @ w)
        return hidden.sum()

    return jax.grad(loss)(weights)


@pytest.fixture(scope="module")
def analysis():
    return analyze(step, WEIGHTS, X)


def blocks(analysis):
    return [row for row in analysis.scopes if row.scope.startswith("block_")]


def test_each_layer_keeps_one_activation(analysis):
    assert [row.scope for row in blocks(analysis)] == [f"block_{i}" for i in range(LAYERS)]
    assert [row.kept_bytes for row in blocks(analysis)] == [ACTIVATION_BYTES] * LAYERS
    assert analysis.kept_bytes == LAYERS * ACTIVATION_BYTES


def test_the_largest_value_is_described_where_the_user_wrote_it(analysis):
    largest = blocks(analysis)[0].largest
    assert largest.shape == (ROWS, WIDTH)
    assert largest.size_bytes == ACTIVATION_BYTES
    assert "test_analysis.py" in largest.source


def test_readers_and_seconds_are_counted(analysis):
    assert all(row.reader_count > 0 and row.recompute_s > 0 for row in blocks(analysis))


def test_totals_are_those_of_the_step(analysis):
    assert analysis.argument_bytes == 4 * (LAYERS * WIDTH * WIDTH + ROWS * WIDTH)
    assert analysis.constant_bytes == 0
    assert analysis.smallest_bytes < analysis.unplanned_bytes
    assert analysis.phases_source == "names"
    assert analysis.unpriced == ()
    assert analysis.step == "step"


def test_a_residual_inside_a_kernel_takes_no_memory():
    def masked(weights, x):
        def loss(weights):
            hidden = x @ weights[0]
            return jnp.where(hidden > 0, hidden, 0.1 * hidden).sum()

        return jax.grad(loss)(weights)

    found = analyze(masked, WEIGHTS, X)
    assert found.residual_bytes > 0
    assert found.kept_bytes == ACTIVATION_BYTES, "the mask is made again of the product, which is kept"


def test_arrays_closed_over_are_counted_as_constants():
    mask = jnp.ones((ROWS, WIDTH))
    found = analyze(lambda w, x: jax.grad(lambda w: ((x * mask) @ w).sum())(w), WEIGHTS[0], X)
    assert found.constant_bytes == ACTIVATION_BYTES


def test_what_nobody_can_price_is_counted():
    def foreign(w, x):
        def called(y):
            shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
            return jax.lax.stop_gradient(jax.pure_callback(lambda z: z, shape, y, vmap_method="sequential"))

        return jax.grad(lambda w: (called(x) @ w).sum())(w)

    assert dict(analyze(foreign, WEIGHTS[0], X).unpriced) == {"pure_callback": 1}


def test_a_slower_machine_takes_longer_and_keeps_the_same(analysis):
    slower = analyze(step, WEIGHTS, X, target="v5e")
    assert slower.unplanned_s > analysis.unplanned_s
    assert slower.kept_bytes == analysis.kept_bytes


def test_donation_and_static_arguments_are_taken():
    def updated(weights, x, how_often):
        gradients = step(weights, x)
        return [w - how_often * g for w, g in zip(weights, gradients, strict=True)]

    kept, donated = (
        analyze(updated, WEIGHTS, X, 3, donate_argnums=argnums, static_argnums=2) for argnums in ((), (0,))
    )
    assert kept.unplanned_bytes - donated.unplanned_bytes == 4 * LAYERS * WIDTH * WIDTH


def test_an_analysis_is_plain_data(analysis):
    assert json.loads(json.dumps(dataclasses.asdict(analysis)))["op_count"] == analysis.op_count
    assert analysis == analyze(step, WEIGHTS, X)


def test_a_step_without_a_gradient_is_refused():
    with pytest.raises(NoGradientError):
        analyze(lambda w, x: x @ w, WEIGHTS[0], X)


def test_an_unknown_target_is_refused_before_anything_is_traced():
    with pytest.raises(UnknownTargetError):
        analyze(lambda: 1 / 0, target="h20")
