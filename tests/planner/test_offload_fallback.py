"""A plan that offloads is measured beside one that only recomputes; what the compiler says decides."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt import Planner, Policy
from jaxckpt.solve import Offloading
from tests.planner.solved import not_compiled
from tests.planner.test_batches import FakePlanner
from tests.planner.test_planner import needs_compiler

pytestmark = pytest.mark.usefixtures("no_local_search")

WIDTH, LAYERS = 1024, 8
ARGS = ([jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * LAYERS, jax.ShapeDtypeStruct((8192, WIDTH), jnp.float32))
BUDGET = 280 * 2**20


def step(weights, x):
    def loss(weights):
        y = x
        for w in weights:
            y = jnp.tanh(y @ w)
        return jnp.sum(y)

    return jax.grad(loss)(weights)


class Priced(FakePlanner):
    """Its compiler says what each kind of plan takes."""

    hosted_s = alone_s = 1.0

    def step_s_with_stalls(self, candidate):
        return self.hosted_s if candidate.plan.offloads else self.alone_s


@pytest.fixture(scope="module")
def solved(no_local_search):
    """The planner whose solver the others share."""
    offloading = Offloading(bandwidth_bytes_per_s=1e13)
    planner = Priced(step, *ARGS, target="h200", allow=("recompute", "offload"), offload=offloading)
    assert planner.solver and planner.recompute_only
    return planner


@pytest.mark.parametrize("hosted_s", [0.5, 2.0])
def test_the_one_that_compiles_to_less_time_is_returned(hosted_s, solved):
    planner = not_compiled(solved, hosted_s=hosted_s)
    assert planner.solver.solve(BUDGET - planner.fixed_bytes).offloads
    found = planner.plan(budget=BUDGET)
    assert found.offloads == (hosted_s < 1)
    assert {candidate.plan.offloads for candidate in planner.compiled_plans()} == {True, False}
    assert len(found.attempts) >= 2


def test_without_leave_to_offload_nothing_is_measured_twice():
    planner = FakePlanner(step, *ARGS, target="h200")
    assert not planner.plan(budget=BUDGET).offloads
    assert "recompute_only" not in vars(planner)


@needs_compiler
def test_seconds_of_a_plan_wait_for_the_link_of_the_options():
    """Not for that of the target, whose waits a footprint has: no copy of this step is complete in time over 1 GB/s."""
    policy = Policy.from_toml('default = "save"\n[[rule]]\nprimitive = "tanh"\ndecision = "offload"\n')
    weights, x = [jax.ShapeDtypeStruct((256, 256), jnp.float32)] * 3, jax.ShapeDtypeStruct((8192, 256), jnp.float32)
    link = Offloading(bandwidth_bytes_per_s=1e9)
    plan = Planner(step, weights, x, target="h200", allow=("recompute", "offload"), offload=link).follow(policy)
    assert plan.offloads
    assert plan.estimated_step_s > plan.footprint.estimated_step_s
