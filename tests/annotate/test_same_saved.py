"""A scope that checkpoints where it stands keeps the same arrays as the joint engine given the same policy."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt.ir import Phase
from jaxckpt.machine import Target
from jaxckpt.rewrite import rewrite
from jaxckpt.schedule import Barrier, Run
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import trace_step
from tests.annotate.residuals import kept, policy

POLICIES = {
    "nothing": policy(),
    "products": policy('primitive = "contraction"'),
    "named": policy('name = "hidden"'),
    "scoped": policy('scope = "*mlp*"\nprimitive = "contraction"'),
}
ARGS = (
    [(jax.ShapeDtypeStruct((8, 24), "float32"), jax.ShapeDtypeStruct((24, 8), "float32"))] * 3,
    jax.ShapeDtypeStruct((16, 8), "float32"),
)


def block(weights, x):
    with jax.named_scope("mlp"):
        hidden = jaxckpt.name(jnp.sin(x @ weights[0]), "hidden")
        return x + jnp.cos(hidden * hidden) @ weights[1]


def loss(chosen):
    part = jaxckpt.scope(block, policy=chosen)

    def loss(layers, x):
        for weights in layers:
            x = part(weights, x)
        return x.sum()

    return loss


def kept_by_the_engine(step, *args):
    """Types of what forward ops of the rewritten step make and its backward, or a copy, reads."""
    traced = trace_step(step, *args)
    plan = plan_from_policy(Problem(graph=traced.graph, rates=Target("h200").rates), None).plan
    laid_out = rewrite(traced, plan).schedule
    early, found = set(), set()
    for each in laid_out.steps:
        late = (isinstance(each, Barrier) and each.is_in_backward) or (
            isinstance(each, Run) and (each.is_clone or traced.graph.ops[each.op].phase is not Phase.FORWARD)
        )
        if late:
            found.update(laid_out.origin[i] for i in each.reads if i in early)
        else:
            early.update(each.writes)
    values = (traced.graph.values[v] for v in found)
    return Counter(f"{value.dtype}[{','.join(map(str, value.shape))}]" for value in values)


@pytest.mark.parametrize("name", POLICIES)
def test_both_keep_the_same_arrays(name):
    function = loss(POLICIES[name])
    expected = kept(function, *ARGS)
    assert expected
    assert kept_by_the_engine(jax.grad(function), *ARGS) == expected
