"""Nested calls become one level that computes the same, under joined names."""

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from jax.sharding import NamedSharding, PartitionSpec

from jaxckpt.outline import closed_jaxpr
from jaxckpt.program.inline import inline, open_jaxpr
from tests.programs import build, programs

X = jnp.linspace(0.1, 1.0, 12).reshape(3, 4)


def flattened(function, *args, **options):
    return inline(jax.jit(function).trace(*args).jaxpr, **options)


def evaluated(program, *flat):
    closed = closed_jaxpr(program, program.equations, program.outvars)
    jex.check_jaxpr(open_jaxpr(closed))
    return jex.jaxpr_as_fun(closed)(*flat)


def primitives(program):
    return [equation.eqn.primitive.name for equation in program.equations]


def scopes(program):
    return [str(equation.eqn.source_info.name_stack) for equation in program.equations]


def test_calls_are_opened_and_their_names_joined():
    @jax.jit
    def inner(x):
        with jax.named_scope("inner"):
            return jax.jit(jnp.sin)(x) * 2

    def outer(x):
        with jax.named_scope("outer"):
            return inner(inner(x))

    program = flattened(outer, X)
    assert primitives(program) == ["sin", "mul", "sin", "mul"]
    assert scopes(program) == ["outer/inner"] * 4
    np.testing.assert_array_equal(evaluated(program, X)[0], jnp.sin(jnp.sin(X) * 2) * 2)


def test_ops_of_cached_functions_name_the_line_that_calls_them():
    """Such as `jnp.where` and `bernoulli`, which jax traces once for all callers, without their lines."""

    def step(x):
        kept = jax.random.bernoulli(jax.random.key(0), 0.5, x.shape)
        return jnp.where(kept, x, 0.0)

    flattened(step, X)
    lines = [
        {frame.file_name for frame in equation.eqn.source_info.traceback.frames}
        for equation in flattened(step, X).equations
    ]
    assert len(lines) > 10
    assert all(__file__ in files for files in lines)


def test_a_body_used_twice_gets_its_own_variables_each_time():
    program = flattened(lambda x: jax.jit(jnp.sin)(x) + jax.jit(jnp.sin)(x + 1), X)
    results = [id(v) for equation in program.equations for v in equation.eqn.outvars]
    assert len(results) == len(set(results))


def test_loops_branches_and_custom_derivatives_stay_closed():
    def function(x):
        x, _ = jax.lax.scan(lambda c, _: (jax.jit(jnp.sin)(c), None), x, None, length=2)
        x = jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)
        return jax.nn.relu(jax.lax.while_loop(lambda y: y[0, 0] < 0, lambda y: y + 1, x))

    names = primitives(flattened(function, X))
    assert {"scan", "cond", "while", "custom_jvp_call"} <= set(names)
    assert not {"jit", "pjit"} & set(names)


def test_arrays_closed_over_become_constants_once():
    table = jnp.arange(12.0).reshape(3, 4)

    def function(x):
        return jax.jit(lambda y: y * table)(x) + table + jax.jit(lambda y: y - table)(x)

    program = flattened(function, X)
    assert len(program.constants) == 1
    np.testing.assert_array_equal(evaluated(program, X)[0], (X * table + table) + (X - table))


def test_arrays_in_literals_become_constants():
    closed = jax.make_jaxpr(lambda x: x + 1.0)(X)
    jaxpr = open_jaxpr(closed)
    table = np.full((3, 4), 5.0, np.float32)
    literal = jex.Literal(table, jaxpr.eqns[0].outvars[0].aval)
    eqn = jaxpr.eqns[0].replace(invars=[jaxpr.invars[0], literal])
    changed = jex.ClosedJaxpr(jex.Jaxpr([], jaxpr.invars, jaxpr.outvars, [eqn], jaxpr.effects, jaxpr.debug_info), [])
    program = inline(changed)
    assert [array is table for _, array in program.constants] == [True]
    np.testing.assert_array_equal(evaluated(program, X)[0], X + 5)


def test_results_that_are_arguments_or_literals_stay_so():
    program = flattened(lambda x: (jax.jit(lambda y: (y, 3.0))(x), x), X)
    assert primitives(program) == []
    x, three, second = evaluated(program, X)
    assert three == 3.0
    np.testing.assert_array_equal(x, second)


def test_results_that_nobody_takes_get_variables_too():
    program = flattened(lambda x: jnp.split(x, 2, axis=1)[0], X)
    assert not any(isinstance(v, jex.DropVar) for e in program.equations for v in e.eqn.outvars)


def test_effects_on_references_follow_their_variable():
    @jax.jit
    def bump(ref):
        ref[...] += 1.0

    def function(x):
        ref = jax.new_ref(x)
        bump(ref)
        bump(ref)
        return ref[...]

    program = flattened(function, X)
    assert "jit" not in primitives(program)
    np.testing.assert_array_equal(evaluated(program, X)[0], X + 2)


def test_a_nested_jit_that_asks_for_shardings_leaves_constraints():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    split = NamedSharding(mesh, PartitionSpec(None, "data"))
    replicated = NamedSharding(mesh, PartitionSpec())
    inner = jax.jit(jnp.sin, in_shardings=split, out_shardings=replicated)
    program = flattened(lambda x: inner(x) + 1, X)
    assert primitives(program) == ["sharding_constraint", "sin", "sharding_constraint", "add"]
    constraints = [e.eqn.params["sharding"] for e in program.equations if "sharding" in e.eqn.params]
    assert [c.spec for c in constraints] == [split.spec, replicated.spec]
    np.testing.assert_allclose(evaluated(program, X)[0], jnp.sin(X) + 1, rtol=1e-6)


def test_checkpoints_are_opened_and_marked_unless_kept():
    step = jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x)))
    opened, kept = flattened(step, X), flattened(step, X, keep_user_remat=True)
    assert any(equation.in_user_remat for equation in opened.equations)
    assert not any(equation.in_user_remat for equation in kept.equations)
    assert "remat2" in primitives(kept)
    assert "remat2" not in primitives(opened)
    assert not any("rematted" in name for name in scopes(opened))


@settings(max_examples=15)
@given(programs)
def test_one_level_computes_what_the_step_computes(program):
    case = build(program)
    flat = jax.tree.leaves(case.args)
    stage = jax.jit(case.step).trace(*case.args)
    one_level = jax.jit(lambda *flat: evaluated(inline(stage.jaxpr), *flat))(*flat)
    for ours, theirs in zip(one_level, jax.tree.leaves(jax.jit(case.step)(*case.args)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=1e-6)
