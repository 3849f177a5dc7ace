"""Loops in a replay: residual stacks, and seconds of every iteration."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxckpt.cost import Rates
from jaxckpt.ir import GraphPlan, Recompute, Save
from jaxckpt.solve import Problem, solve
from jaxckpt.trace import trace_step
from tests.graphs import RATES
from tests.residuals import residuals

LENGTH, ROWS, WIDTH = 16, 64, 32
SLICE_BYTES = 4 * ROWS * WIDTH
W = jax.ShapeDtypeStruct((LENGTH, WIDTH, WIDTH), jnp.float32)
X = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)


def loss(w, x):
    return (jax.lax.scan(lambda x, w: (jnp.sin(jnp.tanh(x @ w)), None), x, w)[0] ** 2).sum()


@pytest.fixture(scope="module")
def problem():
    return Problem(graph=trace_step(jax.grad(loss), W, X).graph, rates=RATES)


def plan_saving(problem, *primitives):
    graph = problem.graph
    decisions = {}
    for residual in residuals(graph):
        op = graph.ops[residual.op]
        if not op.effects:
            decisions[residual.value] = Save() if op.primitive in primitives else Recompute()
    return GraphPlan(fingerprint=graph.fingerprint, decisions=decisions)


def test_full_recomputation_keeps_one_stack_of_what_is_carried(problem):
    peak_bytes = problem.replay(plan_saving(problem)).peak_bytes
    assert LENGTH * SLICE_BYTES < peak_bytes < 1.6 * LENGTH * SLICE_BYTES


def test_each_value_kept_is_one_more_stack(problem):
    nothing = problem.replay(plan_saving(problem)).peak_bytes
    one = problem.replay(plan_saving(problem, "cos")).peak_bytes
    assert one - nothing == pytest.approx(LENGTH * SLICE_BYTES, rel=0.15)


def test_stacks_live_from_the_first_loop_to_the_end_of_the_other(problem):
    replayed = problem.replay(plan_saving(problem))
    loops = [step.loop for step in replayed.steps]
    first, last = loops.index(0), len(loops) - 1 - loops[::-1].index(1)
    assert min(replayed.live_bytes[first : last + 1]) >= LENGTH * SLICE_BYTES
    assert replayed.live_bytes[-1] < LENGTH * SLICE_BYTES


def test_seconds_count_for_every_iteration(problem):
    products = [op.id for op in problem.graph.ops if op.primitive == "dot_general"]
    traffic_s = (2 * SLICE_BYTES + 4 * WIDTH * WIDTH) / RATES.memory_bandwidth_bytes_per_s
    assert problem.op_s[products[0]] >= LENGTH * (RATES.launch_s + traffic_s)


def test_a_value_read_in_a_body_lives_until_the_loop_is_over():
    def with_factor(w, x):
        factor = jnp.cumsum(x, axis=0)
        return jax.lax.scan(lambda x, w: (jnp.sin((x * factor) @ w), None), x, w)[0].sum()

    graph = trace_step(jax.grad(with_factor), W, X).graph
    problem = Problem(graph=graph, rates=RATES)
    replayed = problem.replay(GraphPlan(fingerprint=graph.fingerprint))
    factor = next(op.writes[0] for op in graph.ops if op.primitive == "cumsum")
    last = max(at for at, step in enumerate(replayed.steps) if step.loop is not None)
    assert replayed.deaths[factor] == last


def test_recomputation_takes_less_memory_and_seconds(problem):
    none, full = solve(problem, "none").predicted, solve(problem, "full").predicted
    assert full.temp_bytes < none.temp_bytes
    recomputed = problem.replay(plan_saving(problem))
    assert recomputed.recompute_s > 0


ITERATIONS, SEQUENCE, HEADS = 24, 128, 4
SCORES_BYTES = 4 * HEADS * SEQUENCE**2


def scanned_attention(scores: str, mixed: str, *, queries: tuple[int, ...], keys: int) -> Problem:
    """The gradient of a loop over attention, with the axes of heads that queries and keys have."""

    def body(x, w):
        q = (x @ w).reshape(1, SEQUENCE, *queries, WIDTH // HEADS)
        k = (x @ w)[:, : keys * WIDTH // HEADS].reshape(1, SEQUENCE, keys, WIDTH // HEADS)
        weights = jax.nn.softmax(jnp.einsum(scores, q, k), axis=-1)
        return x + jnp.einsum(mixed, weights, k).reshape(SEQUENCE, WIDTH), None

    def loss(w, x):
        return (jax.lax.scan(body, x, w)[0] ** 2).sum()

    shapes = (ITERATIONS, WIDTH, WIDTH), (SEQUENCE, WIDTH)
    args = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return Problem(graph=trace_step(jax.grad(loss), *args).graph, rates=RATES)


@pytest.mark.parametrize(
    ("products", "heads", "stacks"),
    [
        (("bqkgd,bskd->bkgqs", "bkgqs,bskd->bqkgd"), {"queries": (2, 2), "keys": 2}, 2),
        (("bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"), {"queries": (4,), "keys": 4}, 1),
    ],
    ids=["transposed", "straight"],
)
def test_a_stack_read_in_another_layout_is_alive_twice_before(products, heads, stacks):
    problem = scanned_attention(*products, **heads)
    kept, nothing = (problem.replay(plan_saving(problem, *names)) for names in (["exp"], []))
    assert round((kept.peak_bytes - nothing.peak_bytes) / (ITERATIONS * SCORES_BYTES)) == stacks
    backward = next(at for at, step in enumerate(kept.steps) if step.loop == 1)
    assert (kept.live_bytes.index(kept.peak_bytes) == backward) is (stacks == 2)
    assert kept.live_bytes[backward + 1] < 1.2 * ITERATIONS * SCORES_BYTES


LAUNCHES = Rates(
    name="launches",
    matmul_flops_per_s=(),
    vector_flops_per_s=math.inf,
    memory_bandwidth_bytes_per_s=math.inf,
    host_bandwidth_bytes_per_s=math.inf,
    launch_s=1.0,
    memory_bytes=2**40,
)
"""A device on which a kernel takes its launch alone: seconds are numbers of launches."""


def launches(graph):
    return Problem(graph=graph, rates=LAUNCHES).replay(GraphPlan(fingerprint=graph.fingerprint, decisions={})).step_s


@pytest.mark.parametrize(("facts", "counted"), [({}, LENGTH), ({"unroll": 4}, LENGTH / 4), ({"rolled": False}, 0)])
def test_every_iteration_of_a_compilers_loop_launches_the_kernel_that_counts(problem, facts, counted):
    uncounted = launches(replace(problem.graph, loops=tuple(replace(a, rolled=False) for a in problem.graph.loops)))
    graph = replace(problem.graph, loops=tuple(replace(loop, **facts) for loop in problem.graph.loops))
    assert launches(graph) - uncounted == 2 * counted


def test_a_carry_is_copied_into_its_stack_as_the_next_iteration_reads_it_too():
    def stacked(result):
        def body(x, w):
            carry = jnp.sin(x @ w)
            return carry, result(carry)

        def loss(w, x):
            last, results = jax.lax.scan(body, x, w)
            return (last**2).sum(), results

        return trace_step(jax.grad(loss, has_aux=True), W, X).graph

    zeros, copies = 1, LENGTH
    assert launches(stacked(lambda carry: carry)) - launches(stacked(lambda carry: None)) == zeros + copies
