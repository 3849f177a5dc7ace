"""Verification: equal steps pass bit for bit, wrong ones are caught by name, what cannot run is said."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt import Policy, UnverifiableError, VerificationError, verify
from jaxckpt.verifier import Tolerance, difference
from tests.zoo import named

NOTHING = Policy(name="nothing", default="recompute")
ALLOWED = Tolerance(relative=1e-3, absolute=0)


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def step(weights, x, key):
    """Loss, gradients, an update, and the next key."""

    def loss(weights):
        hidden = x
        for i, w in enumerate(weights["layers"]):
            keep = jax.random.bernoulli(jax.random.fold_in(key, i), 0.8, hidden.shape)
            hidden = jnp.where(keep, jnp.tanh(hidden @ w), 0)
        return (hidden**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), {"loss": value, "key": jax.random.split(key)[0]}


WEIGHTS = {"layers": [floats(16, 16)] * 4}
ARGS = (WEIGHTS, floats(8, 16), jax.eval_shape(lambda: jax.random.key(0)))


@pytest.mark.parametrize("exact", [False, True])
def test_a_planned_step_with_dropout_passes(exact):
    found = verify(step, jaxckpt.apply(step, NOTHING), *ARGS, exact=exact).check()
    assert found.ok
    assert found.bit_equal or not exact
    assert [leaf.path for leaf in found.leaves][3:] == ["[0]['layers'][3]", "[1]['key']", "[1]['loss']"]
    assert found.generated[0] == "[0]['layers'][0]"
    assert found.random_draws == (4, 7)  # the last stage draws once: its backward follows at once


def test_a_plan_is_applied_to_the_step():
    plan = jaxckpt.Planner(step, *ARGS, target="cpu").plan(budget="1GiB", strategy="full")
    assert verify(step, plan, *ARGS, exact=True).bit_equal
    assert verify(step, jax.jit(plan.apply(step)), *ARGS).ok


def test_a_mask_drawn_from_another_key_is_wrong():
    def other(weights, x, key):
        return step(weights, x, jax.random.fold_in(key, 1))

    found = verify(step, other, *ARGS)
    assert not found.ok
    assert "[1]['key']" in {leaf.path for leaf in found.wrong}
    assert any(leaf.path.startswith("[0]") for leaf in found.wrong)


def test_one_wrong_leaf_is_named_with_its_difference():
    def other(weights, x, key):
        new, rest = step(weights, x, key)
        new["layers"][2] = new["layers"][2].at[3, 5].add(0.5)
        return new, rest

    found = verify(step, other, *ARGS)
    (wrong,) = found.wrong
    assert (wrong.path, wrong.differing) == ("[0]['layers'][2]", 1)
    assert wrong.max_absolute == pytest.approx(0.5)
    with pytest.raises(
        VerificationError,
        match=r"in 1 of 6 results[\s\S]*result\[0\]\['layers'\]\[2\] float32\[16,16\]: 1 elements differ, by 0.5",
    ) as caught:
        found.check()
    assert caught.value.verification is found


def test_a_change_below_rounding_is_caught_by_exact_only():
    def other(x):
        return x * (1 + 2**-22)

    args = (jnp.linspace(0, 1, 100),)
    assert verify(lambda x: x * 1, other, *args).ok
    found = verify(lambda x: x * 1, other, *args, exact=True)
    assert not found.ok
    with pytest.raises(VerificationError, match="every bit equal, one operation at a time"):
        found.check()


def test_other_structures_shapes_and_types_are_refused_by_path():
    with pytest.raises(VerificationError) as caught:
        verify(
            lambda x: {"a": x, "b": x, "c": x},
            lambda x: {"a": x[:2], "b": x.astype(jnp.bfloat16), "d": x},
            jnp.ones(3),
        )
    assert caught.value.differing == ("['a']", "['b']", "['c']", "['d']")
    message = "(1) result['a'] is float32[2]; (2) result['b'] is bfloat16[3]; (3) result['c'] is absent"
    assert message in str(caught.value)


def test_not_finite_values_must_stand_where_they_stand():
    values = jnp.array([1.0, jnp.nan, jnp.inf, -jnp.inf])
    same = verify(lambda x: x, lambda x: x + 0, values)
    assert same.ok
    assert same.not_finite == 3
    for position in range(4):
        moved = verify(lambda x: x, lambda x, i=position: x.at[i].set(-x[i] if i == 2 else 2.0), values)
        assert moved.ok == (position == 0 and moved.leaves[0].max_absolute <= moved.leaves[0].allowed)
    with pytest.raises(VerificationError, match="2 elements are NaN or infinite in one of the two alone"):
        verify(lambda x: x, lambda x: jnp.where(x > 0, x, jnp.nan), jnp.array([1.0, -1.0, -2.0])).check()


def test_integers_and_booleans_must_be_equal():
    found = verify(lambda n: (n, n > 5), lambda n: (n.at[0].add(1), n > 6), jnp.arange(10_000))
    assert [(leaf.differing, leaf.ok) for leaf in found.leaves] == [(1, False), (1, False)]


def test_tolerances_of_ones_own_are_by_type_of_the_result():
    args = (lambda x: x, lambda x: x * 1.01, jnp.ones(3))
    assert not verify(*args).ok
    assert verify(*args, tolerances={"float32": Tolerance(relative=0.02, absolute=0)}).ok


def test_a_float_from_16_bit_work_is_allowed_what_16_bits_are():
    def coarse(x):
        return (x.astype(jnp.bfloat16) * 1).astype(jnp.float32)

    (leaf,) = verify(coarse, coarse, jnp.ones(3)).leaves
    assert leaf.tolerance == jaxckpt.verifier.TOLERANCES["bfloat16"]
    (leaf,) = verify(lambda x: x, lambda x: x, jnp.ones(3)).leaves
    assert leaf.tolerance == jaxckpt.verifier.TOLERANCES["float32"]


def test_elements_near_zero_are_measured_by_their_neighbours():
    found = difference("", np.float32([1000, 0]), np.float32([1000, 0.5]), ALLOWED)
    assert found.ok
    assert not difference("", np.float32([1, 0]), np.float32([1, 0.5]), ALLOWED).ok
    assert difference("", np.float32([0.0]), np.float32([-0.0]), ALLOWED).differing == 0
    assert not difference("", np.float32([0.0]), np.float32([-0.0]), ALLOWED).bit_equal


def test_small_updates_of_large_parameters_must_be_right():
    """A gradient that is wrong by a tenth moves a parameter by less than its own tolerance would see."""

    def update(weights, x, error=1.0):
        value, gradients = jax.value_and_grad(lambda w: jnp.tanh(x @ w).mean())(weights["w"])
        return {"w": weights["w"] - 1e-3 * error * gradients}, value

    args = {"w": floats(16, 16)}, floats(8, 16)
    assert verify(update, jax.jit(update), *args).ok
    (wrong,) = verify(update, partial(update, error=1.1), *args).wrong
    assert wrong.path == "[0]['w']"
    assert wrong.scale < 1e-3 * wrong.largest
    assert wrong.max_absolute < 1e-4 * wrong.largest


def test_empty_results_are_equal():
    assert verify(lambda x: x[:0], lambda x: x[:0], jnp.ones(3)).check().bit_equal


def test_donated_arguments_are_copied():
    state = jnp.ones((4, 4))
    donating = jax.jit(lambda state, x: (state + x, x.sum()), donate_argnums=0)
    assert verify(donating, donating, state, jnp.ones((4, 4))).ok
    assert verify(lambda s: s + 1, lambda s: s + 1, state, donate_argnums=0).ok
    assert not state.is_deleted()


def test_static_arguments_and_numbers_are_passed_on():
    def powered(x, kind, scale):
        return (x**2 if kind == "square" else x) * scale

    assert verify(powered, powered, floats(3), "square", 2.0, static_argnums=1).ok
    assert verify(jax.jit(powered, static_argnums=1), powered, floats(3), "square", 2.0, exact=True).ok
    assert verify(partial(powered, kind="square", scale=1.0), lambda x: x**2, floats(3)).ok


def test_arrays_over_a_mesh_are_run_over_it():
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))

    def sharded(*axes):
        return NamedSharding(mesh, PartitionSpec(*axes))

    weights = {"layers": [jax.ShapeDtypeStruct((16, 16), jnp.float32, sharding=sharded(None, "model"))] * 4}
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=sharded("data"))
    for exact in (False, True):
        assert verify(step, jaxckpt.apply(step, NOTHING), weights, x, jax.random.key(0), exact=exact).check()


def test_a_step_that_refuses_odd_numbers_is_drawn_tamer():
    def adam(second_moment, x):
        return jnp.sum(x / jnp.sqrt(second_moment))

    found = verify(adam, adam, floats(50), floats(50))
    assert found.ok
    assert found.not_finite == 0


def test_a_step_of_nan_cannot_be_verified_on_generated_arguments():
    def picky(x):
        return jnp.log(-jnp.abs(x) - 1)

    with pytest.raises(UnverifiableError, match="1 of its 1 results are NaN"):
        verify(picky, picky, floats(3))
    assert verify(picky, picky, jnp.ones(3)).not_finite == 3


def test_effects_are_reported():
    case = named("debug_print").make()
    found = verify(case.step, jaxckpt.apply(case.step, NOTHING), *case.args)
    jax.effects_barrier()
    assert found.ok
    assert any("Debug" in effect for effect in found.effects)


def test_a_missing_memory_kind_is_refused():
    def broken(x):
        return jax.ffi.ffi_call("no_such_kernel", x)(x)

    with pytest.raises(UnverifiableError, match=r"cannot be run on this machine[\s\S]*no_such_kernel"):
        verify(broken, broken, floats(3))


@pytest.mark.parametrize("name", ["plain_transformer_scan", "random_forward", "remat_policies", "static_arguments"])
def test_steps_of_the_zoo_are_bit_equal_one_operation_at_a_time(name):
    case = named(name).make()
    options = {"donate_argnums": case.donate_argnums, "static_argnums": case.static_argnums}
    planned = jaxckpt.apply(case.step, NOTHING, **options)
    assert verify(case.step, planned, *case.args, exact=True, **options).check().bit_equal


def test_gradients_of_integers_are_compared():
    step = jax.grad(lambda w, i: (jnp.sin(w) * i).sum(), argnums=(0, 1), allow_int=True)
    planned = jaxckpt.apply(step, "nothing")
    for exact in (False, True):
        assert verify(step, planned, jnp.ones(3), jnp.arange(3), exact=exact).ok


def test_integers_that_floats_do_not_tell_apart_differ():
    one = np.array([2**53, 1], np.int64)
    found = difference("", one, one + np.array([1, 0]), Tolerance(relative=0.0, absolute=0.0))
    assert not found.ok and found.differing == 1


def test_a_value_that_is_not_finite_has_no_gap():
    found = difference("", np.float32([np.inf, 1.0]), np.float32([2.0, 1.0]), Tolerance(relative=0.0, absolute=0.0))
    assert (found.differing, found.not_finite_differing, found.max_absolute, found.ok) == (1, 1, 0.0, False)


@pytest.mark.parametrize("exact", [False, True])
def test_results_may_be_numbers_of_python(exact):
    def step(x):
        return {"x": jnp.sin(x), "rate": 0.1, "epoch": 3, "done": True}

    assert verify(step, step, jnp.ones(3), exact=exact).ok
