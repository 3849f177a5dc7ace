"""Plans with optimiser state in host memory: below all others, only if allowed, carried out when they are called."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxckpt
from jaxckpt import InfeasibleBudgetError, Planner, PlanOptions
from jaxckpt._errors import PlanMismatchError, UnknownStrategyError, VerificationError
from jaxckpt.planner import verify_plan
from jaxckpt.planner.candidate_pool import CandidatePool
from jaxckpt.planner.frontier_search import frontier_of
from jaxckpt.planner.generators import SolverPlans, generators_for
from jaxckpt.planner.host_state import HostStatePlans
from jaxckpt.planner.limits import Limits
from jaxckpt.report import plan_report, render_text
from jaxckpt.rewrite.agreement import digest
from jaxckpt.solve import solve
from jaxckpt.solve.effort import Effort, with_default_effort
from jaxckpt.verifier import Tolerance, Verification, difference
from tests.planner import test_chunking
from tests.planner.test_batches import FakePlanner, modelled  # noqa: F401
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

LAYERS, WIDTH, BATCH = 6, 1024, 4096
STATE_BYTES = 2 * 4 * WIDTH**2 * LAYERS
ALLOW = ("recompute", "state")
OPTIMISER = optax.adamw(1e-3, eps=1e-3)  # not so small that it divides rounding by rounding


def step(weights, state, x):
    def loss(weights):
        y = x
        for weight in weights:
            y = y + jnp.tanh(y @ weight)
        return (y**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    changes, state = OPTIMISER.update(gradients, state, weights)
    return optax.apply_updates(weights, changes), state, value


def described(width=WIDTH, batch=BATCH):
    weights = [jax.ShapeDtypeStruct((width, width), jnp.float32)] * LAYERS
    return weights, jax.eval_shape(OPTIMISER.init, weights), jax.ShapeDtypeStruct((batch, width), jnp.float32)


def planner(allow=ALLOW, target="h200", **options):
    return Planner(step, *described(), target=target, donate_argnums=(0, 1), allow=allow, **options)


@pytest.fixture(scope="module")
def compiled():
    """A planner, the smallest plan without state on the host, and one for less."""
    made = planner()
    without = planner(allow=("recompute",)).smallest().footprint
    return made, without, made.plan(budget=without.total_bytes - STATE_BYTES // 2)


@pytest.mark.parametrize("allow", [("recompute",), ALLOW], ids=["not allowed", "allowed"])
def test_a_budget_below_the_arguments_counts_the_state(allow):
    with pytest.raises(InfeasibleBudgetError, match="arguments alone") as refused:
        planner(allow=allow).plan(budget="1MiB")
    rest_bytes = planner().graph.argument_bytes - STATE_BYTES
    may_move = "state" in allow
    assert rest_bytes <= refused.value.minimum_bytes - (0 if may_move else STATE_BYTES) < rest_bytes + 2**10
    assert ('"state"' in refused.value.advice) == (not may_move)
    assert ("in host memory" in refused.value.needed) == may_move


@needs_compiler
def test_a_budget_below_all_other_plans_is_met(compiled):
    made, without, plan = compiled
    footprint = plan.footprint
    assert plan.host_arguments
    assert footprint.total_bytes <= plan.budget_bytes < without.total_bytes
    assert footprint.argument_bytes < without.argument_bytes
    on_host = sum(made.graph.values[v].size_bytes for v in plan.host_arguments)
    assert footprint.host_argument_bytes == footprint.host_alias_bytes == on_host
    with pytest.raises(InfeasibleBudgetError) as refused:
        planner(allow=("recompute",)).plan(budget=plan.budget_bytes)
    (remedy,) = (each for each in refused.value.floor.remedies if "state" in each.title)
    assert remedy.command == 'allow=("recompute", "state")'
    assert STATE_BYTES // 2 < remedy.saves_bytes < STATE_BYTES


@needs_compiler
def test_copies_may_all_be_under_way_at_once(compiled):
    _, without, plan = compiled
    name = "xla_gpu_experimental_parallel_async_compute_limit"
    assert name in dict(plan.footprint.compiler_options)
    assert name not in dict(without.compiler_options)


@needs_compiler
def test_bytes_and_hidden_copies_are_as_predicted():
    long = Planner(step, *described(batch=16 * BATCH), target="h200", donate_argnums=(0, 1), allow=ALLOW)
    plain = solve(long.problem, "full")
    moved = replace(plain, host_arguments=long.host_state_solver.min_memory_plans[0].host_arguments)
    compiled = long.measure(moved)
    added_bytes = compiled.footprint.total_bytes - long.measure(plain).footprint.total_bytes
    more_bytes = long.problem_of(moved).replay(moved).peak_bytes - long.problem.replay(plain).peak_bytes
    assert abs(added_bytes - (more_bytes - STATE_BYTES)) < 0.01 * STATE_BYTES
    stalled_s = long.step_s_with_stalls(compiled) - compiled.footprint.step_s
    copied_s = STATE_BYTES / long.problem.rates.host_bandwidth_bytes_per_s
    assert stalled_s < 2.5 * copied_s / LAYERS  # the first group's load, and the last one's store


@needs_compiler
def test_plans_are_read_back_as_they_were_written(compiled, tmp_path):
    _, _, plan = compiled
    plan.save(tmp_path / "plan.toml")
    read = jaxckpt.load_plan(tmp_path / "plan.toml")
    assert read == plan
    assert read.host_arguments == plan.host_arguments
    assert digest(read) != digest(planner(allow=("recompute",)).smallest().plan)


@needs_compiler
def test_reports_name_what_is_on_the_host(compiled):
    _, _, plan = compiled
    assert f"{len(plan.host_arguments)} arguments on the host" in plan.summary()
    (note,) = (note for note in plan.notes if "host memory between steps" in note)
    assert "mu[5]" in note
    assert "arguments in host memory" in render_text(plan_report(plan))


@needs_compiler
def test_a_refusal_names_the_least_total_with_state_on_the_host(compiled):
    made, without, _ = compiled
    with pytest.raises(InfeasibleBudgetError) as refused:
        made.plan(budget=without.total_bytes // 3)
    assert refused.value.minimum_bytes < without.total_bytes - STATE_BYTES // 2


@needs_compiler
def test_a_step_that_fits_keeps_its_state_on_the_device(compiled):
    made, _, _ = compiled
    assert not made.plan(budget="100%").host_arguments


def test_larger_batches_fit_with_state_on_the_host(modelled):  # noqa: F811
    modelled(1.0)

    def largest(allow):
        return jaxckpt.max_batch(
            lambda batch: jaxckpt.Step(step, described(batch=batch), donate_argnums=(0, 1)),
            budget=3 * STATE_BYTES,
            target="h200",
            multiples_of=BATCH // 8,
            options=PlanOptions(allow=allow),
        ).batch

    assert largest(ALLOW) > largest(("recompute",))


def test_frontiers_go_on_below_all_other_plans(modelled):  # noqa: F811
    modelled(1.0)
    frontiers = [
        frontier_of(FakePlanner(step, *described(), target="h200", donate_argnums=(0, 1), allow=allow), points=5)
        for allow in (ALLOW, ALLOW[:1])
    ]
    moved = [point for point in frontiers[0] if point.plan.host_arguments]
    assert len(moved) > 1
    assert frontiers[0].smallest.total_bytes < frontiers[1].smallest.total_bytes
    assert all(point.step_s > frontiers[0].fastest.step_s for point in moved)


def test_the_least_bytes_that_no_decision_changes_are_without_state():
    allowed, other = planner(), planner(allow=("recompute",))
    assert allowed.least_fixed_bytes == allowed.fixed_bytes - STATE_BYTES
    assert other.least_fixed_bytes == other.fixed_bytes == allowed.fixed_bytes


def test_plans_without_state_on_the_host_are_asked_for_as_if_none_could_have_any():
    """After a plan that is too large less is asked for, by a share of the bytes that plans of this kind change."""
    questions = []
    for allow in (ALLOW, ALLOW[:1]):
        made = FakePlanner(step, *described(), target="h200", donate_argnums=(0, 1), allow=allow)
        least, plans = made.solver.min_memory_plans[0], SolverPlans(lambda made=made: made.solver)
        pool = CandidatePool(made, least.predicted.total_bytes - 2**20, Limits())
        pool.compile(least, plans)
        assert pool.best is None
        questions.append(pool.question(plans, pool.error(plans)))
    assert questions[0] == questions[1]


def trained_decoder():
    """The step of a decoder with a large head, and its arguments."""

    def trained(weights, state, tokens):
        value, gradients = jax.value_and_grad(test_chunking.decoder_loss)(weights, tokens)
        changes, state = OPTIMISER.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, value

    weights, tokens = test_chunking.ARGS
    return jaxckpt.Step(trained, (weights, jax.eval_shape(OPTIMISER.init, weights), tokens), donate_argnums=(0, 1))


@pytest.fixture(scope="module")
def allowed_all(no_local_search):
    """A planner of a decoder that may decide all, with a link to the host on which copies take next to no time."""
    link = jaxckpt.Offloading(bandwidth_bytes_per_s=1e15, min_bytes=1)
    allow = ("recompute", "chunk", "offload", "state")
    return FakePlanner(trained_decoder(), target="h200", allow=allow, offload=link)


@needs_compiler
def test_gradients_of_weights_are_computed_before_the_next_stage():
    """Else the gradient of the logits lives on: XLA's scheduler postpones the product that reads it."""
    with with_default_effort(Effort()):  # one of the smallest plans of a local search shows it
        made = Planner(trained_decoder(), target="h200", allow=ALLOW)
    for plan in made.host_state_solver.min_memory_plans:
        assert made.measure(plan).footprint.total_bytes == pytest.approx(plan.predicted.total_bytes, rel=0.02)


def test_plans_with_state_on_the_host_have_candidates_with_rows_together_and_in_pieces(allowed_all):
    """What one of the two takes as compiled says little of the other."""
    most_bytes = max(plan.predicted.total_bytes for plan in allowed_all.host_state_solver.min_memory_plans)
    pool = CandidatePool(allowed_all, most_bytes, Limits())
    state = [generator for generator in generators_for(allowed_all) if isinstance(generator, HostStatePlans)]
    found = [[candidate.plan for candidate in generator.fastest(pool)] for generator in state]
    assert [len(plans) for plans in found] == [1, 1]
    assert {bool(plan.row_chunks) for (plan,) in found} == {True, False}


def test_no_residual_moves_beside_state_on_the_host(allowed_all):
    """Not in plans of rows in pieces either, and however fast the link to the host would be."""
    made = allowed_all
    least = min(made.host_state_solver.min_memory_plans, key=lambda plan: plan.predicted.total_bytes)
    assert least.row_chunks
    for plan in (least, made.host_state_solver.solve(int(1.05 * least.predicted.total_bytes))):
        assert plan.host_arguments
        assert not any(decision.moves for decision in plan.decisions.values())


def test_most_host_bytes_bound_the_state():
    made = planner(offload=jaxckpt.Offloading(most_host_bytes=STATE_BYTES // 3))
    assert made.host_state_solver.state_bytes == STATE_BYTES // 3


def test_steps_without_state_have_no_such_plans():
    def plain(weights, x):
        return jax.grad(lambda weights: jnp.tanh(jnp.tanh(x @ weights) @ weights).sum())(weights)

    arrays = jax.ShapeDtypeStruct((1024, 1024), jnp.float32), jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    assert Planner(plain, *arrays, target="h200", allow=ALLOW).host_state_solver is None


def test_the_memory_of_the_cpu_is_that_of_the_host():
    assert planner(target="cpu").host_state_solver is None


def test_words_of_other_tools_lead_to_this_one():
    with pytest.raises(UnknownStrategyError, match='"state"'):
        PlanOptions(allow=("recompute", "offload_optimizer_state"))


def checked_note(monkeypatch, by):
    """The note on a plan whose compiled results are off by a share of the largest, and equal one op at a time."""
    right = jnp.ones(8)

    def verify(step, plan, exact=False):
        found = right if exact else right.at[0].add(by)
        leaf = difference("", right, found, Tolerance(relative=1e-5, absolute=0.0))
        return Verification(step="step", exact=exact, leaves=(leaf,))

    monkeypatch.setattr(verify_plan, "verify", verify)
    made = planner()
    return verify_plan.verification_note(made.step, made.solver.empty_plan, graph=made.graph)


def test_a_small_difference_is_looked_at_one_operation_at_a_time(monkeypatch):
    monkeypatch.setattr(verify_plan, "_MOST_FLOPS", float("inf"))
    assert "equal up to rounding" in checked_note(monkeypatch, 1e-6)
    assert "equal bit for bit" in checked_note(monkeypatch, 1e-3)
    with pytest.raises(VerificationError):
        checked_note(monkeypatch, 0.1)


@needs_compiler
def test_a_planned_step_moves_its_state_at_the_first_call():
    small = described(width=512, batch=512)
    made = Planner(step, *small, target="h200", donate_argnums=(0, 1), allow=ALLOW)
    plan = made.as_plan(made.measure(made.host_state_solver.min_memory_plans[0]))
    assert any("Run beside the step on this machine" in note for note in plan.notes)
    weights = [jnp.eye(512) / 4 for _ in range(LAYERS)]
    x = jax.random.normal(jax.random.key(0), (512, 512))
    state = OPTIMISER.init(weights)
    expected = jax.jit(step)(weights, state, x)
    planned = plan.apply(step, donate_argnums=(0, 1))

    with pytest.raises(PlanMismatchError, match="in another memory") as refused:
        jax.jit(planned)(weights, state, x)
    assert "plan.apply(step, donate_argnums=...)" in str(refused.value)

    before = state[0].mu[0]
    got = planned(weights, state, x)
    assert before.is_deleted(), "the old array is on the device no longer"
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), got, expected)
    assert {leaf.sharding.memory_kind for leaf in got[1][0].mu} == {"pinned_host"}
    again = planned(*got[:2], x)
    assert {leaf.sharding.memory_kind for leaf in again[1][0].nu} == {"pinned_host"}
    under_jit = jax.jit(planned)(*again[:2], x)
    assert {leaf.sharding.memory_kind for leaf in under_jit[1][0].nu} == {"pinned_host"}
