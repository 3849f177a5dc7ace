"""The largest batch that fits and the fastest one, with few compiles."""

import re

import jax
import jax.numpy as jnp
import pytest

import jaxckpt
from jaxckpt import _compilers
from jaxckpt._errors import BatchError, BudgetError, InfeasibleBudgetError, MissingPackageError, StepReferenceError
from jaxckpt._progress import silent
from jaxckpt.compiler import Footprint
from jaxckpt.machine import Target
from jaxckpt.planner import Planner, batch_search
from jaxckpt.planner.options import PlanOptions
from jaxckpt.planner.planner import CompiledPlan
from jaxckpt.report import batches_report, render_text
from tests.planner.test_planner import needs_compiler, step

pytestmark = pytest.mark.usefixtures("no_local_search")

WEIGHTS = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * 8


def make_step(batch):
    return {"step": step, "args": (WEIGHTS, jax.ShapeDtypeStruct((batch, 64), jnp.float32)), "donate_argnums": 0}


def make_shallow_step(batch):
    """For searches in which every batch that is tried is solved."""
    return {**make_step(batch), "args": (WEIGHTS[:4], jax.ShapeDtypeStruct((batch, 64), jnp.float32))}


class FakePlanner(Planner):
    """Its compiler is the model, off by a factor."""

    off = 1.0

    def measure(self, plan):
        expected = plan.prediction
        self._footprints[plan] = Footprint(
            argument_bytes=expected.argument_bytes,
            output_bytes=expected.output_bytes,
            alias_bytes=0,
            temp_bytes=int(type(self).off * expected.temp_bytes),
            step_s=expected.step_s,
        )
        return CompiledPlan(plan, self._footprints[plan])


@pytest.fixture
def modelled(monkeypatch):
    def with_error(off):
        monkeypatch.setattr(batch_search, "Planner", type("Off", (FakePlanner,), {"off": off}))
        monkeypatch.setattr(Target, "require_compiler", lambda target: None)

    with_error(1.0)
    return with_error


@pytest.fixture(scope="module")
def sentences():
    """What the search reports on its way."""
    return []


@pytest.fixture(scope="module")
def found(sentences):
    return jaxckpt.max_batch(make_step, target="h200", budget="16MiB", multiples_of=256, progress=sentences.append)


@needs_compiler
def test_the_largest_batch_fits_and_the_next_one_does_not(found):
    assert found.plan.footprint.total_bytes <= found.budget_bytes == 16 * 2**20
    assert found.batch % 256 == 0
    following = make_step(found.batch + 256)
    planner = Planner(following["step"], *following["args"], target="h200", donate_argnums=0)
    with pytest.raises(InfeasibleBudgetError):
        planner.plan(budget=found.budget_bytes)


@needs_compiler
def test_few_batches_are_compiled(found):
    assert sum(each.compiled for each in found.tried) <= 5
    assert found.compiles <= 14
    assert {found.largest, found.fastest} <= set(found.tried)


@needs_compiler
def test_progress_names_the_batch_and_the_prediction(found, sentences):
    batches = {int(re.match(r"batch (\d+): ", sentence)[1]) for sentence in sentences}
    assert batches == {each.batch for each in found.tried}
    compiles = [sentence for sentence in sentences if sentence.endswith("compiling for h200")]
    assert len(compiles) == found.compiles
    assert all("predicted for a budget of 16 MiB" in sentence for sentence in compiles)


def test_a_target_without_a_compiler_is_refused_before_a_step_is_made(monkeypatch):
    monkeypatch.setattr(_compilers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="libtpu"):
        jaxckpt.max_batch(lambda batch: pytest.fail("the step was made"), target="v5e:1x1")


@needs_compiler
def test_the_fastest_batch_has_the_highest_planned_throughput(found):
    planned = [each for each in found.tried if each.plan is not None]
    assert found.fastest.items_per_s == max(each.items_per_s for each in planned)
    for each in planned:
        assert each.fits and each.compiled
        assert each.plan.footprint.total_bytes <= found.budget_bytes
        assert each.items_per_s == pytest.approx(each.batch / each.plan.footprint.step_s)


@needs_compiler
def test_the_report_shows_every_batch_and_how_sure_it_is(found):
    lines = render_text(batches_report(found)).splitlines()
    rows = [line.split() for line in lines if line.split()[1:2] in (["yes"], ["no"])]
    assert [int(row[0]) for row in rows] == [each.batch for each in found.tried]
    assert [row[2] for row in rows] == ["compiler" if each.compiled else "model" for each in found.tried]
    assert "Only multiples of 256 were tried." in "\n".join(lines)
    assert "Batches tried" in found._repr_html_()


@pytest.mark.parametrize(("off", "budget", "multiple"), [(0.7, 5_000_000, 61), (1.3, 40_000_000, 97)])
def test_the_largest_batch_is_found_with_a_model_off_by_a_factor(off, budget, multiple):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_search, "Planner", type("Off", (FakePlanner,), {"off": off}))
        patch.setattr(Target, "require_compiler", lambda target: None)
        found = jaxckpt.max_batch(make_shallow_step, target="h200", budget=budget, multiples_of=multiple)

    def smallest(batch):
        made = make_shallow_step(batch)
        planner = FakePlanner(made["step"], *made["args"], target="h200", donate_argnums=0)
        plans = planner.solver.min_memory_plans
        return planner.fixed_bytes + min(int(off * plan.prediction.temp_bytes) for plan in plans)

    assert found.batch % multiple == 0
    assert found.plan.footprint.total_bytes <= budget
    assert smallest(found.batch) <= budget < smallest(found.batch + multiple)
    assert len(found.tried) <= 30


def test_without_a_budget_it_is_the_memory_of_the_device(modelled):
    def large(batch):
        return step, (
            [jax.ShapeDtypeStruct((8192, 8192), jnp.float32)] * 2,
            jax.ShapeDtypeStruct((batch, 8192), "float32"),
        )

    found = jaxckpt.max_batch(large, target="h200", multiples_of=8192)
    memory_bytes = Target("h200").memory_bytes
    assert found.budget_bytes == memory_bytes
    assert 0.9 * memory_bytes < found.plan.footprint.total_bytes <= memory_bytes
    half = jaxckpt.max_batch(large, target="h200", budget=0.5, multiples_of=8192)
    assert half.budget_bytes == memory_bytes // 2
    assert half.batch < found.batch


def test_a_batch_that_cannot_be_is_refused_with_the_smallest(modelled):
    with pytest.raises(InfeasibleBudgetError) as caught:
        jaxckpt.max_batch(make_step, target="h200", budget="1500KiB", multiples_of=4096)
    assert caught.value.__notes__ == ["with the smallest batch, 4096"]


def test_memory_that_does_not_grow_is_refused(modelled):
    with pytest.raises(BatchError, match="does not grow with the batch"):
        jaxckpt.max_batch(lambda batch: make_step(128), target="h200", budget="16MiB")


def test_memory_that_stops_growing_is_refused(modelled):
    with pytest.raises(BatchError, match="does not grow with the batch"):
        jaxckpt.max_batch(lambda batch: make_step(min(batch, 4096)), target="h200", budget="16MiB")


@pytest.mark.parametrize("multiple", [10, 100])
def test_a_step_that_pads_its_batch_has_a_largest_one(modelled, multiple):
    found = jaxckpt.max_batch(lambda batch: make_step(512 * (1 + batch // multiple)), target="h200", budget="4MiB")
    assert found.batch % multiple == multiple - 1


@pytest.mark.parametrize("multiple", [0, -8, 2.0, True])
def test_multiples_of_nothing_are_refused(multiple):
    with pytest.raises(BatchError, match="multiples_of=8"):
        jaxckpt.max_batch(make_step, target="h200", multiples_of=multiple)


def test_what_is_no_budget_is_refused():
    with pytest.raises(BudgetError, match='"6GiB"'):
        jaxckpt.max_batch(make_step, target="h200", budget="6 apples")


@pytest.mark.parametrize(
    "returned", [3, (step,), {"step": step, "arguments": ()}], ids=["a number", "no arguments", "a misspelt key"]
)
def test_a_function_that_returns_no_step_is_refused(returned, modelled):
    with pytest.raises(StepReferenceError, match=r"lambda>\(1\) is no step"):
        jaxckpt.max_batch(lambda batch: returned, target="h200", budget="1GiB")


def test_the_users_own_exception_comes_out_untouched(modelled):
    def broken(batch):
        raise RuntimeError(f"no batch {batch}")

    with pytest.raises(RuntimeError, match="no batch 1"):
        jaxckpt.max_batch(broken, target="h200", budget="1GiB")


def test_few_batches_are_solved_for_their_smallest_plan(modelled):
    """The plan of one batch is predicted for the others; the batch above the largest one is solved for itself."""
    limit_bytes = 16 * 2**20
    searcher = batch_search._BatchSearcher(make_step, Target("h200"), limit_bytes, 256, PlanOptions(), silent)
    above = searcher.run().batch // 256 + 1
    assert len(searcher.smallest) < len(searcher.planners) // 2
    assert searcher.smallest[above].predicted.total_bytes > limit_bytes
    for count in searcher.planners.keys() - searcher.smallest.keys():
        least = min(plan.predicted.total_bytes for plan in searcher.planner(count).min_memory_plans)
        assert sum(searcher._smallest(count)) == pytest.approx(least, rel=0.02)
