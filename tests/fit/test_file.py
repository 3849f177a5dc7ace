"""Plan files: what is written reads back equal, and what was damaged never reads as something else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxckpt import ir
from jaxckpt._errors import PlanFileError
from jaxckpt.fit.file import _document, _numbers, _ranges, load_plan, save_plan
from jaxckpt.fit.plan import Argument, Attempt, Described, Plan
from jaxckpt.measure import Footprint

_bytes = st.integers(0, 2**50)
_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
_scopes = st.one_of(st.sampled_from(["GPT/block_0/qkv", "GPT/block_7/qkv", "a_10/b_3", "", "x_01", "*/1"]), _text)
_decisions = st.one_of(
    st.just(ir.Save()),
    st.just(ir.Recompute()),
    st.builds(ir.Offload, space=st.just("pinned_host"), prefetch=st.integers(0, 3)),
    st.builds(ir.Partition, axis=st.just("model"), dim=st.integers(0, 3)),
)
_seconds = st.floats(0, 100, allow_nan=False)


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
        strategy="optimal",
        prediction=draw(
            st.none()
            | st.builds(
                ir.Prediction, argument_bytes=_bytes, output_bytes=_bytes, temp_bytes=_bytes, step_s=_seconds,
                recompute_s=_seconds, saved_bytes=_bytes, recomputed_ops=st.integers(0, 99),
            )
        ),
        target="h200",
        budget_bytes=draw(st.none() | _bytes),
        footprint=draw(
            st.none()
            | st.builds(
                Footprint, argument_bytes=_bytes, output_bytes=_bytes, alias_bytes=_bytes, temp_bytes=_bytes,
                compile_s=_seconds, caveats=st.lists(_text, max_size=2).map(tuple),
            )
        ),
        described=described,
        arguments=tuple(
            draw(
                st.lists(
                    st.builds(
                        Argument, path=_text.map(lambda text: text.replace("\n", "")),
                        shape=st.sampled_from([(), (3,), (3, 4)]), dtype=st.sampled_from(["float32", "key<fry>"]),
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
    at = data.draw(st.integers(0, len(text)))
    if data.draw(st.booleans()):
        path.write_bytes(text[:at])
    else:
        path.write_bytes(text[:at] + data.draw(st.binary(min_size=1, max_size=3)) + text[at:])
    try:
        read = load_plan(path)
    except PlanFileError as error:
        assert error.path == path
    else:
        assert isinstance(read, Plan)


@given(st.lists(st.integers(0, 40), min_size=1))
def test_layer_numbers_fold_and_unfold(numbers):
    assert _numbers(_ranges(numbers)) == numbers


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


def test_equal_layers_are_one_entry_that_a_person_can_read():
    text = _document(layered()).as_string()
    assert text.count("[[decision]]") == 1
    assert 'scope = "GPT/block_*/qkv"' in text
    assert 'layers = "0-11"' in text
    assert "budget_bytes = 1073741824 # 1.00 GiB" in text


def test_nothing_is_left_behind_when_writing_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_plan(layered(), tmp_path / "plan.toml")
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(PlanFileError, match="mkdir -p"):
        save_plan(layered(), tmp_path / "no" / "plan.toml")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "format None"),
        ("not toml", "no TOML"),
        ('format = "jaxckpt-plan"\nversion = 2', "version 2"),
        ('format = "jaxckpt-plan"\nversion = 1', "KeyError"),
        ('format = "other"\nversion = 1', "'other'"),
    ],
)
def test_foreign_files_are_refused_with_the_reason(tmp_path, text, reason):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(PlanFileError, match=reason):
        load_plan(path)


def test_a_missing_file_is_a_plan_file_error(tmp_path):
    with pytest.raises(PlanFileError, match="cannot be read"):
        load_plan(tmp_path / "plan.toml")


def test_a_value_decided_twice_is_refused(tmp_path):
    path = tmp_path / "plan.toml"
    save_plan(layered(), path)
    path.write_text(path.read_text().replace("[10]", "[0]"))
    with pytest.raises(PlanFileError, match="more than once"):
        load_plan(path)
