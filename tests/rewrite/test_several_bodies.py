"""Steps with several bodies or backward passes: U-Nets of scans, steps of two gradients, conds between layers."""

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxckpt
from jaxckpt._errors import UnsupportedDecisionError
from jaxckpt.ir import GraphPlan, Offload, Phase
from jaxckpt.rewrite import rewrite
from jaxckpt.schedule import schedule
from jaxckpt.trace import trace_step

WEIGHTS = jax.random.normal(jax.random.key(0), (3, 4, 4))
U_NET = {"down": WEIGHTS, "middle": WEIGHTS[0], "up": 2 * WEIGHTS}, jnp.ones((2, 4))


def u_net(weights, x, *, around):
    """One gradient step of two scans, the second of which reads what the first stacked; `around` with a shortcut."""

    def loss(weights):
        def down(h, weight):
            h = jnp.tanh(h @ weight)
            return h, h

        def up(h, each):
            weight, skip = each
            return jnp.tanh((h + skip) @ weight), None

        h, skips = jax.lax.scan(down, x, weights["down"])
        with jax.named_scope("middle"):
            h = checkpoint_name(jnp.tanh(h @ weights["middle"]), "middle") @ weights["middle"]
        last = jax.lax.scan(up, h, (weights["up"], skips), reverse=True)[0]
        return jnp.sum((h + last if around else last) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))


def two_gradients(weights, x):
    """The second forward pass stands behind the first backward pass (SAM)."""

    def loss(weights):
        return jnp.sum(jnp.tanh(jnp.sin(x @ weights) @ weights) ** 2)

    return weights - 0.1 * jax.grad(loss)(weights + 0.1 * jax.grad(loss)(weights))


def conditional(weights, x, time):
    """A layer whose cond reads what the layer before named."""

    def loss(weights):
        h = checkpoint_name(jnp.tanh(x @ weights), "fc") @ weights
        named = checkpoint_name(jnp.sin(h), "fc")
        h = h + jax.lax.cond(time > 0, lambda h: jnp.tanh(h @ weights), lambda h: h, named)
        return jnp.sum(h**2)

    return weights - 0.1 * jax.grad(loss)(weights)


def policy(rule, decision):
    return jaxckpt.Policy.from_toml(f'default = "save"\n[[rule]]\n{rule}\ndecision = "{decision}"\n')


@pytest.mark.parametrize(
    ("step", "args", "decisions"),
    [
        (lambda *args: u_net(*args, around=True), U_NET, policy('scope = "middle"', "recompute")),
        (lambda *args: u_net(*args, around=False), U_NET, policy('name = "middle"', "offload")),
        (conditional, (WEIGHTS[0], jnp.ones((8, 4)), 1.0), policy('name = "fc"', "offload")),
    ],
    ids=["frontier in a body", "results of a body", "copies before a cond ends"],
)
def test_barriers_outside_pass_nothing_of_a_body(step, args, decisions):
    planned = jaxckpt.apply(step, decisions)(*args)
    for got, wanted in zip(jax.tree.leaves(planned), jax.tree.leaves(jax.jit(step)(*args)), strict=True):
        assert jnp.allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_a_value_of_a_second_forward_pass_is_not_loaded_during_the_first_backward_pass():
    traced = trace_step(two_gradients, jnp.ones((4, 4)), jnp.ones((3, 4)))
    graph = traced.graph
    residuals = [v for v in graph.read_after_forward if graph.producer[v] is not None]
    plan = GraphPlan(fingerprint=graph.fingerprint, decisions={v: Offload() for v in residuals})
    steps = [type(step).__name__ for step in schedule(graph, plan).steps]
    assert steps.count("Move") == 2 * len(residuals)
    rewrite(traced, plan)


def test_what_selects_the_branch_of_a_cond_is_not_offloaded():
    graph = trace_step(conditional, WEIGHTS[0], jnp.ones((8, 4)), 1.0).graph
    (index,) = (v for v in graph.branch_indices if graph.ops[graph.producer[v]].phase is Phase.FORWARD)
    with pytest.raises(UnsupportedDecisionError, match="selects the branch"):
        schedule(graph, GraphPlan(fingerprint=graph.fingerprint, decisions={index: Offload()}))
