"""What is found without any name: attention for Megatron's strategy, cheap kernels for MindSpore's."""

from functools import cache

import pytest

from benchmarks.models import MODELS
from jaxckpt._errors import PolicyError
from jaxckpt.ir import Kind, Phase, Recompute, Trait
from jaxckpt.schedule import Run, schedule
from jaxckpt.solve import Problem, solve
from jaxckpt.solve.baselines.megatron import attention_cores
from jaxckpt.trace import trace_step
from tests.graphs import RATES, Builder, chain


@cache
def traced(name: str):
    made = MODELS[name].step(**MODELS[name].small())
    return trace_step(made.step, *made.args, donate_argnums=made.donate_argnums).graph


def layers(name: str) -> int:
    return MODELS[name].small()["layers"]


@pytest.mark.parametrize("name", ["bert-large", "llama", "gpt2-small"])
def test_each_attention_is_found_once_without_a_name(name):
    cores = attention_cores(traced(name))
    assert len(cores) == layers(name)
    for core in cores:
        primitives = [traced(name).ops[op].primitive for op in sorted(core)]
        assert primitives.count("dot_general") == 1
        assert "exp" in primitives
        assert traced(name).ops[min(core)].primitive == "dot_general"


@pytest.mark.parametrize("name", ["bert-large", "llama", "gpt2-small"])
def test_megatron_recomputes_only_first_products_of_attentions(name):
    graph = traced(name)
    plan = solve(Problem(graph=graph, rates=RATES), "megatron")
    again = [graph.ops[step.op] for step in schedule(graph, plan).steps if isinstance(step, Run) and step.is_clone]
    products = [op for op in again if op.kind is Kind.CONTRACTION]
    assert len(products) == layers(name)
    assert all(Trait.BATCHED in op.traits for op in products)


@pytest.mark.parametrize("name", ["resnet50", "gcn"])
def test_a_model_without_attention_is_refused(name):
    with pytest.raises(PolicyError, match="no attention"):
        solve(Problem(graph=traced(name), rates=RATES), "megatron")


def test_a_scope_may_name_what_runs_again():
    build = Builder()
    x = build.input(4000)
    scores = build.op("dot_general", x, size_bytes=16000, scope="net/block_0/core_attn")
    weights = build.op("exp", scores, size_bytes=16000, scope="net/block_0/core_attn")
    out = build.op("dot_general", weights, size_bytes=4000, scope="net/block_0/out")
    cotangent = build.op("dot_general", out, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("dot_general", weights, cotangent, size_bytes=4000, phase=Phase.BACKWARD)
    problem = Problem(graph=build.graph(cotangent), rates=RATES)
    plan = solve(problem, "megatron:*/core_attn")
    assert [v for v, decision in plan.decisions.items() if decision == Recompute()] == [weights]
    with pytest.raises(PolicyError, match="core_attn"):
        solve(problem, "megatron:core")


def two_activations():
    """A product, an activation of it as large, a product; and a narrow sum of a wide array."""
    build = Builder()
    x = build.input(4000)
    hidden = build.op("dot_general", x, size_bytes=8000, flops=1e6)
    active = build.op("tanh", hidden, size_bytes=8000)
    out = build.op("dot_general", active, size_bytes=4000, flops=1e6)
    cotangent = build.op("dot_general", out, size_bytes=4000, phase=Phase.BACKWARD)
    cotangent = build.op("dot_general", active, cotangent, size_bytes=8000, phase=Phase.BACKWARD)
    cotangent = build.op("mul", hidden, cotangent, size_bytes=8000, phase=Phase.BACKWARD)
    return build.graph(cotangent), hidden, active


@pytest.mark.parametrize(("option", "runs_again"), [("7999", True), ("8000", False), ("0", False), ("0,1", True)])
def test_an_activation_above_the_threshold_is_recomputed(option, runs_again):
    graph, hidden, active = two_activations()
    plan = solve(Problem(graph=graph, rates=RATES), f"mindspore:{option}")
    assert (plan.decisions.get(active) == Recompute()) == runs_again
    assert plan.decisions.get(hidden) != Recompute()


def test_what_reads_nothing_that_stays_is_kept():
    build = Builder()
    hidden = build.op("dot_general", build.input(4000), size_bytes=8000, flops=1e6)
    active = build.op("tanh", hidden, size_bytes=8000)
    cotangent = build.op(
        "dot_general", build.op("dot_general", active, size_bytes=4), size_bytes=4, phase=Phase.BACKWARD
    )
    cotangent = build.op("dot_general", active, cotangent, size_bytes=8000, phase=Phase.BACKWARD)
    plan = solve(Problem(graph=build.graph(cotangent), rates=RATES), "mindspore:1")
    assert not plan.decisions


def test_products_never_run_again_for_mindspore():
    graph = traced("gpt2-small")
    plan = solve(Problem(graph=graph, rates=RATES), "mindspore:1")
    again = [graph.ops[step.op] for step in schedule(graph, plan).steps if isinstance(step, Run) and step.is_clone]
    assert again
    assert not [op for op in again if op.kind is Kind.CONTRACTION]


def test_a_chain_of_products_gives_mindspore_nothing_to_do():
    assert not solve(Problem(graph=chain(12), rates=RATES), "mindspore:1").decisions
