"""Canaries for the internals of jax that tracing and rewriting rely on; a new version breaks them by name."""

import functools

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import pytest

from jaxckpt import _compat

X = jnp.ones((3, 3))


def eqns(function, *args):
    return jax.make_jaxpr(function)(*args).jaxpr.eqns


def test_a_jit_gives_back_the_jaxpr_that_it_has():
    jitted = jax.jit(jnp.sin)
    assert jitted.trace(X).jaxpr is jitted.trace(X).jaxpr
    assert jitted.trace(X).jaxpr is jitted.trace(jax.ShapeDtypeStruct((3, 3), "float32")).jaxpr


def test_a_trace_tells_what_it_captured_and_its_tree():
    seen = {}

    def outer(x):
        stage = jax.jit(lambda y: y * x).trace(x)
        seen["captured"] = _compat.captured_arrays(stage)
        return x

    jax.jit(outer)(X)
    assert [isinstance(array, jax.core.Tracer) for array in seen["captured"]] == [True]
    stage = jax.jit(lambda a, b, c: a + c["x"], static_argnums=1).trace(X, "static", {"x": X})
    assert _compat.captured_arrays(stage) == ()


def test_a_jit_tells_its_static_arguments_and_shardings():
    jitted = jax.jit(lambda a, n, m: a, static_argnums=(1,), static_argnames=("m",))
    assert _compat.jit_options(jitted).static >= {1, "m"}
    assert _compat.jit_options(jax.jit(lambda a, b: a, donate_argnames="b")).donated == {1, "b"}
    assert _compat.jit_options(jnp.sin.__wrapped__) is None
    assert _compat.jit_options(functools.wraps(jitted)(lambda *args: jitted(*args))) is None
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert _compat.jit_in_shardings(jax.jit(jnp.sin, in_shardings=sharding).trace(X)) == (sharding,)
    assert _compat.jit_in_shardings(jax.jit(jnp.sin).trace(X)) == (None,)


def test_name_stacks_tell_scopes_from_transformations():
    def f(x):
        with jax.named_scope("jvp"):
            return jnp.sum(jnp.sin(x))

    stacks = [eqn.source_info.name_stack for eqn in eqns(jax.grad(f), X)]
    marks = _compat.name_stack_marks(stacks[0])
    assert marks == (("jvp", True), ("jvp", False))
    assert _compat.name_stack_marks(_compat.name_stack_without(stacks[0], frozenset({0}))) == marks[1:]
    assert any(_compat.name_stack_marks(s)[0] == ("transpose", True) for s in stacks)


def test_clones_are_marked_by_a_scope_and_keep_their_parameters():
    def f(x):
        return jnp.sum(jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x))

    (remat,) = (eqn for eqn in eqns(jax.grad(f), X) if eqn.primitive.name == "remat2")
    body = getattr(remat.params["jaxpr"], "jaxpr", remat.params["jaxpr"])
    clones = [e for e in body.eqns if "rematted_computation" in str(e.source_info.name_stack)]
    assert next(e.primitive.name for e in clones) == "sin"
    assert len(clones) < len(body.eqns)


@pytest.mark.parametrize("kind", ["jit", "custom_jvp_call", "scan", "cond", "while"])
def test_primitives_keep_their_names_and_bodies(kind):
    functions = {
        "jit": jax.jit(jnp.sin),
        "custom_jvp_call": jax.nn.relu,
        "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, None, length=2)[0],
        "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        "while": lambda x: jax.lax.while_loop(lambda y: y[0, 0] < 0, jnp.sin, x),
    }
    (eqn,) = (e for e in eqns(functions[kind], X) if e.primitive.name == kind)
    assert list(jex.jaxprs_in_params(eqn.params))
    keys = {"jit": "jaxpr", "custom_jvp_call": "call_jaxpr", "scan": "jaxpr", "cond": "branches", "while": "body_jaxpr"}
    assert keys[kind] in eqn.params


@pytest.mark.parametrize("value", [jax.random.key(0), jnp.zeros((0, 3)), X, jnp.int4(1), jnp.bool_(True)])
def test_every_array_passes_a_barrier(value):
    out = jax.jit(jax.lax.optimization_barrier)(value)
    assert out.dtype == value.dtype


def test_the_gradient_of_a_maximum_may_begin_with_a_zero_of_one_s_own():
    def pooled(x):
        return jnp.sum(jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2,), (2,), "VALID") * jnp.arange(1.0, 4.0))

    x = jnp.array([1.0, 3.0, 2.0, 2.0, 5.0, 4.0])
    jaxpr = jax.make_jaxpr(jax.grad(pooled))(x)
    (eqn,) = (eqn for eqn in jaxpr.eqns if eqn.primitive.name == "select_and_scatter_add")
    made = _compat.gradient_of_max_pooling(eqn.params, jnp.arange(1.0, 4.0), x, jnp.float32(0))
    assert made.tolist() == jax.grad(pooled)(x).tolist() == [0, 1, 2, 0, 3, 0]


def test_a_barrier_has_no_parameters():
    (eqn,) = eqns(jax.lax.optimization_barrier, X)
    assert eqn.primitive.name == "optimization_barrier"
    assert eqn.params == {}


@pytest.mark.parametrize("check_vma", [False, True])
def test_bodies_of_shard_map_hand_over_residuals_by_device(check_vma):
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("model")
    mapped = jax.shard_map(
        lambda x: jnp.sin(jnp.sin(x) * jax.lax.axis_index("model")),
        mesh=mesh,
        in_specs=split,
        out_specs=split,
        check_vma=check_vma,
    )
    forward, backward = (
        eqn for eqn in eqns(jax.grad(lambda x: mapped(x).sum()), jnp.ones(4)) if eqn.primitive.name == "shard_map"
    )
    assert {"jaxpr", "mesh", "in_specs", "out_specs", "check_vma", "newly_manual_axes"} <= set(forward.params)
    residuals = [v for v in forward.outvars if v in backward.invars]
    assert residuals
    for variable in residuals:
        at = forward.outvars.index(variable)
        inner, spec = forward.params["jaxpr"].outvars[at].aval, forward.params["out_specs"][at]
        assert _compat.per_device_spec(inner, mesh, check_vma=check_vma) == spec
        assert backward.params["in_specs"][backward.invars.index(variable)] == spec
        with forward.ctx.manager:
            assert _compat.unsharded_aval(inner, spec, mesh, check_vma=check_vma).shape == variable.aval.shape


def test_to_name_an_axis_is_an_effect_that_does_not_last():
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    split = jax.sharding.PartitionSpec("model")
    (mapped,) = eqns(
        jax.shard_map(lambda x: jax.lax.psum(x, "model"), mesh=mesh, in_specs=split, out_specs=jax.P()), jnp.ones(4)
    )
    summed = mapped.params["jaxpr"].eqns[-1]
    assert summed.effects and not _compat.lasting_effects(summed.effects) and not mapped.effects
    (printing,) = eqns(lambda: jax.debug.print("text"))
    assert _compat.lasting_effects(printing.effects)
