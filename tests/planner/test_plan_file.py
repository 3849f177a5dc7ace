"""Plan files: what is written reads back equal, and what was damaged never reads as something else."""

import dataclasses
import os
import re
import stat

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, strategies as st

import jaxckpt
from jaxckpt import ir
from jaxckpt._errors import PlanFileError
from jaxckpt.compiler import Footprint
from jaxckpt.planner import check_plan
from jaxckpt.planner.plan_file import load_plan, save_plan
from jaxckpt.planner.user_plan import Argument, Attempt, Described, Plan, _in_project

_bytes = st.integers(0, 2**50)
_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
_scopes = st.one_of(st.sampled_from(["GPT2/block_0/qkv", "GPT2/block_7/qkv", "a_10/b_3", "", "x_01", "*/1"]), _text)
_decisions = st.one_of(
    st.just(ir.Save()),
    st.just(ir.Recompute()),
    st.builds(ir.Offload, space=st.just("pinned_host"), prefetch=st.integers(0, 3)),
    st.builds(ir.Partition, axis=st.just("model"), dim=st.integers(0, 3)),
)
_seconds = st.floats(0, 100, allow_nan=False)
_nests = st.builds(ir.LoopTiling, loop=st.integers(0, 3), outer=st.integers(2, 9), inner=st.integers(2, 9))
_row_chunks = st.builds(
    ir.RowChunk, value=st.integers(0, 300), dimension=st.integers(0, 2), pieces=st.sampled_from([2, 8])
)
_stretches = st.builds(
    ir.LoopSplit, loop=st.integers(0, 3), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    values = sorted(draw(st.sets(st.integers(0, 300), max_size=12)))
    described = tuple(
        Described(
            value=value,
            scope=draw(_scopes),
            primitive=draw(st.sampled_from(["dot_general", "add"])),
            name=draw(st.none() | st.just("qkv")),
            shape=draw(st.sampled_from([(), (8, 16)])),
            dtype="bfloat16",
            size_bytes=draw(st.sampled_from([2, 4096])),
            source=draw(st.sampled_from(["", "model.py:12"])),
        )
        for value in values
    )
    return Plan(
        fingerprint="0123456789abcdef",
        decisions={value: draw(_decisions) for value in values},
        stages=tuple(sorted(draw(st.sets(st.integers(0, 99), min_size=1, max_size=4)))),
        loop_splits=tuple(draw(st.lists(_stretches, max_size=2))),
        loop_tilings=tuple(draw(st.lists(_nests, max_size=2))),
        row_chunks=tuple(draw(st.lists(_row_chunks, max_size=2))),
        strategy="optimal",
        prediction=draw(
            st.none()
            | st.builds(
                ir.Prediction, argument_bytes=_bytes, output_bytes=_bytes, temp_bytes=_bytes, step_s=_seconds,
                recompute_s=_seconds, saved_bytes=_bytes, recomputed_ops=st.integers(0, 99),
                bound_s=st.none() | _seconds,
            )
        ),
        target="h200",
        budget_bytes=draw(st.none() | _bytes),
        footprint=draw(
            st.none()
            | st.builds(
                Footprint, argument_bytes=_bytes, output_bytes=_bytes, alias_bytes=_bytes, temp_bytes=_bytes,
                compile_s=_seconds, compiler_options=st.sampled_from([(), (("level", 0),)]),
                caveats=st.lists(_text, max_size=2).map(tuple),
            )
        ),
        described=described,
        arguments=tuple(
            draw(
                st.lists(
                    st.builds(
                        Argument, path=_text, shape=st.sampled_from([(), (3,), (3, 4)]),
                        dtype=st.sampled_from(["float32", "key<fry>"]), weak_type=st.booleans(),
                    ),
                    max_size=3,
                )
            )
        ),
        notes=tuple(draw(st.lists(_text, max_size=2))),
        attempts=tuple(
            draw(
                st.lists(
                    st.builds(
                        Attempt, strategy=st.just("optimal"), predicted_bytes=_bytes, measured_bytes=_bytes,
                        step_s=_seconds, compile_s=_seconds,
                    ),
                    max_size=2,
                )
            )
        ),
    )  # fmt: skip


@given(plans())
def test_a_plan_reads_back_equal(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    save_plan(plan, path)
    assert load_plan(path) == plan


@given(plans(), st.data())
def test_a_damaged_file_is_refused_or_reads_equal(tmp_path_factory, plan, data):
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    save_plan(plan, path)
    text = path.read_bytes()
    at = data.draw(st.integers(0, len(text) - 1))
    damage = data.draw(st.sampled_from(["cut off", "insert", "overwrite", "leave out", "repeat"]))
    some = data.draw(st.binary(min_size=1, max_size=3) | st.sampled_from([b"0", b"1", b"\n", b'"', b"[", b"#"]))
    path.write_bytes(
        {
            "cut off": text[:at],
            "insert": text[:at] + some + text[at:],
            "overwrite": text[:at] + some + text[at + len(some) :],
            "leave out": text[:at] + text[at + 1 :],
            "repeat": text[:at] + text[max(0, at - 60) :],
        }[damage]
    )
    try:
        read = load_plan(path)
    except PlanFileError as error:
        assert error.path == path
        assert error.problems
    else:
        assert read == plan or is_edited(read, plan)


def is_edited(read: Plan, plan: Plan) -> bool:
    """True if the plans differ in nothing but decisions, which the notes name, and figures are left out."""
    named = [note for note in read.notes if note.startswith("Changed by hand")]
    has_figures = (read.prediction, read.footprint, read.estimated_step_s) != (None, None, 0.0)
    return bool(named) and not has_figures and (read.described, read.arguments) == (plan.described, plan.arguments)


@given(plans(), st.data())
def test_a_file_cut_off_between_two_lines_is_refused(tmp_path_factory, plan, data):
    path = tmp_path_factory.mktemp("plans") / "plan.toml"
    save_plan(plan, path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: data.draw(st.integers(0, len(lines) - 2))]))
    with pytest.raises(PlanFileError):
        load_plan(path)


def layered() -> Plan:
    described = tuple(
        Described(
            value=10 * i, scope=f"GPT/block_{i}/qkv", primitive="dot_general", name=None, shape=(8, 4),
            dtype="bfloat16", size_bytes=2**20,
        )
        for i in range(12)
    )  # fmt: skip
    decisions = {d.value: ir.Save() for d in described}
    return Plan(fingerprint="f", decisions=decisions, target="h200", described=described, budget_bytes=2**30)


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "plan.toml"
    save_plan(layered(), path)
    return path


def test_equal_layers_are_one_entry_that_a_person_can_read(saved):
    text = saved.read_text()
    assert text.count("[[decision]]") == 1
    assert 'scope = "GPT/block_*/qkv"' in text
    assert 'layers = "0-11"' in text
    assert "budget_bytes = 1073741824 # 1.00 GiB" in text


def test_equal_plans_are_equal_files(saved, tmp_path):
    save_plan(load_plan(saved), tmp_path / "again.toml")
    assert saved.read_bytes() == (tmp_path / "again.toml").read_bytes()


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_plan(layered(), tmp_path / "plan.toml")
    assert not list(tmp_path.iterdir())


def test_an_existing_file_survives_a_write_that_fails(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_plan(dataclasses.replace(layered(), target="h100"), saved)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_plan_may_be_read_by_whoever_may_read_a_new_file(saved, tmp_path):
    (tmp_path / "plain").touch()
    assert stat.S_IMODE(saved.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_link_is_followed(saved, tmp_path):
    link = tmp_path / "link.toml"
    os.symlink(saved, link)
    save_plan(dataclasses.replace(layered(), target="h100"), link)
    assert link.is_symlink()
    assert load_plan(saved).target == "h100"


@pytest.mark.parametrize(
    ("place", "reason"),
    [("no/plan.toml", "mkdir -p"), (".", "it is a folder"), ("/proc/plan.toml", "nothing can be written there")],
)
def test_a_place_that_takes_no_file_is_named(tmp_path, place, reason):
    with pytest.raises(PlanFileError, match=reason):
        save_plan(layered(), tmp_path / place)


def test_sources_are_relative_to_the_project(tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    monkeypatch.chdir("/")
    assert _in_project(f"{tmp_path}/model/block.py:3") == f"{tmp_path}/model/block.py:3"[1:]
    (tmp_path / "pyproject.toml").touch()
    _in_project.cache_clear()
    assert _in_project(f"{tmp_path}/model/block.py:3") == "model/block.py:3"
    assert _in_project("/x/site-packages/flax/linen/linear.py:9") == "flax/linen/linear.py:9"


@pytest.mark.parametrize(
    "change",
    [
        {"described": ()},
        {"decisions": {}},
        {"notes": ("half of a character: \ud800",)},
        {"footprint": Footprint(argument_bytes=1, output_bytes=1, alias_bytes=0, temp_bytes=1, compile_s=float("nan"))},
        {"fingerprint": None},
    ],
    ids=["undescribed", "undecided", "no text", "no number", "no fingerprint"],
)
def test_what_a_file_cannot_hold_is_refused_before_it_is_written(tmp_path, change):
    with pytest.raises(PlanFileError, match="cannot be written"):
        save_plan(dataclasses.replace(layered(), **change), tmp_path / "plan.toml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "format None"),
        ("not toml", "no TOML"),
        ("x = " + "[" * 5000, "no TOML"),
        ("x = " + "1" * 5000, "no TOML"),
        ('format = "jaxckpt-plan"\nversion = 2', "version 2"),
        ('format = "jaxckpt-plan"\nversion = 1', "fingerprint is missing"),
        ('format = "other"\nversion = 1', "'other'"),
    ],
    ids=range(7),
)
def test_foreign_files_are_refused_with_the_reason(tmp_path, text, reason):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanFileError, match=reason):
        load_plan(path)


def test_a_missing_file_is_a_plan_file_error(tmp_path):
    with pytest.raises(PlanFileError, match="cannot be read"):
        load_plan(tmp_path / "plan.toml")


def test_a_file_that_is_no_text_is_a_plan_file_error(tmp_path):
    (tmp_path / "plan.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(PlanFileError, match="no text"):
        load_plan(tmp_path / "plan.toml")


def edited(path, *changes: tuple[str, str]) -> tuple[str, ...]:
    """The problems of a file after some edits."""
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text)
    with pytest.raises(PlanFileError) as caught:
        load_plan(path)
    return caught.value.problems


def test_all_that_is_wrong_is_named_at_once(saved):
    found = edited(saved, ('target = "h200"', "target = 3"), ('strategy = "none"', ""), ("notes = []", "nots = []"))
    assert set(found) == {
        "target = 3 should be a text",
        "strategy is missing: a text",
        "notes is missing: a list of texts",
        "nots is no key; the closest is 'notes'",
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("[10]", "[0]", "value 0 is decided more than once"),
        ('layers = "0-11"', 'layers = "0-12"', "does not name 12 layers"),
        ('layers = "0-11"', 'layers = "0-99999999999"', "does not name 12 layers"),
        ('layers = "0-11"', 'layers = "0-5,0-5"', "do not go with 12"),
        ('layers = "0-11"', "", "ids elsewhere"),
        ('decision = "save"', 'decision = "forget"', "should be one of save, recompute"),
        ('decision = "save"', 'decision = "save"\nspace = "host"', "space is no key"),
        ('decision = "save"', 'decision = "partition"\ndim = true', "dim = True should be a whole number"),
        ("shape = [8, 4]", "shape = [8, true]", "shape 2 = True should be a whole number"),
        ("[10]", "[11]", "not only decisions were changed"),
        ("size_bytes = 1048576", "size_bytes = 1048577", "not only decisions were changed"),
    ],
)
def test_an_edited_decision_is_refused_with_what_is_wrong(saved, old, new, problem):
    assert problem in "; ".join(edited(saved, (old, new)))


def test_changed_decisions_are_read_and_named_and_figures_left_out(saved):
    figures = Footprint(argument_bytes=1, output_bytes=1, alias_bytes=0, temp_bytes=1)
    planned = dataclasses.replace(layered(), footprint=figures, estimated_step_s=1.0)
    save_plan(planned, saved)
    saved.write_text(saved.read_text().replace('decision = "save"', 'decision = "offload"\nprefetch = 2'))
    read = load_plan(saved)
    assert set(read.decisions.values()) == {ir.Offload(prefetch=2)}
    note = "Changed by hand: dot_general of GPT/block_*/qkv, layers 0-11: offload prefetch=2, was save."
    assert read.notes == (note,)
    assert (read.strategy, read.footprint, read.estimated_step_s) == ("none, edited", None, 0.0)
    save_plan(read, saved)
    assert load_plan(saved) == read


def test_notes_on_earlier_decisions_are_left_out_when_decisions_change():
    by_hand, others = (
        "Changed by hand: tanh of /: save, was recompute.",
        ("The step fits as it is.", "Run beside the step"),
    )
    planned = dataclasses.replace(layered(), notes=(by_hand, *others))
    edited = planned.edited(lambda value: ir.Offload(prefetch=2))
    assert edited.notes[0] == by_hand and len(edited.notes) == 2 and "offload" in edited.notes[1]


def test_one_layer_may_be_decided_otherwise_in_an_entry_of_its_own(saved):
    text = saved.read_text()
    start, end = text.index("[[decision]]"), text.index("[arguments]")
    entry = text[start:end]
    first = entry.replace('"0-11"', '"0"').replace('"save"', '"recompute"')
    first = re.sub(r"values = .*", "values = [[0]]", first, flags=re.DOTALL)
    others = re.sub(r"\[0\],\s*", "", entry.replace('"0-11"', '"1-11"'), count=1)
    saved.write_text(f"{text[:start]}{first}\n\n{others}{text[end:]}")
    (note,) = load_plan(saved).notes
    assert note == "Changed by hand: dot_general of GPT/block_0/qkv: recompute, was save."


def test_comments_and_line_ends_may_be_changed(saved):
    saved.write_bytes(saved.read_bytes().replace(b"\n", b"  # mine\r\n", 1) + b"\r\n# the end")
    assert load_plan(saved) == layered()


@pytest.mark.parametrize(("former", "present"), [("stretches", "loop_splits"), ("nests", "loop_tilings")])
def test_former_names_of_a_plans_loops_warn(former, present):
    split = Plan(fingerprint="", target="cpu", loop_splits=(ir.LoopSplit(loop=0, lengths=(1, 2)),))
    with pytest.warns(DeprecationWarning, match=f"Plan.{former} is now Plan.{present}"):
        assert getattr(split, former) == getattr(split, present)


def test_a_plan_with_static_arguments_is_checked_as_it_was_made():
    def step(w, x, is_bounded):
        return jax.grad(lambda w: (jnp.tanh(x @ w) if is_bounded else x @ w).sum())(w)

    args = jnp.eye(4), jnp.ones((2, 4)), True
    plan = jaxckpt.plan(step, *args, budget="1GiB", target="cpu", static_argnums=2)
    assert check_plan(plan, step, *args).ok
