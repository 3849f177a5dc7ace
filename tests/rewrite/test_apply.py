"""A plan and a step as a function of the step's signature: same results, no silent replanning."""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxckpt
from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import GraphPlan
from jaxckpt.rewrite import Argument, apply
from jaxckpt.trace import trace_step
from tests.rewrite.plans import drop_all, plan_of

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)
BLOCKS = ("block_0", "block_1")


def loss(params, x):
    for name in BLOCKS:
        with jax.named_scope(name):
            x = x + jnp.tanh(x @ params["w"] + params["b"])
    return jnp.sum(x**2)


def step(params, x, *, rate=0.1):
    """Updates the parameters."""
    value, g = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda p, g: p - rate * g, params, g), {"loss": value}


PARAMS = {"w": W, "b": jnp.zeros(4)}


def planned(step, *args, **options):
    traced = trace_step(step, *args, **options)
    return traced, drop_all(traced.graph, scopes=BLOCKS)


def recomputes(function, *args, **kwargs):
    return "rematted_computation" in jax.jit(function).lower(*args, **kwargs).as_text(debug_info=True)


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert (mine.dtype, mine.weak_type) == (other.dtype, other.weak_type)
        np.testing.assert_allclose(mine, other, rtol=1e-6)


def test_the_function_has_the_step_s_signature_tree_and_numbers():
    _, plan = planned(step, PARAMS, X)
    function = apply(step, plan)
    assert function.__name__ == "step"
    assert function.__doc__ == step.__doc__
    assert_same(function(PARAMS, X), jax.jit(step)(PARAMS, X))
    assert_same(jax.jit(function)(PARAMS, X), jax.jit(step)(PARAMS, X))
    assert recomputes(function, PARAMS, X)
    assert not recomputes(step, PARAMS, X)


def test_weak_types_and_keywords_are_kept():
    traced = trace_step(step, PARAMS, X, kwargs={"rate": 0.2})
    function = apply(step, drop_all(traced.graph, scopes=BLOCKS))
    assert_same(function(PARAMS, X, rate=0.2), jax.jit(step)(PARAMS, X, rate=0.2))
    assert_same(jax.jit(function)(PARAMS, X, rate=0.3), jax.jit(step)(PARAMS, X, rate=0.3))


def test_donation_works_under_jit_and_without():
    _, plan = planned(step, PARAMS, X, donate_argnums=0)
    for function in (
        jax.jit(apply(step, plan), donate_argnums=0),
        apply(step, plan, donate_argnums=0),
        apply(jax.jit(step, donate_argnums=0), plan),
    ):
        params = jax.tree.map(jnp.copy, PARAMS)
        assert_same(function(params, X), jax.jit(step)(PARAMS, X))
        assert params["w"].is_deleted()


def test_static_arguments_are_passed_through():
    def repeated(params, x, times):
        return jax.grad(lambda p: sum(loss(p, x) for _ in range(times)))(params)

    _, plan = planned(repeated, PARAMS, X, 2, static_argnums=2)
    expected = repeated(PARAMS, X, 2)
    assert_same(apply(repeated, plan, static_argnums=2)(PARAMS, X, 2), expected)
    jitted = jax.jit(repeated, static_argnums=2)
    assert_same(apply(jitted, plan)(PARAMS, X, 2), expected)
    assert_same(jax.jit(apply(repeated, plan, static_argnums=2), static_argnums=2)(PARAMS, X, 2), expected)
    with pytest.raises(PlanMismatchError):
        apply(repeated, plan, static_argnums=2)(PARAMS, X, 3)


def test_shardings_that_the_step_s_jit_asks_for_hold():
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    x = jnp.ones((8, 4))
    jitted = jax.jit(step, in_shardings=(whole, split), out_shardings=(split, whole))
    _, plan = planned(jitted, PARAMS, x)
    for function in (apply(jitted, plan), jax.jit(apply(jitted, plan))):
        params, _ = function(PARAMS, x)
        assert params["w"].sharding.is_equivalent_to(split, 2)
        assert_same(params, jitted(PARAMS, x)[0])


def test_a_plan_for_described_arguments_fits_arrays_on_a_mesh():
    def scanned(params, x):
        def loss(params):
            for name in BLOCKS:
                with jax.named_scope(name):
                    y = jax.lax.scan(lambda c, _: (jnp.tanh(c @ params["w"]), c), x, None, length=3)[0]
            return jnp.sum((y + params["b"]) ** 2)

        return jax.grad(loss)(params)

    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.linspace(0.0, 1.0, 32).reshape(8, 4)
    described = jax.ShapeDtypeStruct(x.shape, x.dtype)
    _, plan = planned(scanned, PARAMS, described)
    sharded = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    params = jax.device_put(PARAMS, NamedSharding(mesh, PartitionSpec()))
    for function in (apply(scanned, plan), jax.jit(apply(scanned, plan))):
        assert_same(function(params, sharded), jax.jit(scanned)(PARAMS, x))


def test_the_step_may_be_a_partial_or_an_object():
    class Step:
        def __call__(self, params, x):
            return step(params, x)

    for callable_ in (functools.partial(step, rate=0.5), Step()):
        _, plan = planned(callable_, PARAMS, X)
        assert_same(apply(callable_, plan)(PARAMS, X), jax.jit(callable_)(PARAMS, X))


def test_a_second_trace_reuses_the_rewritten_step(monkeypatch):
    calls = []
    room = sys.modules["jaxckpt.rewrite.apply"]
    original = room.rewrite
    monkeypatch.setattr(room, "rewrite", lambda *args, **options: calls.append(1) or original(*args, **options))
    _, plan = planned(step, PARAMS, X)
    function = apply(step, plan)
    for _ in range(3):
        function(PARAMS, X)
    jax.jit(function)(PARAMS, X)
    jax.jit(lambda p, x: function(p, x))(PARAMS, X)
    assert len(calls) == 1


def test_steps_that_close_over_outer_tracers_can_be_planned():
    def make(scale):
        return jax.grad(lambda params, x: loss(params, x * scale))

    traced = trace_step(make(2.0 * jnp.ones(())), PARAMS, X)
    assert len(traced.graph.constants) == 1
    plan = drop_all(traced.graph, scopes=BLOCKS)

    def outer(params, x, scale):
        return apply(make(scale), plan)(params, x)

    for scale in (2.0, 3.0):
        ours = jax.jit(outer)(PARAMS, X, jnp.float32(scale))
        assert_same(ours, jax.jit(make(jnp.float32(scale)))(PARAMS, X))


def test_other_shapes_are_refused_by_name():
    traced, plan = planned(step, PARAMS, X)
    function = apply(step, plan, arguments=list(map(Argument.of, traced.paths, traced.specs)))
    with pytest.raises(PlanMismatchError, match="other arguments") as caught:
        function(PARAMS | {"b": jnp.zeros((1, 4))}, jnp.ones((5, 4)))
    assert caught.value.differing == (
        ("params['b']", "float32[1,4]", "float32[4]"),
        ("x", "float32[5,4]", "float32[3,4]"),
    )
    assert "(2) x float32[5,4]" in str(caught.value)
    with pytest.raises(PlanMismatchError, match="is absent"):
        function(PARAMS | {"c": jnp.zeros(4)}, X)
    assert_same(function(PARAMS, X), jax.jit(step)(PARAMS, X))


@pytest.mark.parametrize(("of_plan", "of_call"), [(0.1, np.float32(0.1)), (np.float32(0.1), 0.1)])
def test_a_python_number_in_place_of_an_array_is_refused_by_name(of_plan, of_call):
    """The error said that the step's code, its static arguments or the version of jax had changed."""

    def scaled(params, x, rate):
        return jax.tree.map(lambda p, g: p - rate * g, params, jax.grad(loss)(params, x))

    traced, plan = planned(scaled, PARAMS, X, of_plan)
    function = apply(scaled, plan, arguments=list(map(Argument.of, traced.paths, traced.specs)))
    assert_same(function(PARAMS, X, of_plan), jax.jit(scaled)(PARAMS, X, of_plan))
    with pytest.raises(PlanMismatchError, match="1 differ") as caught:
        function(PARAMS, X, of_call)
    ((path, *types),) = caught.value.differing
    assert path == "rate"
    assert sorted(types) == ["float32[]", "float32[] of a Python number (a weak type)"]


def test_another_step_is_refused():
    _, plan = planned(step, PARAMS, X)

    def other(params, x):
        params, out = step(params, x)
        return jax.tree.map(jnp.sin, params), out

    with pytest.raises(PlanMismatchError, match="for another step") as caught:
        apply(other, plan)(PARAMS, X)
    assert caught.value.planned == plan.fingerprint


def test_the_step_s_own_exception_comes_out():
    def broken(params, x):
        raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match="my own"):
        apply(broken, plan_of(trace_step(step, PARAMS, X).graph))(PARAMS, X)


def test_a_planned_step_compiles_with_the_options_of_its_jit():
    step = jax.jit(jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(w)))), compiler_options={"no_such_option": True})
    plan = GraphPlan(fingerprint=trace_step(step, jnp.ones(4)).graph.fingerprint)
    with pytest.raises(RuntimeError, match="no_such_option"):
        apply(step, plan)(jnp.ones(4))


def test_the_options_that_a_plan_was_compiled_with_are_those_of_its_footprint():
    step = jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(w))))
    plan = GraphPlan(fingerprint=trace_step(step, jnp.ones(4)).graph.fingerprint)
    options = (("xla_embed_ir_in_executable", True),)
    planned = apply(step, plan, compiler_options=options)
    assert jaxckpt.footprint(planned, jnp.ones(4), target="cpu").compiler_options == options


def test_a_root_whose_solvers_are_loops_is_planned():
    """The solver of the gradient has a linear map in the body of its loop, which jit replaces before it lowers."""

    def root(w, x):
        return jax.lax.custom_root(
            lambda z: 0.3 * jnp.tanh(z @ w + x) - z,
            x,
            lambda f, z: jax.lax.fori_loop(0, 9, lambda _, z: f(z) + z, z),
            lambda g, y: jax.lax.fori_loop(0, 9, lambda _, u: g(u) + u - y, -y),
        )

    step = jax.grad(lambda w, x: jnp.mean(root(w, jnp.tanh(jnp.tanh(x @ w) @ w)) ** 2))
    planned = apply(step, GraphPlan(fingerprint=trace_step(step, W, X).graph.fingerprint))
    np.testing.assert_allclose(planned(W, X), jax.jit(step)(W, X), rtol=1e-5)
