"""Calibration files: what they say of a device, and what is refused."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt import Target, TargetError, UnknownTargetError
from jaxckpt.machine import (
    Calibration,
    Measured,
    calibration_from_toml,
    load_calibration,
    rates_from_facts,
    toml_from_calibration,
)
from jaxckpt.machine.device_facts import UnknownDeviceFacts

H200 = Calibration(
    device_kind="NVIDIA H200",
    platform="cuda",
    driver="580.159",
    date="2026-11-21",
    source="one H200",
    versions=(("jax", "0.11.2"),),
    matmul_flops_per_s=(("bfloat16", 7e14), ("float32", 3e14)),
    matmul_ramp_flops=2e9,
    memory_bandwidth_bytes_per_s=4e12,
    launch_s=2e-6,
    measured=(Measured(what="launch", detail="x", value=2e-6, unit="s", spread=0.1, count=9),),
)
rate = st.floats(1e-9, 1e18, allow_nan=False)
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=20)


@given(
    st.builds(
        Calibration,
        device_kind=text,
        platform=text,
        driver=text,
        date=text,
        source=text,
        smoke=st.booleans(),
        seconds=st.floats(0, 1e6),
        versions=st.dictionaries(text, text, max_size=3).map(lambda d: tuple(d.items())),
        matmul_flops_per_s=st.dictionaries(text, rate, max_size=3).map(lambda d: tuple(d.items())),
        launch_s=st.none() | rate,
        measured=st.lists(
            st.builds(Measured, what=text, detail=text, value=rate, unit=text, spread=rate, count=st.integers(1, 9)),
            max_size=2,
        ).map(tuple),
    )
)
def test_a_file_gives_back_what_was_written(made):
    assert calibration_from_toml(toml_from_calibration(made), source="x") == made


def test_measured_rates_replace_those_of_the_datasheet():
    rates = Target("h200", calibrated=H200).rates
    plain = Target("h200").rates
    assert rates.matmul("bfloat16") == rates.matmul("float16") == 7e14
    assert rates.matmul("float8_e4m3fn") == 1.4e15, "scaled with bfloat16"
    assert rates.launch_s == 2e-6 and rates.source == "one H200"
    assert rates.host_bandwidth_bytes_per_s == plain.host_bandwidth_bytes_per_s
    assert rates.memory_bytes == plain.memory_bytes


def test_the_ramp_makes_small_products_slower():
    rates = Target("h200", calibrated=H200).rates
    assert rates.matmul_s(2e9, "bfloat16") == 2 * 2e9 / 7e14


def test_targets_of_other_calibrations_are_not_equal():
    assert Target("h200", calibrated=H200) != Target("h200")
    assert Target(Target("h200", calibrated=H200)) == Target("h200", calibrated=H200)


def test_the_calibration_of_another_device_is_refused():
    with pytest.raises(TargetError, match='measured on "NVIDIA H200"'):
        Target("a100-80", calibrated=H200)
    with pytest.raises(TargetError, match="is not of target"):
        Target("cpu", calibrated=H200)


def test_a_file_is_named_behind_an_at_sign(tmp_path):
    H200.save(tmp_path / "mine.toml")
    target = Target(f"h200:8@{tmp_path / 'mine.toml'}")
    assert target.name == "h200:8" and target.calibration == H200


def test_an_at_sign_in_a_folder_names_no_calibration(tmp_path):
    with pytest.raises(UnknownTargetError, match=r"a@b/mine\.toml"):
        Target("/nowhere/a@b/mine.toml")


def test_an_unknown_device_has_rates_once_fully_calibrated():
    facts = UnknownDeviceFacts(description="NVIDIA X1", platform="cuda", device_memory_bytes=2**30)
    with pytest.raises(TargetError):
        rates_from_facts("attached", facts)
    assert H200.as_rates(name="attached", memory_bytes=2**30) is None, "nothing was measured of the host"
    whole = Calibration(
        device_kind="NVIDIA X1", platform="cuda", driver="", date="", source="x",
        matmul_flops_per_s=(("bfloat16", 1e14),), vector_flops_per_s=1e13, memory_bandwidth_bytes_per_s=1e12,
        host_bandwidth_bytes_per_s=1e10, launch_s=1e-6,
    )  # fmt: skip
    assert whole.as_rates(name="attached", memory_bytes=2**30).matmul("float16") == 1e14
    with pytest.warns(DeprecationWarning, match="as_rates"):
        assert whole.alone(name="attached", memory_bytes=2**30) == whole.as_rates(name="attached", memory_bytes=2**30)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("form = 'other'", "form = 'other'"),
        ("launch_s = -1.0", "launch_s = -1.0 should be a number above 0"),
        ("colour = 'red'", "colour is no key"),
        ("[[measured]]\nwhat = 'x'", "measured 1: detail is missing: a text"),
        ("= 3", "no TOML"),
    ],
)
def test_problems_of_a_file_are_reported(change, said):
    toml = toml_from_calibration(Calibration(device_kind="", platform="", driver="", date="", source=""))
    _, _, rest = toml.partition("\n")
    toml = f"{change}\n{rest}" if change.startswith("form") else f"{toml}\n{change}\n"
    with pytest.raises(TargetError) as caught:
        calibration_from_toml(toml, source="mine.toml")
    assert said in str(caught.value) and caught.value.problems


def test_a_file_that_is_not_there_says_how_to_make_it(tmp_path):
    with pytest.raises(UnknownTargetError, match="jaxckpt calibrate -o"):
        load_calibration(tmp_path / "none.toml")


def test_a_target_has_no_calibration_unless_given():
    assert Target("cpu").calibration is None
