"""The harness for an attached device, run on the processor: its flow, files and arithmetic; never the seconds."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks.attached import findings, parent, tables, workers
from benchmarks.attached.__main__ import options_from, summary
from benchmarks.attached.headline import is_out_of_memory, line_meets, plan_headline, run_case, run_headline
from benchmarks.attached.planning import plan_file, plan_group, rows_of_kernels
from benchmarks.attached.questions import ASCENDING, BY_HAND, FEW, NONE, OFFLOAD, ORDER, PLANS, Group, group, groups
from benchmarks.attached.regression import TimedStep
from benchmarks.attached.running import is_ready, run_group
from benchmarks.attached.starting import differences, gradient_places, keep_sample, sample_of, start_of
from benchmarks.attached.store import HEADLINE, Store, read_result, write_result
from benchmarks.attached.strangers import RULES
from benchmarks.models import MODELS
from benchmarks.strangers import STRANGERS
from benchmarks.strangers.rules import BASELINES, POLICIES
from benchmarks.tables import filled
from jaxckpt import Target
from jaxckpt.hlo import Kernel
from jaxckpt.machine import Calibration, toml_from_calibration

SMALL = {**MODELS["gpt2-small"].small(), "layers": 1}


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """One model asked about two versions, in this process."""
    store = Store(folder=tmp_path_factory.mktemp("store"))
    one = Group(model="gpt2-small", sizes=SMALL, versions=("plan-least", NONE))
    workers.calibrate_device(store, seconds=0.5, small=True)
    plan_group(one, store, Target("cpu"))
    run_group(one, store, Target("attached"), deadline=time.time() + 300)
    return store


@pytest.mark.slow
def test_every_version_has_all_its_answers(asked):
    parts = asked.merged()
    assert [path for path, part in parts.items() if "error" in part] == []
    for version in ("plan-least", NONE):
        measured = parts[f"measured/gpt2-small/{version}"]
        assert measured["measured_s"] > 0 and measured["total_bytes"] > 0 and measured["kernels"]
        assert parts[f"predicted/gpt2-small/{version}"]["total_bytes"] > 0
    assert parts["predicted/gpt2-small/plan-least"]["predicted_bytes"] > 0
    assert set(parts) >= {"device", "calibration"}


@pytest.mark.slow
def test_gradients_of_a_plan_are_those_of_the_step(asked):
    parts = asked.merged()
    assert parts["compared/gpt2-small/again"]["gradients"] == 0.0
    compared = parts["compared/gpt2-small/plan-least"]
    assert compared["gradients"] < 0.02 and compared["loss"] < 0.01 and compared["finite"]


@pytest.mark.slow
def test_what_is_answered_is_not_asked_again(asked, monkeypatch):
    monkeypatch.setattr("benchmarks.attached.running.measured", None)
    monkeypatch.setattr("benchmarks.attached.planning.planned", None)
    one = Group(model="gpt2-small", sizes=SMALL, versions=("plan-least", NONE))
    plan_group(one, asked, Target("cpu"))
    run_group(one, asked, Target("attached"), deadline=time.time() + 60)


@pytest.mark.slow
def test_versions_by_hand_and_offloaded_give_the_same_gradients(tmp_path):
    store, one = Store(folder=tmp_path), Group(model="gpt2-small", sizes=SMALL, versions=(OFFLOAD, "names", NONE))
    plan_group(one, store, Target("cpu"))
    run_group(one, store, Target("attached"), deadline=time.time() + 300)
    for version in (OFFLOAD, "names"):
        assert store.get("compared", "gpt2-small", version)["gradients"] < 0.02
    assert plan_file(store, "gpt2-small", OFFLOAD).exists()


@pytest.mark.slow
def test_a_step_of_the_battery_is_asked_with_its_rules(tmp_path):
    store, one = Store(folder=tmp_path), group("dropout-mlp-2", small=True, whole=False)
    assert one.versions == ("plan-at-every:2", "every:2", NONE)
    plan_group(one, store, Target("cpu"))
    run_group(one, store, Target("attached"), deadline=time.time() + 300)
    parts = store.merged()
    assert not list(findings.failures(parts))
    assert parts["compared/dropout-mlp-2/plan-at-every:2"]["gradients"] < 0.02
    rule, plan = (parts[f"predicted/dropout-mlp-2/{version}"] for version in ("every:2", "plan-at-every:2"))
    assert plan["budget_bytes"] == rule["total_bytes"]


def test_steps_of_the_battery_have_ten_families_and_more_and_known_rules():
    assert len({STRANGERS[name].family for name in RULES}) >= 10
    assert {rule for rules in RULES.values() for rule in rules} <= {*POLICIES, *BASELINES}


@pytest.mark.slow
def test_a_batch_is_planned_without_the_device_and_run_with_it(tmp_path):
    store = Store(folder=tmp_path)
    plan_headline(store, Target("cpu"), limit_bytes=2**21, small=True)
    run_headline(store, Target("attached"), small=True, deadline=time.time() + 300)
    batches = store.get("headline", "batches")
    assert batches["planned"] > 0 and batches["unplanned"] > 0
    assert store.get("headline", "planned")["ran"] and store.get("headline", "planned")["items_per_s"] > 0


@pytest.mark.slow
def test_one_command_asks_and_tells_all(tmp_path):
    command = [sys.executable, "-m", "benchmarks.attached", "--small", "--seconds", "300", "--models", "gpt2-small"]
    made = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True, check=True)
    assert "smoke test" in made.stdout and "holds" not in made.stdout
    assert {"attached.json", "attached.md", "cpu.toml"} <= {path.name for path in tmp_path.iterdir()}


def test_out_of_memory_is_an_answer_and_another_error_is_not(tmp_path, monkeypatch):
    def refused(message):
        def compile_step(*_, **__):
            raise RuntimeError(message)

        return compile_step

    monkeypatch.setattr("benchmarks.attached.headline.compile_step", refused("RESOURCE_EXHAUSTED: Out of memory"))
    found = run_case(Store(folder=tmp_path), Target("cpu"), "unplanned", 2, small=True)
    assert found["out_of_memory"] and not found["ran"] and found["batch"] == 2
    monkeypatch.setattr("benchmarks.attached.headline.compile_step", refused("INTERNAL: ptxas"))
    with pytest.raises(RuntimeError, match="ptxas"):
        run_case(Store(folder=tmp_path), Target("cpu"), "unplanned", 2, small=True)


@pytest.mark.slow
def test_tables_and_rates_follow_from_the_answers(asked, tmp_path):
    path = tmp_path / "attached.json"
    write_result(
        path, made_for={"small": True}, made_with={"versions": {"jax": "1"}, "date": "today"}, parts=asked.merged()
    )
    data = json.loads(path.read_text())
    made = tables.tables(data)
    assert tables.SMOKE in made["made"] and "| gpt2-small | plan-least |" in made["memory"]
    assert made["seconds"].count("gpt2-small") == 2 and "Median error" in made["fit"]
    fitted = findings.fitted_calibration(data["parts"])
    assert "fitted to 2 timed steps of gpt2-small" in fitted.source
    lines = summary(data["parts"], small=True)
    assert not any(line.startswith(("holds", "FAILS")) for line in lines), "a smoke test shows nothing"


def test_the_page_has_a_place_for_every_table():
    filled(tables.PAGE.read_text(), tables.tables(None))


def test_the_page_says_what_the_kept_result_says():
    data = json.loads(tables.RESULT.read_text()) if tables.RESULT.exists() else None
    assert filled(tables.PAGE.read_text(), tables.tables(data)) == tables.PAGE.read_text()
    assert filled(tables.README.read_text(), {"measured": tables.readme_sentences(data)}) == tables.README.read_text()


### What is asked


def test_the_first_model_has_every_version_and_all_can_be_made():
    asked_groups = list(groups(small=True))
    assert asked_groups[0].versions == ASCENDING and asked_groups[0].model == ORDER[0]
    assert set(ASCENDING) == {*BY_HAND, *PLANS, OFFLOAD} and set(FEW) <= set(ASCENDING)
    assert all(NONE in each.versions for each in asked_groups)
    assert "names" not in group("bilstm", small=True, whole=True).versions


def test_planners_share_all_versions_and_none_is_planned_twice():
    whole = list(groups(("gpt2-small", "gcn"), small=True))
    jobs = [(name, each.versions) for name, each in workers.planning_jobs(whole, headline=True) if each is not None]
    assert jobs[0] == ("first", (NONE, "plan-least")) and jobs[-1] == ("gcn", whole[1].versions)
    assert sorted(v for _, versions in jobs[:-1] for v in versions) == sorted(whole[0].versions)
    names = [name for name, _ in workers.planning_jobs(whole, headline=True)]
    assert len(set(names)) == len(names) and names.index("headline") < names.index("by-hand")


### Where answers are


def test_a_run_goes_on_with_what_an_earlier_one_found(tmp_path):
    path, made_for = tmp_path / "attached.json", {"target": "h200", "small": False}
    parts = {"measured/a/none": {"x": 1}, "measured/a/dots": {"error": "no"}, "device": {"device_kind": "X"}}
    write_result(path, made_for=made_for, made_with={}, parts=parts)
    store = Store(folder=tmp_path / "scratch")
    store.unpack(read_result(path, made_for=made_for))
    assert store.has("measured", "a", "none") and not store.has("measured", "a", "dots"), "what failed is asked again"
    assert read_result(path, made_for={"target": "h200", "small": True}) == {}
    assert read_result(tmp_path / "none.json", made_for=made_for) == {}


def test_what_fails_is_an_answer_and_the_rest_goes_on(tmp_path, capsys):
    store = Store(folder=tmp_path)

    def fail():
        raise ValueError("no such kernel\nand more")

    assert "no such kernel" in store.record("measured", "a", "dots", make=fail)["error"]
    assert store.record("measured", "a", "none", make=lambda: {"x": 1}) == {"x": 1}
    assert dict(findings.failures(store.merged())) == {"measured/a/dots": "ValueError: no such kernel"}
    assert "failed: ValueError: no such kernel" in capsys.readouterr().out


def test_a_job_is_one_planners(tmp_path):
    store = Store(folder=tmp_path)
    assert store.claim("plan", "a") and not store.claim("plan", "a") and store.claim("plan", "b")


def test_a_plan_is_waited_for_and_one_that_failed_is_not(tmp_path):
    store, one = Store(folder=tmp_path), group("gpt2-small", small=True, whole=True)
    assert is_ready(store, one, "dots") and not is_ready(store, one, "plan-60")
    store.put("predicted", one.model, "plan-60", part={"error": "no"})
    assert is_ready(store, one, "plan-60")


def test_answers_of_another_device_are_not_mixed(tmp_path):
    store = Store(folder=tmp_path)
    store.put("device", part={"device_kind": "NVIDIA H200"})
    with pytest.raises(SystemExit) as caught:
        workers.calibrate_device(store, seconds=1.0, small=True)
    assert caught.value.code == parent.OTHER_DEVICE
    assert store.get("device") == {"device_kind": "NVIDIA H200"} and not store.has("calibration")


### Starting and comparing


def test_a_start_is_what_a_step_takes_and_has_known_gradients():
    made = MODELS["resnet50"].step(**MODELS["resnet50"].small())
    start = start_of(made)
    for leaf, spec in zip(*map(_leaves, (start, made.args)), strict=True):
        assert (leaf.shape, leaf.dtype) == (spec.shape, spec.dtype)
    places = gradient_places(made)
    assert len(places) == len(_leaves(made.args[0]["params"])) and all(".trace" in path for path in places.values())


def test_one_wrong_number_is_seen(tmp_path):
    results = [np.ones((64, 64), np.float32), np.float32(2.0)]
    wrong = [results[0].copy(), np.float32(2.0)]
    wrong[0][5, 5] = 9.0
    for name, each in (("one", results), ("other", wrong)):
        keep_sample(tmp_path / f"{name}.npz", sample_of(each, {0: ".mu"}))
    found = differences(tmp_path / "other.npz", tmp_path / "one.npz")
    assert found["gradients"] == pytest.approx(8 / 64) and found["loss"] == 0.0 and found["worst_gradient_of"] == ".mu"
    assert differences(tmp_path / "one.npz", tmp_path / "one.npz")["gradients"] == 0.0


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)


### The parent


def options(tmp_path, **more):
    given = options_from([], device=False, scratch=tmp_path / "scratch")
    return parent.Options(
        **{**{f: getattr(given, f) for f in parent.Options.__slots__}, "out": tmp_path / "out", **more}
    )


def test_without_a_device_it_is_a_smoke_test(tmp_path):
    assert options_from([], device=False, scratch=tmp_path).small
    whole = options_from([], device=True, scratch=tmp_path)
    assert not whole.small and whole.target == "h200" and whole.models == ORDER and whole.calibrate_s == 60.0


def test_planners_see_no_device_and_the_device_gets_its_memory(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    planner = parent.planner_environment()
    assert planner["JAX_PLATFORMS"] == "cpu" and planner["CUDA_VISIBLE_DEVICES"] == ""
    device = parent.device_environment(device=True)
    assert "JAX_PLATFORMS" not in device and float(device["XLA_PYTHON_CLIENT_MEM_FRACTION"]) < 1
    assert parent.device_environment(device=False)["JAX_PLATFORMS"] == "cpu"


def test_the_headline_comes_where_it_stands_among_the_models(tmp_path):
    names = [job.name for job in parent.jobs(options(tmp_path, models=("a", "b", HEADLINE, "c")))]
    assert names == ["calibrate", "run a", "run b", "headline", "run c"]
    assert [each.model for each in groups(("gcn", HEADLINE, "llama"), small=True)] == ["gcn", "llama"]


def test_a_turn_goes_to_what_has_all_it_needs(tmp_path):
    made = options(tmp_path, models=("a", HEADLINE, "b"))
    run = parent.Run(options=made, store=Store(folder=made.scratch), begun=0.0)
    calibrate, _, headline, second = all_jobs = list(parent.jobs(made))
    assert run.next(all_jobs, all_jobs) == calibrate
    assert run.next([headline, second], all_jobs) == second, "no batches are known yet"
    run.store.put("headline", "batches", part={"planned": 8})
    assert run.next([headline, second], all_jobs) == headline


def test_plans_that_came_late_have_another_turn(tmp_path):
    made = options(tmp_path, models=("a", "b"))
    run = parent.Run(options=made, store=Store(folder=made.scratch), begun=0.0)
    _, first, second = all_jobs = list(parent.jobs(made))
    run.store.put("predicted", "a", "plan-60", part={})
    run.store.put("predicted", "b", "plan-60", part={})
    assert run.next([second], all_jobs) == second, "one plan alone is not worth a start"
    assert run.next([], [first, second]) == first, "unless there is nothing else"
    run.store.put("predicted", "a", "plan-80", part={"error": "no"})
    assert run.next([second], all_jobs) == first
    run.ready["run a"] = frozenset(("plan-60", "plan-80"))
    assert run.next([second], all_jobs) == second, "its plans were there, and its time was up"
    assert run.next([], [first]) == first, "it goes on when all others had their turn"
    run.ready.clear()
    run.turns["run a"] = 3
    assert run.next([second], all_jobs) == second, "a version that brings its process down has had its turns"
    run.turns.clear()
    for version in ("plan-60", "plan-80"):
        run.store.put("measured", "a", version, part={})
    assert run.next([second], all_jobs) == second


def test_a_later_run_starts_no_worker_for_a_model_that_has_all_answers(tmp_path):
    made = options(tmp_path, models=("a", "b"))
    run = parent.Run(options=made, store=Store(folder=made.scratch), begun=0.0)
    calibrate, first, _ = parent.jobs(made)
    run.store.put("predicted", "a", NONE, part={})
    assert not run.is_answered(first) and not run.is_answered(calibrate)
    run.store.put("measured", "a", NONE, part={"error": "out of memory"})
    assert run.is_answered(first)
    run.store.put("notes", "run-a", part={"note": "stopped"})
    run.store.forget_failures()
    assert not run.is_answered(first) and set(run.store.keys()) == {("predicted", "a", NONE)}


def hanging(run, name, arguments, environment, **_):
    """A worker that never ends."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run.children.append(child)
    return child


def test_a_hanging_worker_is_stopped_and_known_results_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(parent.Run, "start", hanging)
    finished = []
    made = options(tmp_path, seconds=3.0, models=("a", "b"))
    Store(folder=made.scratch).put("measured", "a", "none", part={"x": 1})
    begun = time.monotonic()
    parent.run(made, finish=finished.append, device=False)
    assert time.monotonic() - begun < 20 and finished == [made]
    data = json.loads((made.out / parent.RESULT).read_text())
    assert data["parts"]["measured/a/none"] == {"x": 1}
    assert any("stopped" in part.get("note", "") for part in data["parts"].values())


def test_a_worker_that_fails_leaves_its_last_words(tmp_path, monkeypatch):
    def failing(run, name, arguments, environment, **_):
        run.log(name).write_text("Traceback\nRuntimeError: no device")
        run.children.append(subprocess.Popen([sys.executable, "-c", "raise SystemExit(1)"]))
        return run.children[-1]

    monkeypatch.setattr(parent.Run, "start", failing)
    made = options(tmp_path, seconds=30.0, models=("a",))
    parent.run(made, finish=lambda _: None, device=False)
    notes = dict(findings.failures(json.loads((made.out / parent.RESULT).read_text())["parts"]))
    assert notes["notes/calibrate"] == "RuntimeError: no device"


### What follows


def row(version, total, seconds, **more):
    measured = {"total_bytes": total, "measured_s": seconds, "step_s": seconds, **more}
    return {f"measured/m/{version}": measured}


def test_a_plan_is_compared_with_the_best_by_hand_of_its_memory():
    parts = {**row("plan-60", 100, 1.0), **row("dots", 104, 0.9), **row(NONE, 200, 0.5), **row("names", 50, 2.0)}
    ((plan, best),) = findings.at_equal_memory(parts)
    assert (plan.version, best.version) == ("plan-60", "dots")
    found = {claim: holds for claim, _, holds in findings.verdicts(parts)}
    assert found["no plan slower than the best by hand of its memory"] is False


def test_a_plan_at_the_total_of_a_rule_is_compared_with_the_rule():
    parts = {**row("plan-at-dots", 100, 1.0), **row("dots", 110, 0.9), **row("every:2", 110, 0.8)}
    ((_, best),) = findings.at_equal_memory(parts)
    assert best.version == "dots", "which takes more on the device than without it"


def test_a_slowdown_is_told_beside_that_of_the_best_by_hand():
    parts = {**row("plan-60", 60, 1.04), **row("dots", 58, 1.2), **row(NONE, 100, 1.0)}
    ((_, ratio, by_hand),) = findings.slowdowns(parts, "plan-60")
    assert (ratio, by_hand) == (1.04, 1.2)
    assert list(findings.slowdowns({**parts, **row("plan-60", 90, 1.0)}, "plan-60")) == [], "it had no such memory"


def test_memory_errors_name_where_they_come_from():
    parts = {
        **row(NONE, 110, 1.0, temp_bytes=80, program_bytes=5, peak_by_role={"workspace": 12}),
        "predicted/m/none": {"total_bytes": 100, "temp_bytes": 75, "peak_by_role": {"workspace": 2}},
    }
    (found,) = findings.rows(parts)
    assert found.memory_error == pytest.approx(-1 / 11)
    assert found.causes == {"workspace, of temp": 10, "temp": 5, "program": 5}


def test_pairs_within_the_noise_do_not_count_in_a_ranking():
    steps = [TimedStep(name=n, group="g", kernels=(), measured_s=s) for n, s in (("a", 1.0), ("b", 1.001), ("c", 2.0))]
    assert findings.ranking([1.0, 0.9, 0.95], steps) == (1, 2)


def test_the_hidden_share_is_that_of_copies_both_ways():
    toml = toml_from_calibration(
        Calibration(
            device_kind="X", platform="cuda", driver="", date="", source="", host_bandwidth_bytes_per_s=1e9
        )
    )  # fmt: skip
    parts = {**row(OFFLOAD, 1, 1.1), **row("nothing_saveable", 2, 1.0), "calibration": {"toml": toml}}
    parts["predicted/m/offload"] = {"offloaded_bytes": 5 * 10**8}
    ((_, copy_s, hidden),) = findings.hidden(parts)
    assert copy_s == 1.0 and hidden == pytest.approx(0.9)


def test_a_peak_counts_only_where_it_rose():
    parts = row(NONE, 1, 1.0, peak_is_its_own=False, memory_after={"peak_bytes_in_use": 7})
    assert next(findings.rows(parts)).peak_bytes is None
    parts["measured/m/none"]["peak_is_its_own"] = True
    assert next(findings.rows(parts)).peak_bytes == 7


def test_versions_without_the_autotuner_stand_beside_those_with_it_and_in_no_verdict():
    parts = {**row(NONE, 110, 1.0), "untuned/m/none": {"total_bytes": 100, "measured_s": 2.0, "step_s": 1.0}}
    assert "| m | none |  | 100 B | 110 B | 2000.00 | 1000.00 |" in list(tables.untuned_table(parts))
    assert len(list(findings.rows(parts))) == 1


def test_nothing_measured_is_said_to_be_nothing():
    assert all(holds is None and not found for _, found, holds in findings.verdicts({}))
    assert set(tables.tables(None).values()) == {tables.NOT_YET}


def test_kernels_that_do_the_same_are_one_row():
    kernels = tuple(Kernel(name=f"add.{i}", opcode="fusion", traffic_bytes=8, count=i) for i in (1, 2))
    rows = rows_of_kernels(
        (*kernels, Kernel(name="dot", opcode="dot", matmul_flops=5, flops=5, matmul_dtype="bfloat16"))
    )
    assert len(rows) == 2 and rows[0][-1] == 3


@pytest.mark.parametrize(
    ("names", "target"),
    [
        ("NVIDIA H100 80GB HBM3\n", "h100"),
        ("NVIDIA H200\nNVIDIA H200\n", "h200"),
        ("A new one\n", "h200"),
        ("", "h200"),
    ],
)
def test_the_name_given_by_the_driver_chooses_the_target(names, target):
    assert parent.attached_target(lambda: names) == target


def test_lines_meet_limits_at_whole_multiples():
    assert line_meets(99, (8, 20), (16, 36), multiple=8) == 40
    assert line_meets(1, (8, 20), (16, 36), multiple=8) == 8
    with pytest.raises(ValueError, match="20 bytes at 16 are no more than 20 at 8"):
        line_meets(99, (8, 20), (16, 20), multiple=8)


def test_running_out_of_memory_is_told_from_other_errors():
    inner = RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5 bytes")
    outer = ValueError("it does not compile")
    outer.__cause__ = inner
    assert is_out_of_memory(inner) and is_out_of_memory(outer) and not is_out_of_memory(ValueError("shapes"))
