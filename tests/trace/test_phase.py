"""The phase of an op: by marks, by the values that it reads, by liveness."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxckpt._errors import NoGradientError
from jaxckpt.ir import Phase
from jaxckpt.trace import trace_step
from tests.residuals import residuals

W, X = jnp.full((4, 4), 0.3), jnp.linspace(0.1, 1.0, 12).reshape(3, 4)
FORWARD, BACKWARD, UPDATE = Phase


def loss(w, x):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w) @ w))


def phases(graph, primitive):
    return [op.phase for op in graph.ops if op.primitive == primitive]


def test_two_layers_have_two_forward_and_three_backward_products():
    graph = trace_step(jax.grad(loss), W, X).graph
    assert phases(graph, "dot_general") == [FORWARD] * 2 + [BACKWARD] * 3


def test_phases_do_not_depend_on_where_grad_is_called():
    @jax.jit
    def helper(w, x):
        with jax.named_scope("somewhere"):
            value, pullback = jax.vjp(loss, w, x)
            return pullback(value)[0]

    assert phases(trace_step(helper, W, X).graph, "dot_general") == [FORWARD] * 2 + [BACKWARD] * 3
    assert phases(trace_step(jax.vmap(jax.grad(loss), (None, 0)), W, X).graph, "dot_general") == (
        [FORWARD] * 2 + [BACKWARD] * 3
    )


def test_the_update_follows_from_gradients_without_being_one():
    def step(w, m, count, x):
        g = jax.grad(loss)(w, x)
        norm = jnp.sqrt(jnp.sum(g**2))
        m = 0.9 * m + g / norm
        rate = 0.1 / (1.0 + count.astype(jnp.float32))
        return w - rate * m, m, count + 1

    graph = trace_step(step, W, W, jnp.int32(3), X).graph
    assert phases(graph, "sqrt") == [UPDATE]
    # The rate reads no gradient, but serves the update alone; the new count is read by nobody.
    assert set(phases(graph, "convert_element_type")) == {UPDATE}
    assert phases(graph, "dot_general") == [FORWARD] * 2 + [BACKWARD] * 3
    assert all(graph.ops[r.op].phase is FORWARD for r in residuals(graph))
    assert not any(graph.values[r.value].shape == () for r in residuals(graph))


def test_a_gradient_inside_the_loss_is_forward():
    def penalised(w, x):
        return jnp.sum(jax.grad(loss, argnums=1)(w, x) ** 2)

    graph = trace_step(jax.grad(penalised), W, X).graph
    products = phases(graph, "dot_general")
    assert products[:4] == [FORWARD] * 4
    assert products.count(BACKWARD) == len(products) - 4 > 4


def test_a_forward_derivative_of_a_gradient_has_both_phases():
    def hessian_product(w, x):
        return jax.jvp(lambda w: jax.grad(loss)(w, x), (w,), (w,))[1]

    traced = trace_step(hessian_product, W, X)
    assert traced.phases_source == "names"
    assert {FORWARD, BACKWARD} <= {op.phase for op in traced.graph.ops}
    assert residuals(traced.graph)


def test_rules_of_custom_derivatives_are_forward_and_backward():
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))
    graph = trace_step(jax.value_and_grad(lambda w, x: jnp.sum(f(x @ w))), W, X).graph
    assert phases(graph, "sin") == [FORWARD]
    assert phases(graph, "cos") == [BACKWARD]


def test_two_gradients_in_one_step_keep_their_marks():
    def step(w, x):
        w = w - jax.grad(loss)(w, x)
        return w - jax.grad(loss)(w, x)

    traced = trace_step(step, W, X)
    traced.graph.validate()
    two = [FORWARD] * 2 + [BACKWARD] * 3
    assert phases(traced.graph, "dot_general") == two + two


def test_metrics_after_the_gradient_move_to_the_forward_pass():
    def step(w, x):
        (_, logits), g = jax.value_and_grad(lambda w: (loss(w, x), x @ w), has_aux=True)(w)
        return w - g, jnp.mean(logits.argmax(-1) == 1)

    graph = trace_step(step, W, X).graph
    figure = next(op for op in graph.ops if op.primitive == "argmax")
    first_backward = next(op.id for op in graph.ops if op.phase is BACKWARD)
    assert figure.phase is FORWARD
    assert figure.id < first_backward


def test_equations_with_effects_are_not_moved():
    def step(w, x):
        value, g = jax.value_and_grad(loss)(w, x)
        jax.debug.print("{}", value)
        return w - g

    graph = trace_step(step, W, X).graph
    loud = next(op for op in graph.ops if op.effects)
    assert loud.id > max(op.id for op in graph.ops if op.phase is BACKWARD)


def by_hand(w, x):
    h = [x]
    for _ in range(4):
        h.append(jnp.tanh(h[-1] @ w))
    g, gw = 2 * h[-1], jnp.zeros_like(w)
    for i in reversed(range(4)):
        d = g * (1 - h[i + 1] ** 2)
        gw += h[i].T @ d
        g = d @ w.T
    return w - 0.1 * gw


def test_a_backward_written_by_hand_is_found_by_structure():
    traced = trace_step(by_hand, W, X)
    assert traced.phases_source == "structure"
    assert phases(traced.graph, "tanh") == [FORWARD] * 4
    assert phases(traced.graph, "dot_general") == [FORWARD] * 4 + [BACKWARD] * 7
    assert len(residuals(traced.graph)) >= 4


def test_names_and_structure_agree_on_where_the_backward_begins():
    def automatic(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.sum(functools.reduce(lambda h, _: jnp.tanh(h @ w), range(4), x) ** 2))(
            w
        )

    assert phases(trace_step(automatic, W, X).graph, "dot_general")[:4] == [FORWARD] * 4


@pytest.mark.parametrize(
    "step",
    [
        loss,
        lambda w, x: jax.jvp(lambda w: loss(w, x), (w,), (w,))[1],
        lambda w, x: w,
        lambda w, x: functools.reduce(lambda h, _: jnp.tanh(h @ w), range(6), x),
        lambda w, x: [jnp.sin(a) for a in [jnp.cos(i * x @ w) for i in range(6)]],
    ],
    ids=["loss", "forward_mode", "nothing", "chain", "side_by_side"],
)
def test_a_step_without_a_gradient_is_refused(step):
    with pytest.raises(NoGradientError, match="no backward pass") as caught:
        trace_step(step, W, X)
    assert len(str(caught.value).splitlines()) == 4
    assert caught.value.hidden_in is None


def test_a_gradient_inside_a_loop_is_pointed_at():
    def accumulated(w, xs):
        return jax.lax.scan(lambda g, x: (g + jax.grad(loss)(w, x), None), jnp.zeros_like(w), xs)[0]

    with pytest.raises(NoGradientError, match="inside a `scan`") as caught:
        trace_step(accumulated, W, X[None], open_loops=False)
    assert caught.value.hidden_in == "scan"
    assert "microbatch" in str(caught.value)


def test_a_loop_that_stays_as_it_is_for_its_effects_is_said_to_have_some():
    def accumulate(w, x):
        def one(total, row):
            loss, gradient = jax.value_and_grad(lambda w: jnp.tanh(jnp.tanh(w * row)).sum())(w)
            jax.debug.print("{loss}", loss=loss)
            return total + gradient, loss

        return jax.lax.scan(one, jnp.zeros_like(w), x)

    with pytest.raises(NoGradientError, match=r"a `scan` with effects .*\n.*\n.*without jax.debug.print"):
        trace_step(accumulate, jnp.ones(4), jnp.ones((3, 4)))
