"""Rows in pieces as the planner asks for them: smaller than all other plans, equal up to rounding, only if allowed."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxckpt
from jaxckpt import InfeasibleBudgetError, Planner, PlanOptions
from jaxckpt._errors import PlanMismatchError
from jaxckpt.ir import GraphPlan, Recompute, RowChunk, Save
from jaxckpt.planner.candidate_pool import is_unplanned
from jaxckpt.planner.chunking import ChunkSolver
from jaxckpt.report import plan_report, render_text
from jaxckpt.rewrite.agreement import digest
from jaxckpt.rewrite.transformed_step import transformed_step
from jaxckpt.solve import OptimalSolver
from tests.planner.solved import not_compiled
from tests.planner.test_batches import FakePlanner
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

BATCH, SEQUENCE, WIDTH, VOCABULARY = 4, 128, 64, 8192
LOGITS_BYTES = 4 * BATCH * SEQUENCE * VOCABULARY
ALLOW = ("recompute", "chunk")


def decoder_loss(weights, tokens):
    """A decoder of three blocks with attention over all positions before, and an untied head."""
    x = weights["embed"][tokens[:, :-1]]
    for block in weights["blocks"]:
        scores = jnp.einsum("bqd,bkd->bqk", x @ block["query"], x @ block["key"]) / WIDTH**0.5
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        x = x + jax.nn.softmax(jnp.where(seen, scores, -1e9)) @ x
        x = x + jnp.tanh(x @ block["up"]) @ block["down"]
    logits = x @ weights["head"]
    chosen = jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def step(weights, tokens):
    loss, gradients = jax.value_and_grad(decoder_loss)(weights, tokens)
    return loss, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)


def plain_step(weights, x):
    """Layers without a head: sums over rows are all that is at the end."""

    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.linalg.slogdet(y.T @ y + jnp.eye(y.shape[1]))[1]

    return jax.grad(loss)(weights)


def arguments():
    """Weights and tokens, small random numbers."""
    keys = iter(jax.random.split(jax.random.key(0), 32))

    def normal(*shape):
        return 0.05 * jax.random.normal(next(keys), shape)

    sizes = {"query": (WIDTH, WIDTH), "key": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    weights = {
        "embed": normal(VOCABULARY, WIDTH),
        "head": normal(WIDTH, VOCABULARY),
        "blocks": [{name: normal(*size) for name, size in sizes.items()} for _ in range(3)],
    }
    return weights, jax.random.randint(next(keys), (BATCH, SEQUENCE + 1), 0, VOCABULARY)


ARGS = jax.eval_shape(arguments)
PLAIN_ARGS = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 3, jax.ShapeDtypeStruct((256, 64), jnp.float32)


@pytest.fixture(scope="module")
def planner():
    """A planner whose compiler is the model."""
    return FakePlanner(step, *ARGS, target="h200", donate_argnums=0, allow=ALLOW)


@pytest.fixture(scope="module")
def plain(no_local_search):
    """The planner of the same step that runs nothing in pieces."""
    return FakePlanner(step, *ARGS, target="h200", donate_argnums=0)


@pytest.fixture(scope="module")
def least(planner):
    return planner.chunk_solver.min_memory_plans[0]


def test_the_model_expects_less_of_rows_in_pieces(planner, least):
    undivided = planner.solver.min_memory_plan
    assert undivided.predicted.temp_bytes >= LOGITS_BYTES
    assert least.predicted.temp_bytes < undivided.predicted.temp_bytes / 2
    (chunk,) = least.row_chunks
    assert planner.graph.values[chunk.value].shape == (BATCH, SEQUENCE, VOCABULARY)
    assert least.fingerprint == planner.graph.fingerprint
    assert planner.smallest().plan.row_chunks


def test_the_floor_names_rows_in_pieces_unless_they_are_allowed(planner, plain, least):
    (remedy,) = (each for each in plain.floor().remedies if "pieces" in each.title)
    saved_bytes = plain.solver.min_memory_plan.predicted.temp_bytes - least.predicted.temp_bytes
    assert remedy.saves_bytes == pytest.approx(saved_bytes, rel=0.15)
    assert f"in {least.row_chunks[0].pieces} pieces" in remedy.how
    assert "chunk" in remedy.command
    assert not any("pieces" in each.title for each in planner.floor().remedies)
    without = FakePlanner(plain_step, *PLAIN_ARGS, target="h200")
    assert not any("pieces" in each.title for each in without.floor().remedies)


def test_the_least_number_of_pieces_is_solved_with_which_the_rows_are_not_the_peak(planner):
    solver = ChunkSolver(planner.traced, planner.solver)
    pieces, _ = solver.estimate
    solver.min_memory_plans  # noqa: B018
    assert list(solver._solvers) == [pieces]
    by_pieces = {}
    for other in (2, 4, 8, 16, 32):
        if (solved := solver._solver_of(other)) is not None:
            by_pieces[other] = solved.min_memory_plan.predicted.temp_bytes
    assert by_pieces[pieces] <= 1.15 * min(by_pieces.values())


def test_pieces_are_as_large_as_the_budget_has_memory_for():
    """All layers treat rows alike. Of 4 pieces, which are estimated fastest, the plan does not fit; of 8 it does."""
    weights, x = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 6, jax.ShapeDtypeStruct((16384, 256), jnp.float32)

    def loss(weights, x):
        for weight in weights:
            x = x + jax.nn.gelu(x @ weight)
        return jnp.mean(x**2)

    solver = Planner(jax.value_and_grad(loss), weights, x, target="h200", allow=ALLOW).chunk_solver
    budget = 42 * 2**20
    found = solver.solve(budget)
    assert found.predicted.temp_bytes <= budget
    (chunk,) = found.row_chunks
    assert chunk.pieces < solver.min_memory_plans[0].row_chunks[0].pieces
    larger = solver._solver_of(chunk.pieces // 2).solve(budget)
    assert larger.predicted.temp_bytes > budget


def test_more_memory_never_takes_more_time(planner, least):
    budgets = [scale * least.predicted.temp_bytes // 4 for scale in (4, 5, 6, 8, 12)]
    plans = [planner.chunk_solver.solve(budget) for budget in budgets]
    assert all(plan.predicted.temp_bytes <= budget for plan, budget in zip(plans, budgets, strict=True))
    seconds = [plan.predicted.step_s for plan in plans]
    assert seconds == sorted(seconds, reverse=True)
    assert planner.chunk_solver.solve(None) == planner.solver.empty_plan


def test_rows_in_pieces_without_decisions_are_a_plan(planner):
    divided = GraphPlan(fingerprint=planner.graph.fingerprint, row_chunks=(RowChunk(value=1, dimension=0, pieces=2),))
    undivided = replace(divided, row_chunks=())
    assert is_unplanned(undivided)
    assert not is_unplanned(divided)
    assert undivided != divided
    assert hash(undivided) != hash(divided)
    assert digest(undivided) != digest(divided)


def test_a_plan_of_rows_in_pieces_computes_the_step_up_to_rounding(planner, least, tmp_path):
    assert Recompute() in least.decisions.values()
    held = planner.as_plan(planner.measure(least))
    path = tmp_path / "plan.toml"
    held.save(path)
    loaded = jaxckpt.load_plan(path)
    assert loaded == held
    assert loaded.row_chunks == least.row_chunks
    assert loaded.described == held.described
    args = arguments()
    found = jax.jit(loaded.apply(step))(*args)
    for one, other in zip(jax.tree.leaves(step(*args)), jax.tree.leaves(found), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-7)
    assert "[[row_chunks]]" in path.read_text()


def test_the_planned_step_has_no_value_of_all_logits(planner, least):
    rewritten = planner.rewritten(least).traced.graph
    assert max(value.size_bytes for value in rewritten.values) < LOGITS_BYTES
    assert max(value.size_bytes for value in planner.graph.values) >= LOGITS_BYTES


def test_a_plan_of_rows_in_pieces_says_so(planner, least):
    held = planner.as_plan(planner.measure(least))
    (note,) = held.notes
    assert "another order: losses and gradients differ by rounding" in note
    assert f"[{BATCH},{SEQUENCE},{VOCABULARY}]" in note
    (chunk,) = held.row_chunks
    assert f"in {chunk.pieces} pieces" in render_text(plan_report(held))
    assert held.summary().endswith(f", rows in {chunk.pieces} pieces")


def test_a_plan_of_other_rows_is_refused(planner, least):
    (chunk,) = least.row_chunks
    for wrong in (replace(chunk, pieces=3), replace(chunk, value=0), replace(chunk, dimension=2)):
        with pytest.raises(PlanMismatchError, match="no rows that can be divided like that"):
            transformed_step(planner.traced, replace(least, row_chunks=(wrong,)))


def test_what_a_policy_saves_does_not_run_in_pieces(planner):
    logits = next(v.id for v in planner.graph.values if v.shape == (BATCH, SEQUENCE, VOCABULARY))
    saved = OptimalSolver(replace(planner.problem, required={logits: Save()}))
    assert not ChunkSolver(planner.traced, saved).can_divide


def test_what_is_required_outside_of_the_region_is_required_in_pieces(planner):
    value = min(planner.problem.worth_saving & planner.problem.read_after_forward)
    solver = OptimalSolver(replace(planner.problem, required={value: Save()}))
    variable = planner.traced.variables[value]
    for plan in ChunkSolver(planner.traced, solver).min_memory_plans:
        there = transformed_step(planner.traced, plan).variables.index(variable)
        assert plan.decisions[there] == Save()


def test_without_the_word_nothing_runs_in_pieces(plain):
    assert PlanOptions().allow == ("recompute",)
    assert plain.chunk_solver is None
    assert not plain.smallest().plan.row_chunks
    with pytest.raises(InfeasibleBudgetError) as refused:
        plain.plan(budget=plain.smallest().footprint.total_bytes - 2**20)
    assert refused.value.minimum_bytes == plain.smallest().footprint.total_bytes


def test_a_step_without_such_rows_is_planned_as_without_the_word():
    allowed, plain = (FakePlanner(plain_step, *PLAIN_ARGS, target="h200", allow=allow) for allow in (ALLOW, ALLOW[:1]))
    assert allowed.chunk_solver is None
    budget = plain.smallest().footprint.total_bytes
    assert allowed.smallest().footprint.total_bytes == budget
    assert allowed.plan(budget=budget) == plain.plan(budget=budget)


@needs_compiler
def test_a_budget_below_all_other_plans_is_met_by_rows_in_pieces(planner):
    planner = not_compiled(planner, Planner, options=replace(planner.options, max_compiles=3))
    undivided = planner.measure(planner.solver.min_memory_plan).footprint
    assert undivided.temp_bytes >= LOGITS_BYTES
    plan = planner.plan(budget=planner.fixed_bytes + 3 * LOGITS_BYTES // 4)
    assert plan.row_chunks
    assert plan.footprint.total_bytes <= plan.budget_bytes < undivided.total_bytes
