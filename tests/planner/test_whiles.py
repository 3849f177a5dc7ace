"""Whiles with a gradient inside: training loops whose trip count is known when they run."""

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt.solve import solve
from jaxckpt.trace import trace_step
from jaxckpt.verifier import verify
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

WEIGHTS = [0.1 * jax.random.normal(jax.random.key(number), (8, 8)) for number in range(4)]
ROWS = jnp.linspace(0.1, 1.0, 48).reshape(6, 8)


def loss(weights, x, part=lambda layer: layer):
    for weight in weights:
        x = part(lambda x, weight: jnp.tanh(x @ weight) + jnp.sin(x))(x, weight)
    return jnp.mean(x**2)


def updated(weights, gradients):
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, weights, gradients)


def accumulated(weights, x, count):
    """As many microbatches as an argument says."""

    def one(number, total):
        rows = jax.lax.dynamic_slice_in_dim(x, 2 * number, 2)
        return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, rows))

    return updated(weights, jax.lax.fori_loop(0, count, one, jax.tree.map(jnp.zeros_like, weights)))


def until_small(weights, x, most):
    """The condition reads what the loop does not carry."""
    limit = jnp.mean(x) / 20

    def goes_on(state):
        _, value, steps = state
        return (value > limit) & (steps < most)

    def one(state):
        value, gradients = jax.value_and_grad(loss)(state[0], x)
        return updated(state[0], gradients), value, state[2] + 1

    return jax.lax.while_loop(goes_on, one, (weights, jnp.inf, 0))


def with_dropout(weights, x, count):
    def one(_, state):
        weights, key = state
        key, own = jax.random.split(key)
        kept = jax.random.bernoulli(own, 0.8, x.shape)
        return updated(weights, jax.grad(loss)(weights, kept * x)), key

    return jax.lax.fori_loop(0, count, one, (weights, jax.random.key(0)))


def with_loops_and_branches_inside(weights, x, count):
    def of_stack(stack, rows, number):
        layer = jax.lax.cond(number > 0, lambda x: x, lambda x: 2 * x, rows)
        return jnp.mean(jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), layer, stack)[0] ** 2)

    def one(number, stack):
        return stack - 0.1 * jax.grad(of_stack)(stack, x, number)

    return jax.lax.fori_loop(0, count, one, jnp.stack(weights))


def two_loops(weights, x, count):
    """The same trip count, which no compiler knows: the loops share nothing."""

    def one(_, weights):
        return updated(weights, jax.grad(loss)(weights, x))

    return jax.lax.fori_loop(0, count, one, jax.lax.fori_loop(0, count, one, weights))


@pytest.mark.parametrize("step", [accumulated, until_small, with_dropout, with_loops_and_branches_inside, two_loops])
def test_a_rewritten_while_gives_the_same_bits(step):
    args = WEIGHTS, ROWS, jnp.int32(3)
    assert trace_step(step, *args).graph.loops
    rewritten = jaxckpt.apply(step, "nothing")
    assert verify(step, rewritten, *args, exact=True).bit_equal
    barriers = str(jax.make_jaxpr(rewritten)(*args)).count("optimization_barrier")
    assert barriers > str(jax.make_jaxpr(step)(*args)).count("optimization_barrier")


def differentiated(weights, x, count):
    """JAX differentiates a while forwards alone; nothing in it is read by a backward pass."""

    def value(scale):
        return jax.lax.while_loop(lambda state: state[1] < count, lambda s: (jnp.sin(s[0]), s[1] + 1), (scale * x, 0))[
            0
        ]

    _, tangent = jax.jvp(value, (1.0,), (1.0,))
    return updated(weights, jax.grad(loss)(weights, x + tangent))


@needs_compiler
@pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="jax 0.10.2 makes other kernels of tanh and its derivative")
def test_a_plan_at_the_total_of_checkpoints_by_hand_is_as_fast():
    """Recomputation waits for the cotangent of the layer behind, and for the loss in front of the last layer."""
    spec = jax.ShapeDtypeStruct
    args = [spec((256, 256), jnp.float32)] * 6, spec((16384, 256), jnp.float32)

    def layer(x, weight):
        return jnp.tanh(x @ weight) + x * jnp.sin(x)

    def step_with(part):
        def loss(weights, x):
            for weight in weights:
                x = part(layer)(x, weight)
            return jnp.mean(x**2)

        def one(_, carried):
            value, gradients = jax.value_and_grad(loss)(carried[0], carried[2])
            return updated(carried[0], gradients), value, carried[2]

        return lambda weights, x: jax.lax.fori_loop(0, 5, one, (weights, jnp.float32(0), x))[:2]

    theirs = jaxckpt.footprint(step_with(jax.checkpoint), *args, target="h200")
    plan = jaxckpt.plan(step_with(lambda layer: layer), *args, target="h200", budget=theirs.total_bytes)
    assert plan.estimated_step_s <= theirs.estimated_step_s


def test_a_while_without_a_gradient_inside_stays_as_it_is():
    args = WEIGHTS, ROWS, jnp.int32(3)
    assert not trace_step(differentiated, *args).graph.loops
    assert verify(differentiated, jaxckpt.apply(differentiated, "nothing"), *args, exact=True).bit_equal


@needs_compiler
def test_full_recomputation_takes_as_much_as_checkpoints_by_hand():
    spec = jax.ShapeDtypeStruct
    args = [spec((256, 256), jnp.float32)] * 6, spec((16384, 256), jnp.float32), spec((), jnp.int32)

    def step_with(part):
        def step(weights, x, count):
            def one(number, total):
                rows = jax.lax.dynamic_slice_in_dim(x, 4096 * number, 4096)
                return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, rows, part))

            return updated(weights, jax.lax.fori_loop(0, count, one, jax.tree.map(jnp.zeros_like, weights)))

        return step

    planner = jaxckpt.Planner(step_with(lambda layer: layer), *args, target="h200")
    ours = planner.measure(solve(planner.problem, "full")).footprint
    theirs = jaxckpt.footprint(step_with(jax.checkpoint), *args, target="h200")
    assert ours.temp_bytes <= 1.01 * theirs.temp_bytes
    plan = planner.plan(budget=int(1.01 * theirs.total_bytes))
    assert plan.estimated_step_s <= 1.01 * theirs.estimated_step_s
