"""Every strategy of the table: read from its text, valid on any graph, harmless on a real step, in the docs."""

import dataclasses
import functools
import re
from contextlib import suppress
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxckpt
from jaxckpt._errors import PolicyError, TooLargeError, UnknownStrategyError
from jaxckpt.ir import Recompute, Save
from jaxckpt.rewrite import rewrite
from jaxckpt.schedule import schedule
from jaxckpt.solve import STRATEGIES, Problem, StrategySolver, named_strategy, solve
from jaxckpt.trace import trace_step
from tests.graphs import RATES, chain, graphs
from tests.zoo.case import normal, quick_jit, weight

OPTIONS = ("every:3", "sqrt:greedy", "mincut:ilp", "mincut:greedy", "mincut:0.3", "mindspore:1KiB", "mindspore:1,1")
ALL = (*STRATEGIES, *OPTIONS)
QUICK = tuple(text for text in ALL if text not in ("optimal", "checkmate", "dtr", "dte", "coop"))
"""Those that take no more than a moment a graph."""


@given(graphs(), st.sampled_from(QUICK), st.integers(1, 60))
def test_plans_of_any_strategy_can_be_laid_out_and_decide_only_what_exists(graph, strategy, kilobytes):
    problem = Problem(graph=graph, rates=RATES)
    with suppress(PolicyError):  # there are no names, and no attention
        plan = solve(problem, strategy, temp_budget_bytes=kilobytes * 1000)
        schedule(graph, plan)
        assert plan.fingerprint == graph.fingerprint
        assert all(isinstance(decision, Save | Recompute) for decision in plan.decisions.values())
        assert plan.prediction == problem.predict(plan)
        assert plan.strategy == strategy or not plan.decisions


@given(graphs(), st.sampled_from(QUICK), st.data())
def test_every_strategy_keeps_to_what_must_be(graph, strategy, data):
    free = Problem(graph=graph, rates=RATES)
    values = sorted(v for v in free.read_after_forward & free.worth_saving if not graph.ops[graph.producer[v]].effects)
    if not values or strategy == "none":
        return
    value, decision = data.draw(st.sampled_from(values)), data.draw(st.sampled_from([Save(), Recompute()]))
    with suppress(PolicyError):
        plan = solve(dataclasses.replace(free, required={value: decision}), strategy)
        recomputes = any(isinstance(d, Recompute) for d in plan.decisions.values())
        assert plan.decisions.get(value, Save()) == decision
        assert recomputes or decision == Save()


@given(graphs(), st.sampled_from(["revolve", "rotor", "mincut"]))
def test_more_memory_never_gives_a_slower_plan_of_a_sweep(graph, strategy):
    solver = StrategySolver(Problem(graph=graph, rates=RATES), named_strategy(strategy))
    (smallest,) = solver.min_memory_plans
    most = solver.empty_plan.prediction.temp_bytes
    seconds = []
    for tenth in range(1, 12):
        plan = solver.solve(most * tenth // 10)
        if plan.prediction.temp_bytes <= most * tenth // 10:
            seconds.append(plan.prediction.step_s)
        else:
            assert plan in (smallest, solver.empty_plan)
    assert seconds == sorted(seconds, reverse=True)


def block(p, x):
    """Attention and a feed-forward part, written out, with one name in it."""
    q, k, v = (jnp.einsum("bld,dhe->bhle", x, p[name]) for name in "qkv")
    mixed = jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2)) @ v
    x = x + jaxckpt.name(jnp.einsum("bhle,hed->bld", mixed, p["out"]), "attn_out")
    return x + jnp.tanh(x @ p["up"]) @ p["down"]


def step(params, x):
    def loss(params, y):
        for layer, p in enumerate(params):
            with jax.named_scope(f"block_{layer}"):
                y = block(p, y)
        return y.var()

    return jax.grad(loss)(params, x)


@functools.cache
def traced_transformer():
    """Two blocks, their arguments, and what the step computes of them."""
    draw = np.random.default_rng(0)
    shapes = {"q": (8, 2, 4), "k": (8, 2, 4), "v": (8, 2, 4), "out": (2, 4, 8), "up": (8, 32), "down": (32, 8)}
    params = [{name: weight(draw, *shape) for name, shape in shapes.items()} for _ in range(2)]
    args = (params, normal(draw, 2, 16, 8))
    traced = trace_step(step, *args)
    flat = jax.tree.leaves(args)
    return traced, flat, quick_jit(traced.flat_function())(*flat)


@pytest.mark.parametrize("strategy", ALL)
def test_a_planned_step_computes_the_same(strategy):
    traced, flat, expected = traced_transformer()
    problem = Problem(graph=traced.graph, rates=RATES)
    most = solve(problem, "none").prediction.temp_bytes
    try:
        plan = solve(problem, strategy, temp_budget_bytes=int(0.7 * most))
    except TooLargeError as error:
        assert strategy == "checkmate" and error.ops > error.most
        return
    assert plan.decisions or strategy.startswith(("none", "mindspore"))
    found = quick_jit(rewrite(traced, plan).call)(*flat)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_checkmates_plan_computes_the_same():
    weights, x = jnp.full((8, 8), 0.1), jnp.ones((64, 8))

    def step(w, x):
        return jax.grad(lambda w: (jnp.tanh(jnp.tanh(x @ w) @ w) @ w).sum())(w)

    problem = Problem(graph=trace_step(step, weights, x).graph, rates=RATES)
    most = solve(problem, "none").prediction.temp_bytes
    plan = solve(problem, "checkmate", temp_budget_bytes=int(0.8 * most))
    jaxckpt.verify(step, plan, weights, x).check()


@pytest.mark.parametrize(
    ("text", "closest"), [("optimum", "optimal"), ("sqr", "sqrt"), ("min-cut:dp", "mincut"), ("EVERY:4", "optimal")]
)
def test_an_unknown_strategy_is_refused_with_the_closest(text, closest):
    with pytest.raises(UnknownStrategyError, match=re.escape(f'Try:    strategy="{closest}"')) as caught:
        named_strategy(text)
    assert all(repr(name) in str(caught.value) for name in STRATEGIES)


@pytest.mark.parametrize(
    "text",
    [
        "every:0",
        "every:x",
        "every:",
        "sqrt:big",
        "mincut:1.5",
        "mincut:nan",
        "mincut:dp,",
        "mincut:0.5,0.7",
        "mindspore:1,2,3",
    ],
)
def test_an_option_that_cannot_be_read_is_refused_with_what_can(text):
    name = text.partition(":")[0]
    with pytest.raises(UnknownStrategyError, match=f"{name}:OPTION") as caught:
        named_strategy(text)
    assert STRATEGIES[name].option in str(caught.value)
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize("saved", ["nothing", "dots"])
def test_the_layers_of_a_scan_are_its_bodies(saved):
    """What comes before and behind the loop is left to the compiler, as under `jax.checkpoint` of the body."""

    def loss(weights, x):
        x = scanned(weights["layers"], jnp.tanh(x @ weights["in"]))
        return (jnp.tanh(x @ weights["out"]) ** 2).sum()

    def scanned(layers, x):
        return jax.lax.scan(lambda x, w: (jnp.sin(jnp.tanh(x @ w) @ w), None), x, layers)[0]

    weights = {"in": jnp.ones((8, 8)), "layers": jnp.ones((3, 8, 8)), "out": jnp.ones((8, 8))}
    graph = trace_step(jax.grad(loss), weights, jnp.ones((64, 8))).graph
    plan = solve(Problem(graph=graph, rates=RATES), f"layers:{saved}")
    made_by = {value: graph.ops[graph.producer[value]] for value in plan.decisions}
    assert all(op.loop is not None for op in made_by.values())
    kept = {op.primitive for v, op in made_by.items() if isinstance(plan.decisions[v], Save)}
    assert kept == {"loop_carry", *(["dot_general"] if saved == "dots" else [])}
    assert len(made_by) > len(kept)


def test_a_loop_saves_what_its_iterations_are_given_once():
    """The final carry is none of it: the next iteration has the value as its own carry."""

    def cell(carry, x):
        hidden, memory = carry
        memory = jnp.sin(x @ x.T) * memory + jnp.tanh(hidden)
        return (jnp.cos(memory), memory), None

    def loss(hidden, xs):
        return (jax.lax.scan(cell, (hidden, hidden), xs)[0][0] ** 2).sum()

    graph = trace_step(jax.grad(loss), jnp.ones((8, 8)), jnp.ones((5, 8, 8))).graph
    plan = solve(Problem(graph=graph, rates=RATES), "layers")
    saved = [v for v, decision in plan.decisions.items() if isinstance(decision, Save)]
    assert [graph.ops[graph.producer[v]].primitive for v in saved] == ["loop_carry", "loop_carry"]


def test_layers_save_their_inputs_and_not_what_an_activation_is_computed_of():
    """As under `jax.checkpoint` of each: a relu in front of the next product is fused with it, and saved all the same.

    The first layer is the first that repeats. Its input is a sum of the entry's product, the others' are relus.
    """

    def layer(weight, scale, x):
        product = x @ weight
        centred = (product - product.mean(0)) * jax.lax.rsqrt(product.var(0) + 1e-5)
        return jax.nn.relu(centred * scale)

    def loss(weights, x):
        x = x @ weights["in"] + 1.0
        for _ in range(4):
            x = layer(weights["weight"], weights["scale"], x)
        return (x @ weights["out"]).sum()

    weights = {
        "in": jnp.ones((8, 256)),
        "weight": jnp.ones((256, 256)),
        "scale": jnp.ones(256),
        "out": jnp.ones((256, 8)),
    }
    graph = trace_step(jax.grad(loss), weights, jnp.ones((4096, 8))).graph
    plan = solve(Problem(graph=graph, rates=RATES), "layers")
    large = [v for v, decision in plan.decisions.items() if isinstance(decision, Save) and graph.elements(v) > 2**16]
    assert [graph.ops[graph.producer[v]].primitive for v in sorted(large)] == ["add", *["custom_jvp_call"] * 3]


def test_a_step_without_scopes_repetition_and_loops_has_no_layers():
    with pytest.raises(PolicyError, match=r"(?s)finds no layers\..*jax\.named_scope.*strategy=\"full\""):
        solve(Problem(graph=chain(1), rates=RATES), "layers")


def test_an_option_where_none_is_taken_is_refused():
    with pytest.raises(UnknownStrategyError, match="no option"):
        named_strategy("rotor:3")


@pytest.mark.parametrize(
    ("text", "depends_on_budget"),
    [("optimal", True), ("full", False), ("every:2", False), ("mincut:ilp", True), ("mincut:ilp,0.5", False)],
)
def test_only_what_reads_the_budget_is_asked_again(text, depends_on_budget):
    assert named_strategy(text).depends_on_budget == depends_on_budget
    solver = StrategySolver(Problem(graph=chain(9, flops=1e9), rates=RATES), named_strategy(text))
    plans = {solver.solve(size, allow_empty=False) for size in (10_000, 22_000, 30_000)}
    assert depends_on_budget or len(plans) == 1


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_docs_have_a_row_for_each(name):
    text = (Path(__file__).parents[3] / "docs" / "strategies.md").read_text()
    (row,) = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| `{name}` |"))
    _, keeps, option, source, good = map(str.strip, row)
    assert option == STRATEGIES[name].option
    assert keeps and source and good
