"""A part in chunks: the same values and gradients, a fraction of the memory, one op for the planner."""

import flax.linen as nn
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings, strategies as st

import jaxckpt
from jaxckpt._errors import ChunkError
from jaxckpt.annotate import chunked
from tests.planner.test_planner import needs_compiler
from tests.zoo.case import quick_jit

pytestmark = pytest.mark.usefixtures("no_local_search")

FEW = settings(max_examples=3)


def cross_entropy(hidden, labels, head):
    logits = (hidden @ head).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).sum()


def primitives(closed) -> list[str]:
    """All of a jaxpr, bodies included."""
    found = []
    for eqn in closed.eqns:
        found.append(eqn.primitive.name)
        for inner in jex.jaxprs_in_params(eqn.params):
            found += primitives(inner)
    return found


def array(key, *shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(key), shape).astype(dtype)


def assert_close(one, other, **tolerance):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), **tolerance)


@FEW
@given(
    length=st.integers(1, 13), chunks=st.integers(1, 15), leading=st.booleans(), join=st.sampled_from(["sum", "mean"])
)
def test_a_chunked_loss_has_equal_values_and_gradients(length, chunks, leading, join):
    shape = (length,) if leading else (2, length)
    hidden, head = array(0, *shape, 4), array(1, 4, 6)
    labels = jax.random.randint(jax.random.key(2), shape, 0, 6)

    def loss(hidden, labels, head):
        total = cross_entropy(hidden, labels, head)
        return total / labels.size if join == "mean" else total

    axis = len(shape) - 1
    made = chunked(loss, chunks=chunks, axis=(axis, axis, None), join=join)
    expected = jax.value_and_grad(loss, argnums=(0, 2))(hidden, labels, head)
    assert_close(
        quick_jit(jax.value_and_grad(made, argnums=(0, 2)))(hidden, labels, head), expected, rtol=1e-5, atol=1e-6
    )


@FEW
@given(
    length=st.integers(1, 11),
    chunks=st.integers(1, 12),
    axis=st.sampled_from([0, 1, -2, -1]),
    out_axis=st.sampled_from([0, -1]),
)
def test_results_for_each_place_are_concatenated(length, chunks, axis, out_axis):
    shape = [3, 2]
    shape[axis % 2] = length
    x, w = {"a": array(0, *shape), "none": None}, array(1, 2 if axis % 2 == 0 else 3)

    def function(x, scale=1.0):
        places = jnp.moveaxis(x["a"], axis, 0)
        made = jnp.sin(places) * w * scale
        return {"out": jnp.moveaxis(made, 0, out_axis), "count": jnp.ones(places.shape[0], jnp.int32).sum()}

    join = {"out": "concatenate", "count": "sum"}
    made = chunked(function, chunks=chunks, axis=axis, join=join, out_axis=out_axis)
    assert_close(made(x, scale=2.0), function(x, scale=2.0), rtol=1e-6)
    expected, found = (jax.grad(lambda x, f=f: (f(x)["out"] ** 2).sum())(x) for f in (function, made))
    assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_is_closed_over_gets_its_gradient():
    hidden, head = array(0, 7, 4), array(1, 4, 6)
    labels = jnp.arange(7) % 6

    def whole(head):
        return cross_entropy(hidden, labels, head)

    def in_chunks(head):
        return chunked(lambda h, y: cross_entropy(h, y, head), chunks=3, join="sum")(hidden, labels)

    first = [quick_jit(jax.value_and_grad(f))(head) for f in (in_chunks, whole)]
    assert_close(*first, rtol=1e-5, atol=1e-6)
    second = [quick_jit(jax.grad(lambda w, f=f: (jax.grad(f)(w) ** 2).sum()))(head) for f in (in_chunks, whole)]
    assert_close(*second, rtol=1e-4, atol=1e-5)
    forward = [quick_jit(lambda w, f=f: jax.jvp(f, (w,), (w,)))(head) for f in (in_chunks, whole)]
    assert_close(*forward, rtol=1e-5)


def test_narrow_gradients_accumulate_in_the_chosen_type():
    hidden, head = array(0, 512, 8, dtype=jnp.bfloat16), array(1, 8, 16, dtype=jnp.bfloat16)
    labels = jnp.arange(512) % 16
    exact = jax.grad(cross_entropy, argnums=2)(*(x.astype(jnp.float32) for x in (hidden,)), labels, head.astype(float))
    off = {}
    for accumulate in ("float32", None):
        made = chunked(cross_entropy, chunks=64, axis=(0, 0, None), join="sum", accumulate=accumulate)
        gradient = quick_jit(jax.grad(made, argnums=2))(hidden, labels, head)
        assert gradient.dtype == jnp.bfloat16
        off[accumulate] = float(jnp.abs(gradient.astype(jnp.float32) - exact).mean())
    assert off["float32"] < 0.5 * off[None]


def test_narrow_sums_are_kept_in_float32():
    ones = jnp.ones(4096, jnp.bfloat16)
    made = chunked(lambda x: x.sum(), chunks=1024, join="sum")(ones)
    assert made.dtype == jnp.bfloat16 and made == 4096
    assert chunked(lambda x: x.sum(), chunks=1024, join="sum", accumulate=None)(ones) < 4096


def test_nothing_of_a_chunk_is_kept_but_its_arguments():
    hidden, head, labels = array(0, 8, 4), array(1, 4, 96), jnp.arange(8)
    made = chunked(cross_entropy, chunks=4, axis=(0, 0, None), join="sum")
    kept = jax.eval_shape(lambda *args: jax.vjp(lambda h, w: made(h, labels, w), *args)[1], hidden, head)
    assert all(leaf.shape in ((4, 96), (4, 2, 4), (4, 2), (8, 4), (8,), ()) for leaf in jax.tree.leaves(kept))


def test_chunks_are_one_loop_and_a_smaller_last_chunk():
    x = array(0, 10, 3)
    loops = {chunks: primitives(jax.make_jaxpr(chunked(jnp.sin, chunks=chunks))(x)) for chunks in (1, 2, 4, 10, 99)}
    assert loops[1].count("sin") == 1 and "scan" not in loops[1]
    assert loops[2].count("sin") == 1 and loops[2].count("scan") == 1
    assert loops[4].count("sin") == 2 and loops[4].count("scan") == 1  # 3, 3, 3 and 1
    assert loops[99] == loops[10]


def test_it_works_under_vmap():
    x, w = array(0, 5, 7, 3), array(1, 3, 4)
    f = lambda x: jnp.tanh(x @ w).sum(-1)  # noqa: E731
    assert_close(jax.vmap(chunked(f, chunks=3))(x), jax.vmap(f)(x), rtol=1e-6)


def test_a_random_key_is_split_unless_it_has_no_axis():
    def noise(x, key):
        return x + jax.random.normal(key, x.shape)

    x, key = jnp.zeros((7, 2)), jax.random.key(0)
    split = chunked(noise, chunks=4)(x, key)
    keys = jax.random.split(key, 4)
    assert_close(
        split, jnp.concatenate([jax.random.normal(k, (n, 2)) for k, n in zip(keys, (2, 2, 2, 1), strict=True)])
    )
    whole = chunked(noise, chunks=4, axis=(0, None))(x[:6], key)
    assert_close(whole, jnp.concatenate([jax.random.normal(key, (2, 2))] * 3))
    per_place = chunked(lambda x, keys: x + jax.vmap(jax.random.normal)(keys)[:, None], chunks=4)
    assert_close(
        per_place(x, jax.random.split(key, 7)),
        jnp.tile(jax.vmap(jax.random.normal)(jax.random.split(key, 7))[:, None], 2),
    )


class Head(nn.Module):
    chunks: int | None = None

    @nn.compact
    def __call__(self, x, labels):
        x = nn.Dense(8)(x)
        head = nn.Dense(16, name="head")
        loss = lambda head, x, y: optax_like(head(x), y)  # noqa: E731
        if self.chunks:
            loss = chunked(loss, chunks=self.chunks, axis=(None, 1, 1), join="sum")
        return loss(head, x, labels)


def optax_like(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).sum()


def test_a_linen_module_keeps_the_paths_of_its_parameters():
    x, labels = array(0, 2, 7, 4), jax.random.randint(jax.random.key(1), (2, 7), 0, 16)
    variables = Head().init(jax.random.key(2), x, labels)
    assert_close(Head(chunks=3).init(jax.random.key(2), x, labels), variables)
    modules = (Head(), Head(chunks=3))
    losses = [quick_jit(jax.value_and_grad(lambda v, m=m: m.apply(v, x, labels)))(variables) for m in modules]
    assert_close(*losses, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("as_argument", [False, True])
def test_an_nnx_module_goes_in_whole(as_argument):
    model = nnx.Linear(4, 16, rngs=nnx.Rngs(0))
    x, labels = array(0, 7, 4), jnp.arange(7)

    def whole(model):
        return optax_like(model(x), labels)

    def in_chunks(model):
        if as_argument:
            part = chunked(lambda m, x, y: optax_like(m(x), y), chunks=3, axis=(None, 0, 0), join="sum")
            return part(model, x, labels)
        return chunked(lambda x, y: optax_like(model(x), y), chunks=3, join="sum")(x, labels)

    assert_close(nnx.value_and_grad(in_chunks)(model), nnx.value_and_grad(whole)(model), rtol=1e-5, atol=1e-6)


TOKENS, WIDTH, VOCABULARY = 4096, 512, 50304
HEAD_ARGS = (
    jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.bfloat16),
    jax.ShapeDtypeStruct((TOKENS,), jnp.int32),
    jax.ShapeDtypeStruct((WIDTH, VOCABULARY), jnp.bfloat16),
)


@needs_compiler
@pytest.mark.parametrize(("chunks", "share"), [(8, 1 / 5), (7, 1 / 3)])
def test_a_chunked_vocabulary_head_compiles_to_a_fraction(chunks, share):
    made = chunked(cross_entropy, chunks=chunks, axis=(0, 0, None), join="sum")
    whole, in_chunks = (
        jaxckpt.footprint(jax.grad(f, argnums=(0, 2)), *HEAD_ARGS, target="h200") for f in (cross_entropy, made)
    )
    assert in_chunks.temp_bytes <= share * whole.temp_bytes
    assert in_chunks.step_s <= 1.6 * whole.step_s  # the logits again, and sums of the weight's gradient


def deep_step(weights, head, x, labels):
    def loss(weights, head):
        hidden = x
        for w in weights:
            hidden = jnp.tanh(hidden @ w)
        return chunked(cross_entropy, chunks=8, axis=(0, 0, None), join="sum")(hidden, labels, head)

    return jax.value_and_grad(loss, argnums=(0, 1))(weights, head)


@needs_compiler
def test_the_planner_plans_a_step_that_has_chunks():
    weights = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 4
    head = jax.ShapeDtypeStruct((256, 1024), jnp.float32)
    x, labels = jax.ShapeDtypeStruct((8192, 256), jnp.float32), jax.ShapeDtypeStruct((8192,), jnp.int32)
    planner = jaxckpt.Planner(deep_step, weights, head, x, labels, target="h200")
    plan = planner.plan(budget=0.75)
    assert plan.decisions
    assert plan.footprint.total_bytes <= 0.75 * planner.unplanned.total_bytes
    small = (
        [array(i, 256, 256) / 16 for i in range(4)],
        array(20, 256, 1024),
        array(21, 8192, 256),
        jnp.arange(8192) % 1024,
    )
    found, expected = (quick_jit(f)(*small) for f in (plan.apply(deep_step), deep_step))
    assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"chunks": 0}, "chunks = 0"),
        ({"chunks": 2.5}, "chunks = 2.5"),
        ({"join": "add"}, "'concatenate', 'sum', 'mean'"),
        ({"accumulate": "float64"}, '"float32" or None'),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused_at_once(given, said):
    with pytest.raises(ChunkError, match=said):
        chunked(jnp.sin, **({"chunks": 2} | given))


@pytest.mark.parametrize(
    ("options", "args", "said"),
    [
        ({"axis": (0, 0)}, (jnp.ones(3),), r"axis=\(0,\)"),
        ({"axis": 1}, (jnp.ones(3),), r"argument \[0\]: float32\[3\], axis 1"),
        ({}, (jnp.ones(3), jnp.ones(4)), r"float32\[3\], axis 0; argument \[1\]: float32\[4\]"),
        ({}, (jnp.ones((0, 2)),), "not 0"),
        ({"axis": None}, (jnp.ones(3),), "no array with an axis"),
        ({}, (jax.random.key(0),), "no array with an axis"),
    ],
)
def test_arguments_that_cannot_be_cut_are_named(options, args, said):
    with pytest.raises(ChunkError, match=said):
        chunked(lambda *args: args[0], chunks=2, **options)(*args)


@pytest.mark.parametrize(
    ("function", "options", "said"),
    [
        (jnp.sum, {}, 'join="sum"'),
        (lambda x: jnp.ones(4), {}, "a sum over the axis"),
        (jnp.sin, {"join": "sum"}, 'join="concatenate"'),
        (lambda x: (x > 0).all(), {"join": "sum"}, "bool"),
        (lambda x: (x, x.sum()), {"join": ("concatenate",)}, "no tree of the results"),
        (lambda x: (x, x.sum()), {}, r"the result \[1\]"),
    ],
)
def test_results_that_cannot_be_joined_are_named(function, options, said):
    with pytest.raises(ChunkError, match=said):
        chunked(function, chunks=3, **options)(jnp.ones(7))


def test_the_users_own_exception_comes_out_untouched():
    def broken(x):
        raise RuntimeError("in the head")

    with pytest.raises(RuntimeError, match="in the head"):
        chunked(broken, chunks=2)(jnp.ones(4))


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_a_mean_of_integers_is_refused(dtype):
    with pytest.raises(ChunkError, match='cannot be joined by "mean"'):
        chunked(lambda x: jnp.max(x).astype(dtype), chunks=2, join="mean")(jnp.arange(8.0))


def test_axis_and_chunks_may_be_numpys_integers():
    in_chunks = chunked(jnp.sum, chunks=np.int64(2), axis=np.int64(0), join="sum")
    assert in_chunks(jnp.arange(8.0)) == 28.0


def test_state_that_a_chunk_changes_is_refused():
    """A mask of dropout would be the same for all chunks, and at the next call again."""
    dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    in_chunks = chunked(lambda module, x: module(x), chunks=2, axis=(None, 0))
    with pytest.raises(ChunkError, match="changes an NNX module"):
        in_chunks(dropout, jnp.ones((8, 4)))
    assert dropout.rngs.count[...] == 0


def test_random_keys_may_be_results():
    def keys(rows, key):
        return jax.vmap(lambda row: jax.random.fold_in(key, row))(rows)

    rows, key = jnp.arange(10), jax.random.key(0)
    in_chunks = chunked(keys, chunks=3, axis=(0, None))
    assert (jax.random.key_data(in_chunks(rows, key)) == jax.random.key_data(keys(rows, key))).all()


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_that_no_result_has_is_refused(axis):
    with pytest.raises(ChunkError, match=f"out_axis = {axis}, for results of at most 2 dimensions"):
        chunked(lambda x: 2 * x, chunks=2, out_axis=axis)(jnp.ones((8, 4)))
