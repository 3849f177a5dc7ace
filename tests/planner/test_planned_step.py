"""`jaxckpt.jit`: a step planned when it is called, and its plans on disk; `load_or_plan`."""

import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxckpt
from jaxckpt import ArgumentError, PlanFileError, PlanOptions
from jaxckpt.machine import Target
from jaxckpt.planner.plan_cache import PlanCache, PlanQuestion
from jaxckpt.trace import trace_step
from tests.planner.test_planner import needs_compiler

ROOT = Path(__file__).parents[2]
WIDTH = 64


def step(weights, x):
    def loss(weights):
        hidden = x
        for w in weights:
            hidden = jnp.tanh(hidden @ w)
        return jnp.mean(hidden**2)

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), value


def arguments(batch=32):
    return [jnp.eye(WIDTH)] * 6, jnp.ones((batch, WIDTH))


LARGE = [jax.ShapeDtypeStruct((512, 512), "float32")] * 6, jax.ShapeDtypeStruct((8192, 512), "float32")


def jitted(folder, *, called=step, **options):
    """A planned step with all that it says."""
    said = []
    return jaxckpt.jit(called, cache=folder, progress=said.append, **options), said


def test_a_step_gives_its_own_results_and_has_a_plan(tmp_path):
    planned, _ = jitted(tmp_path)
    assert (planned.plan, planned.footprint) == (None, None)
    for ours, theirs in zip(*map(jax.tree.leaves, (planned(*arguments()), jax.jit(step)(*arguments()))), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert planned.plan.budget_bytes == int(0.95 * Target("attached").memory_bytes)
    assert planned.footprint is planned.plan.footprint
    assert planned.__name__ == "step"
    assert repr(planned) == f"PlannedStep(step, {planned.plan.strategy})"
    assert repr(planned.plan.apply(step)) == "PlannedFunction(step)"


@needs_compiler
def test_lower_plans_descriptions_and_runs_nothing(tmp_path):
    planned, _ = jitted(tmp_path, target="h200", budget="80%")
    assert "stablehlo" in planned.lower(*LARGE).as_text()
    assert planned.plan.footprint.total_bytes <= planned.plan.budget_bytes
    assert planned.plan.decisions


@needs_compiler
def test_the_next_run_reads_the_plan_and_compiles_nothing_for_it(tmp_path):
    first, said = jitted(tmp_path, target="h200", budget="80%")
    first.lower(*LARGE)
    assert any("compiling" in sentence for sentence in said)
    second, said = jitted(tmp_path, target="h200", budget="80%")
    second.lower(*LARGE)
    assert [sentence.rpartition(" ")[0] for sentence in said] == ["the plan is known from"]
    assert second.plan == first.plan


@needs_compiler
def test_a_step_may_be_planned_inside_a_jit(tmp_path):
    planned, _ = jitted(tmp_path, target="h200", budget="1GiB")
    mesh = jax.make_mesh((1,), ("data",))
    with jax.set_mesh(mesh):
        value = jax.jit(planned)(*arguments())[1]
    np.testing.assert_allclose(value, jax.jit(step)(*arguments())[1], rtol=1e-6)


def test_other_shapes_have_a_plan_of_their_own(tmp_path):
    planned, _ = jitted(tmp_path, strategy="full")
    planned(*arguments())
    first = planned.plan
    planned(*arguments(batch=16))
    assert planned.plan.strategy == first.strategy == "full"
    assert planned.plan.fingerprint != first.fingerprint
    planned(*arguments())
    assert planned.plan is first


def test_other_shapes_may_run_as_written(tmp_path):
    planned, _ = jitted(tmp_path, strategy="full", other_shapes="as_written")
    planned(*arguments())
    assert planned.plan.strategy == "full"
    planned(*arguments(batch=16))
    assert (planned.plan.strategy, planned.plan.decisions and set(map(type, planned.plan.decisions.values()))) in (
        ("none", {}),
        ("none", {jaxckpt.ir.Save}),
    )


@needs_compiler
def test_other_shapes_that_do_not_fit_as_written_are_planned(tmp_path):
    small = LARGE[0], jax.ShapeDtypeStruct((4096, 512), "float32")
    budget = jaxckpt.footprint(step, *LARGE, target="h200").total_bytes * 3 // 4
    planned, _ = jitted(tmp_path, target="h200", budget=budget, other_shapes="as_written")
    planned.lower(*small)
    planned.lower(*LARGE)
    assert planned.plan.strategy != "none"
    assert planned.footprint.total_bytes <= budget


def test_nnx_objects_are_updated_in_place(tmp_path):
    model = nnx.Sequential(*[nnx.Linear(8, 8, rngs=nnx.Rngs(0)) for _ in range(3)])
    optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)

    @jaxckpt.jit(cache=tmp_path)
    @nnx.jit
    def train(model, optimizer, x):
        value, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - 1) ** 2))(model)
        optimizer.update(model, gradients)
        return value

    values = [float(train(model, optimizer, jnp.ones((4, 8)))) for _ in range(3)]
    assert values[0] > values[1] > values[2]
    assert optimizer.step[...] == 3


def test_equinox_modules_come_back(tmp_path):
    module = eqx.nn.MLP(8, 8, 8, depth=2, key=jax.random.key(0))

    @jaxckpt.jit(cache=tmp_path)
    @eqx.filter_jit
    def train(module, x):
        value, gradients = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - 1) ** 2))(module)
        return eqx.apply_updates(module, jax.tree.map(lambda g: -0.1 * g, gradients)), value

    module, first = train(module, jnp.ones((4, 8)))
    assert train(module, jnp.ones((4, 8)))[1] < first


def test_methods_are_bound_to_their_object(tmp_path):
    class Trainer:
        rate = 0.1

        @jaxckpt.jit(cache=tmp_path, static_argnums=0)
        def train(self, w, x):
            return w - self.rate * jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(x @ w) @ w)))(w)

    w, x = jnp.eye(4), jnp.ones((2, 4))
    np.testing.assert_allclose(Trainer().train(w, x), Trainer.train.__wrapped__(Trainer(), w, x), rtol=1e-6)


### Plans on disk


def entry(folder):
    (path,) = folder.glob("*.toml")
    return path


@pytest.mark.parametrize("damage", ["", "not TOML [", "an edited number", "another step", "another budget"])
def test_a_damaged_or_foreign_entry_is_named_and_made_anew(tmp_path, damage):
    jitted(tmp_path / "a", strategy="full")[0](*arguments())
    path = entry(tmp_path / "a")
    good = path.read_text()
    if damage == "an edited number":
        damage = good.replace("argument_bytes = ", "argument_bytes = 1")
    elif damage.startswith("another"):
        changes = {"another step": (16, None), "another budget": (32, "1GiB")}
        batch, budget = changes[damage]
        jitted(tmp_path / "b", strategy="full", budget=budget)[0](*arguments(batch=batch))
        damage = entry(tmp_path / "b").read_text()
    path.write_text(damage)
    planned, said = jitted(tmp_path / "a", strategy="full")
    with pytest.warns(RuntimeWarning, match=str(path)):
        planned(*arguments())
    assert any("compiling" in sentence for sentence in said)
    with warnings.catch_warnings(action="error"):
        jitted(tmp_path / "a", strategy="full")[0](*arguments())


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    planned, _ = jitted(tmp_path / "file", strategy="full")
    with pytest.warns(RuntimeWarning, match="not kept"):
        planned(*arguments())
    assert planned.plan.strategy == "full"


def question(**changes):
    asked = PlanQuestion(
        traced=trace_step(step, *arguments()),
        target=Target("h200"),
        budget="1GiB",
        strategy="optimal",
        options=PlanOptions(),
    )
    return replace(asked, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"traced": trace_step(step, *arguments(), donate_argnums=0)},
        {"target": Target("h100")},
        {"budget": "2GiB"},
        {"strategy": "full"},
        {"options": PlanOptions(policy="dots")},
        {"options": PlanOptions(max_compiles=1)},
    ],
    ids=lambda changes: "".join(changes),
)
def test_what_the_plan_depends_on_is_in_the_key(changes):
    assert question(**changes).key != question().key


def test_other_versions_have_other_entries(monkeypatch):
    before = question().key
    assert question().key == before
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    assert question().key != before


def test_the_rules_of_a_policy_are_in_the_key_and_not_its_path_alone(tmp_path):
    path = tmp_path / "mine.toml"
    keys = set()
    for decision in ("save", "recompute"):
        path.write_text(f'name = "mine"\n[[rule]]\nprimitive = "tanh"\ndecision = "{decision}"\n')
        keys.add(question(options=PlanOptions(policy=path)).key)
    assert len(keys) == 2


@pytest.mark.parametrize("changed", ['default = "save"\n', '[regions]\nscope = "net"\nsegment = 2\n'])
def test_all_of_a_policy_file_is_in_the_key(tmp_path, changed):
    path = tmp_path / "mine.toml"
    rule, keys = '[[rule]]\nprimitive = "tanh"\ndecision = "save"\n', set()
    for before in ("", changed):
        path.write_text(f'name = "mine"\n{before}{rule}')
        keys.add(question(options=PlanOptions(policy=path)).key)
    assert len(keys) == 2


def test_the_default_folder_is_the_users_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert PlanCache().folder.is_relative_to(tmp_path)


PROGRAM = """
import pathlib, sys
import jaxckpt
from tests.planner.test_planned_step import arguments, step

planned = jaxckpt.jit(step, cache=sys.argv[1], strategy="full")
pathlib.Path(sys.argv[2]).touch()
planned(*arguments())
"""


def test_processes_that_start_at_once_and_one_that_is_killed_leave_a_good_entry(tmp_path):
    cache, ready = tmp_path / "cache", [tmp_path / name for name in "abc"]
    processes = [subprocess.Popen([sys.executable, "-c", PROGRAM, cache, path], cwd=ROOT) for path in ready]
    while not all(path.exists() for path in ready):
        assert {process.poll() for process in processes} <= {None, 0}
        time.sleep(0.01)
    processes[0].kill()
    assert [process.wait(timeout=240) for process in processes[1:]] == [0, 0]
    processes[0].wait()
    planned, said = jitted(cache, strategy="full")
    planned(*arguments())
    assert said == [f"the plan is known from {entry(cache)}"]


### Errors


def test_a_device_without_a_known_memory_needs_a_budget(monkeypatch, tmp_path):
    monkeypatch.setattr(Target, "memory_bytes", 0)
    planned, _ = jitted(tmp_path)
    with pytest.raises(ArgumentError, match='budget="16GiB"'):
        planned(*arguments())


def test_misspelt_options_are_refused_before_the_call():
    with pytest.raises(ArgumentError, match="max_compiles"):
        jaxckpt.jit(step, max_compile=2)
    with pytest.raises(ArgumentError, match="as_written"):
        jaxckpt.jit(step, other_shapes="as written")


### load_or_plan


def kept(path, *args, **options):
    options = {"budget": "1GiB", "target": "cpu", "strategy": "full", **options}
    return jaxckpt.load_or_plan(path, step, *(args or arguments()), **options)


def test_a_plan_is_made_once_and_read_then(tmp_path):
    path = tmp_path / "plan.toml"
    plan = kept(path)
    said = []
    assert kept(path, progress=said.append) == plan
    assert said == ["tracing the step"]


@pytest.mark.parametrize(
    "options", [{"donate_argnums": 0}, {"compiler_options": (("xla_embed_ir_in_executable", True),)}]
)
def test_a_plan_that_was_compiled_otherwise_is_compiled_again(tmp_path, options):
    path, said = tmp_path / "plan.toml", []
    plan = kept(path)
    assert kept(path, progress=said.append, **options).decisions == plan.decisions  # it is within the budget
    assert said == ["tracing the step", "compiling for cpu"]


@pytest.mark.parametrize(
    ("args", "options", "reason"),
    [
        (arguments(batch=16), {}, "other arguments"),
        ((), {"budget": "2GiB"}, "budget is 1.00 GiB"),
        ((), {"target": "cpu:8"}, "is for cpu"),
    ],
)
def test_a_plan_that_is_not_valid_any_more_is_made_anew(tmp_path, args, options, reason):
    path = tmp_path / "plan.toml"
    kept(path)
    with pytest.warns(RuntimeWarning, match=reason):
        made = kept(path, *args, **options)
    assert jaxckpt.load_plan(path) == made


def test_other_versions_compile_the_plan_once(tmp_path):
    path = tmp_path / "plan.toml"
    plan = kept(path)
    replace(plan, footprint=replace(plan.footprint, jax_version="0.9.0")).save(path)
    said = []
    assert kept(path, progress=said.append).footprint.jax_version == jax.__version__
    assert said == ["tracing the step", "compiling for cpu"]


def test_a_budget_in_bytes_is_the_one_that_the_plan_was_made_for(tmp_path):
    path = tmp_path / "plan.toml"
    total_bytes = kept(path, strategy="none").footprint.total_bytes
    for budget in (total_bytes + 1000, total_bytes + 500):
        with pytest.warns(RuntimeWarning, match="Its budget is"):
            made = kept(path, budget=budget, strategy="none")
        assert made.budget_bytes == budget


def test_a_plan_above_the_bytes_of_a_share_is_made_anew(tmp_path):
    """The step as written takes less than when the plan was made: so does the share."""
    path = tmp_path / "plan.toml"
    plan = kept(path, budget=1.0, strategy="none")
    grown = plan.budget_bytes + plan.budget_bytes // 200
    replace(
        plan, budget_bytes=grown, footprint=replace(plan.footprint, temp_bytes=plan.footprint.temp_bytes + 64)
    ).save(path)
    with pytest.warns(RuntimeWarning, match="above the budget"):
        made = kept(path, budget=1.0, strategy="none")
    assert made.footprint.total_bytes == plan.footprint.total_bytes


def test_a_file_that_is_no_plan_is_left_alone(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text("[tool]\n")
    with pytest.raises(PlanFileError):
        kept(path)
    assert path.read_text() == "[tool]\n"
