"""The benchmark of plans against policies: its arithmetic on made-up figures, its files, and the policies."""

import copy
import json
from contextlib import nullcontext
from math import sqrt

import jax
import numpy as np
import pytest

from benchmarks import frontier
from benchmarks.frontier import Kept, by_hand, may_offload, run_model, sizes_from
from benchmarks.frontier_pictures import draw
from benchmarks.frontier_tables import (
    byte_errors,
    comparisons,
    compiles,
    findings,
    mean_ratio,
    offload_table,
    our_plans,
    second_errors,
    slower_with_more,
    spread,
    summary_table,
)
from benchmarks.models import MODELS, PLANNER
from benchmarks.models.blocks import KEPT, naming, rematerialised

pytestmark = pytest.mark.usefixtures("no_local_search")

GIB = 2**30


def version(total, step_s):
    return {"total_bytes": total * GIB, "temp_bytes": (total - 1) * GIB, "step_s": step_s, "wall_s": 1.0}


def planned(total, step_s, *, budget, predicted=None, predicted_s=None, attempts=1):
    return version(total, step_s) | {
        "budget_bytes": budget * GIB,
        "predicted_bytes": (predicted or total) * GIB,
        "predicted_s": predicted_s or step_s,
        "gap": 0.01,
        "attempts": [{}] * attempts,
        "peak_by_role": {"residual": GIB},
    }


RESULT = {
    "made_for": {"model": "gcn", "sizes": {}},
    "made_with": {"date": "2026-01-01", "versions": {"jax": "0.12"}},
    "by_hand": {
        "no remat": version(10, 1.0),
        "nothing": version(4, 1.4),
        "dots": version(8, 1.1),
        "clumsy": version(9, 1.2),
        "larger": version(11, 1.5),
        "broken": {"error": "ValueError: no", "wall_s": 1.0},
    },
    "plans": {
        "optimal": {
            "smallest": version(3, 1.3) | {"predicted_bytes": 3 * GIB, "predicted_s": 1.3, "attempts": [{}]},
            "as nothing": planned(4, 1.2, budget=4, predicted=5, attempts=3),
            "as dots": planned(7, 1.05, budget=8, predicted_s=1.26, attempts=2),
            "as clumsy": planned(7, 1.05, budget=9, predicted_s=1.26),
        }
    },
}
RESULT["plans"]["optimal"]["smallest"]["peak_by_role"] = {"logits": GIB}


def result(**plans):
    changed = copy.deepcopy(RESULT)
    changed["plans"]["optimal"] |= plans
    return changed


def test_a_policy_is_compared_with_the_best_within_its_memory():
    found = {c.name: c for c in comparisons(RESULT)}
    assert list(found) == ["clumsy", "dots", "nothing"]  # what is larger than no remat is no policy to compare with
    assert found["clumsy"].best == "dots"
    assert found["clumsy"].ratio == pytest.approx(0.5)
    assert found["nothing"].ratio == pytest.approx(0.5)
    assert not any(c.is_above for c in found.values())


def test_the_mean_is_geometric_and_not_zero_with_a_free_plan():
    assert mean_ratio(comparisons(result(**{"as dots": planned(8, 1.08, budget=8)}))) == pytest.approx(
        (0.5 * 0.8 * 0.5) ** (1 / 3)
    )
    assert mean_ratio([]) is None
    free = [c for c in comparisons(result(**{"as dots": planned(8, 0.9, budget=8)})) if c.name in ("dots", "nothing")]
    assert mean_ratio(free) == pytest.approx(sqrt(0.1 * 0.5))


def test_policies_that_come_to_the_same_program_count_once():
    twice = result(**{"as twin": planned(7, 1.05, budget=8)})
    twice["by_hand"]["twin"] = version(8, 1.1)
    assert [c.name for c in comparisons(twice)] == ["clumsy", "dots", "nothing"]


def test_a_slower_plan_and_a_refused_one_are_listed():
    slower = result(**{"as dots": planned(8, 1.11, budget=8)})
    assert [c.name for c in comparisons(slower) if c.is_above] == ["dots"]
    assert any("at 8.00 GiB dots takes 1100.00 ms, our plan 1110.00 ms" in each for each in findings([slower]))
    refused = result(**{"as nothing": {"budget_bytes": 4 * GIB, "refused": True, "minimum_bytes": 5 * GIB}})
    (above,) = (c for c in comparisons(refused) if c.is_above)
    assert (above.name, above.ratio) == ("nothing", None)


def test_a_plan_that_is_slower_with_more_memory_is_listed():
    assert not list(slower_with_more(RESULT))
    ((plan, before),) = slower_with_more(result(**{"1/9": planned(5, 1.25, budget=5)}))
    assert (plan["step_s"], before["step_s"]) == (1.25, 1.2)


def test_errors_are_those_of_distinct_plans():
    assert len(our_plans(RESULT)) == 3  # one plan answers two totals
    assert byte_errors(RESULT) == pytest.approx([0.0, 0.25, 0.0])
    assert second_errors(RESULT) == pytest.approx([0.0, 0.0, 0.2])
    assert spread([0.01, -0.2, 0.1]) == "10.0%, worst -20.0%"
    assert sorted(compiles(RESULT)) == [1, 2, 3]
    assert [each for each in findings([RESULT]) if "broken" in each] == ["gcn: by hand broken: ValueError: no"]
    assert sum("was predicted" in each for each in findings([RESULT])) == 2


def test_the_table_says_it_in_a_row():
    (row,) = (line for line in summary_table([RESULT]).splitlines() if line.startswith("| gcn"))
    assert row == (
        "| gcn | 10.00 GiB, 1000.0 ms | 0.50 | 0 of 3 | 4.00 GiB | 3.00 GiB | 0.0%, worst +25.0%"
        " | 0.0%, worst +20.0% | 1.0% | 2 |"
    )


def test_an_unfinished_file_has_a_row_and_a_picture(tmp_path):
    begun = {key: RESULT[key] for key in ("made_for", "made_with")} | {"by_hand": {}}
    assert "| gcn |" in summary_table([begun])
    for name, data in (("begun", begun), ("whole", RESULT)):
        draw(data, tmp_path / f"{name}.svg")
        assert (tmp_path / f"{name}.svg").read_text().count("jaxckpt") == 0  # no legend, no salt in the file
        assert "compiled total, GiB" in (tmp_path / f"{name}.svg").read_text()


def test_the_same_figures_make_the_same_picture(tmp_path):
    for name in "ab":
        draw(RESULT, tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_file_is_continued_unless_compiler_or_sizes_differ(tmp_path):
    path, made_for = tmp_path / "model.json", {"model": "gcn", "versions": {"jax": "1"}}
    kept = Kept.opened(path, made_for=made_for, again=None)
    kept.add("by_hand", "none", record={"total_bytes": 1})
    kept.add("plans", "optimal", "smallest", record={"total_bytes": 2})
    assert Kept.opened(path, made_for=made_for, again=None).has("plans", "optimal", "smallest")
    assert not Kept.opened(path, made_for={**made_for, "versions": {"jax": "2"}}, again=None).has("by_hand", "none")
    without = Kept.opened(path, made_for=made_for, again="plans")
    assert without.has("by_hand", "none") and not without.has("plans", "optimal")
    assert not Kept.opened(path, made_for=made_for, again="all").has("by_hand", "none")


@pytest.mark.slow
def test_a_run_ends_in_time_and_the_next_one_makes_only_the_rest(tmp_path, monkeypatch, capsys):
    tiny = {"sizes": MODELS["gcn"].small(), "between": 2, "target": "cpu", "folder": tmp_path}
    versions = {name: remat for name, remat in by_hand("gcn").items() if name in ("no remat", "nothing_saveable")}
    monkeypatch.setattr(frontier, "by_hand", lambda model: versions)
    made = []
    record = frontier.Runner.record
    monkeypatch.setattr(frontier.Runner, "record", lambda self, *k, **how: made.append(k) or record(self, *k, **how))
    assert not run_model("gcn", minutes=-1, **tiny)
    assert made == []
    assert run_model("gcn", **tiny)
    assert len(made) == len(set(made)) == 2 + 1 + 1 + 2  # by hand, the least, as one by hand, and between
    data = json.loads((tmp_path / "gcn.json").read_text())
    assert not [
        name for place in (data["by_hand"], *data["plans"].values()) for name, x in place.items() if "error" in x
    ]
    data["plans"]["optimal"].pop("1/3")
    (tmp_path / "gcn.json").write_text(json.dumps(data))
    made.clear()
    assert run_model("gcn", **tiny)
    assert made == [("plans", "optimal", "1/3")]
    assert "complete" in capsys.readouterr().out


def test_what_fails_is_a_record_and_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(frontier, "footprint", lambda *_, **__: 1 / 0)
    runner = frontier.Runner(model="gcn", sizes={}, target=None, strategies=(), kept=Kept(path=tmp_path / "gcn.json"))
    monkeypatch.setattr(frontier.Runner, "step", lambda self, **_: MODELS["gcn"].step(**MODELS["gcn"].small()))
    runner.compile_by_hand("no remat", by_hand("gcn")["no remat"])
    assert runner.kept.data["by_hand"]["no remat"]["error"] == "ZeroDivisionError: division by zero"


def test_a_strategy_decides_on_offloading_and_on_its_link():
    assert may_offload("optimal") == may_offload("full") == {}
    assert may_offload("offload")["offload"].bandwidth_bytes_per_s is None
    assert may_offload("offload:300")["offload"].bandwidth_bytes_per_s == 300e9
    assert may_offload("offload:300")["allow"] == ("recompute", "offload")


def test_with_host_memory_only_budgets_met_by_hand_are_planned(tmp_path):
    known = result()
    known["plans"]["offload"] = {"smallest": version(3, 1.3), "as dots": version(7, 1.05)}
    kept = Kept(path=tmp_path / "gcn.json", data=known)
    runner = frontier.Runner(model="gcn", sizes={}, target=None, strategies=("offload",), kept=kept, between=1)
    assert set(runner.budgets()) == {"as nothing", "as dots", "as clumsy", "as larger", "1/2"}
    by_hand_missing = len(by_hand("gcn").keys() - known["by_hand"].keys())
    assert len(list(runner.missing())) == by_hand_missing + len({"as nothing", "as clumsy", "as larger"})


def test_plans_with_the_hosts_memory_stand_beside_the_others():
    assert "gcn" not in offload_table([RESULT])
    both = result()
    both["plans"]["offload"] = {"as dots": planned(7, 1.04, budget=8) | {"stall_s": 0.01}}
    (row,) = (line for line in offload_table([both]).splitlines() if "`dots`" in line)
    assert row == "| gcn | `dots` | +10.0% | +5.0% | +4.0% |  |"


def test_sizes_are_read_from_words():
    assert sizes_from(["layers=6", "blocks=(1, 1)"]) == {"layers": 6, "blocks": (1, 1)}


BLOCKS = {
    "gpt2-small": 2,
    "gpt2-medium": 2,
    "gpt2-small-dropout": 2,
    "llama": 2,
    "bert-large": 2,
    "t5-base": 4,
    "vit-b16": 2,
    "vit-b16-dropout": 2,
    "resnet50": 2,
    "unet": 5,
    "experts": 2,
    "bilstm": 2,
    "gcn": 2,
}
"""At small size; of the graph network all layers but the last, of the LSTM what each direction does at a moment."""
MANY = [pytest.param(name, marks=[] if name == "gcn" else [pytest.mark.slow]) for name in PLANNER]


def after_one_step(model, how):
    step = MODELS[model].step(**MODELS[model].small(), **how)
    update = jax.jit(step.step, compiler_options={"xla_backend_optimization_level": 0})
    return str(jax.make_jaxpr(step.step)(*step.args)), update(*step.real())


@pytest.mark.parametrize("model", MANY)
def test_rematerialised_by_hand_a_model_computes_the_same(model):
    text, plain = after_one_step(model, {})
    assert "checkpoint[" not in text and "remat2[" not in text
    policies = {
        None: rematerialised(),
        "dots": rematerialised(jax.checkpoint_policies.dots_saveable),
        "names": rematerialised(jax.checkpoint_policies.save_only_these_names(KEPT)),
    }
    for name, remat in policies.items():
        with naming() if name == "names" else nullcontext():
            text, made = after_one_step(model, {"remat": remat})
        assert text.count("checkpoint[") + text.count("remat2[") == BLOCKS[model]
        assert (f"name[name={KEPT}]" in text) == (name == "names" and model not in frontier.UNNAMED)
        assert jax.tree.structure(made) == jax.tree.structure(plain)
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(plain), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
