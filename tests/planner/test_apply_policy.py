"""Policies carried out on steps: what is kept, what runs again, and the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import jaxckpt
from jaxckpt import Policy, PolicyError
from jaxckpt.ir import Recompute, Save
from jaxckpt.machine import Target, targets
from jaxckpt.planner import Planner
from jaxckpt.policy import Match, Rule
from jaxckpt.solve import Problem, plan_from_policy
from jaxckpt.trace import trace_step

pytestmark = pytest.mark.usefixtures("no_local_search")

GPU = any(status.name == "h200" and status.usable for status in targets())


def block(x, weights, layer):
    with jax.named_scope(f"block_{layer}"):
        hidden = checkpoint_name(x @ weights["in"], "wide_proj")
        return x + jnp.tanh(jax.nn.gelu(hidden)) @ weights["out"]


def step(layers, x):
    def loss(layers):
        y = x
        for number, weights in enumerate(layers):
            y = block(y, weights, number)
        return jnp.mean(y**2)

    value, gradients = jax.value_and_grad(loss)(layers)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, gradients), value


def arguments(width=8, tokens=16, layers=3):
    keys = iter(jax.random.split(jax.random.key(0), 2 * layers + 1))
    weights = [
        {
            "in": jax.random.normal(next(keys), (width, 4 * width)),
            "out": jax.random.normal(next(keys), (4 * width, width)),
        }
        for _ in range(layers)
    ]
    return weights, jax.random.normal(next(keys), (tokens, width))


def products(function, *args):
    return str(jax.make_jaxpr(function)(*args)).count("dot_general")


@pytest.mark.parametrize("name", ["everything", "nothing", "dots", "transformer", "inputs", "mindspore_cell"])
def test_every_ready_policy_gives_the_same_numbers(name):
    args = arguments()
    expected, found = jax.jit(step)(*args), jax.jit(jaxckpt.apply(step, name))(*args)
    assert jax.tree.structure(expected) == jax.tree.structure(found)
    for one, other in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_policy_decides_which_ops_are_recomputed():
    args = arguments()
    plain = products(step, *args)
    assert products(jaxckpt.apply(step, "everything"), *args) == plain
    assert products(jaxckpt.apply(step, "dots"), *args) == plain  # what lies between products is no product
    # The first product of each block but the last, whose backward comes at once.
    assert products(jaxckpt.apply(step, "nothing"), *args) == plain + 2


def test_a_named_value_is_saved_and_its_readers_are_recomputed():
    args = arguments()
    named = Policy(rules=(Rule(match=Match(name="wide_*"), decision=Save()),))
    applied = jaxckpt.apply(step, named)
    assert products(applied, *args) == products(step, *args) + 1  # that of the last output
    again = str(jax.make_jaxpr(applied)(*args)).count("= tanh")
    assert again == 2 * str(jax.make_jaxpr(step)(*args)).count("= tanh")


def test_layers_may_differ():
    args = arguments()
    policy = Policy(rules=(Rule(match=Match(layers="1"), decision=Recompute()),), default="save")
    assert products(jaxckpt.apply(step, policy), *args) == products(step, *args) + 1


def test_a_rule_without_a_match_names_known_values():
    policy = Policy(rules=(Rule(match=Match(name="wide_prj"), decision=Save()),))
    with pytest.raises(PolicyError, match="closest name is 'wide_proj'"):
        jaxckpt.apply(step, policy)(*arguments())


def test_a_policy_is_found_by_path_and_by_name(tmp_path):
    path = tmp_path / "mine.toml"
    Policy(name="mine", default="save").save(path)
    assert jaxckpt.load_policy(path) == Policy(name="mine", default="save")
    assert jaxckpt.load_policy("dots").name == "dots"
    with pytest.raises(PolicyError, match="one of attention_recomputed, "):
        jaxckpt.load_policy("dotz")


@pytest.mark.parametrize("name", jaxckpt.policies())
def test_ready_policies_say_what_they_are_for(name):
    policy = jaxckpt.load_policy(name)
    assert policy.name == name
    assert policy.models and policy.about
    assert Policy.from_toml(policy.to_toml()) == policy


def test_values_that_cost_nothing_are_left_to_the_compiler():
    traced = trace_step(step, *arguments())
    problem = Problem(graph=traced.graph, rates=Target("h200").rates)
    plan = plan_from_policy(problem, Policy(default="save")).plan
    assert plan.decisions.keys() <= problem.worth_saving
    assert not any(isinstance(decision, Recompute) for decision in plan.decisions.values())


@pytest.mark.skipif(not GPU, reason="needs the CUDA plugin: pip install 'jaxckpt[gpu-targets]'")
def test_policies_are_measured_by_the_compiler():
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), arguments(256, 8192, 6))
    planner = Planner(step, *args, target="h200", donate_argnums=0)
    totals = {name: planner.follow(jaxckpt.load_policy(name)) for name in ("everything", "dots", "nothing")}
    assert totals["nothing"].strategy == "nothing"
    sizes = [totals[name].footprint.total_bytes for name in ("nothing", "dots", "everything")]
    assert sizes == sorted(sizes) and sizes[0] < 0.8 * sizes[-1]
    assert totals["nothing"].footprint.memory.scopes(0)[0].recomputed_kernels > 0
