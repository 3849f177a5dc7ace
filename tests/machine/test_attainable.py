"""Rates: what a device attains, by dtype."""

import pytest

from jaxckpt._errors import TargetError
from jaxckpt.cost.rates import Rates
from jaxckpt.machine.attainable import rates_from_facts
from jaxckpt.machine.device_facts import UnknownDeviceFacts
from jaxckpt.machine.fact_files import known_facts


def rates(name: str) -> Rates:
    return rates_from_facts(name, known_facts()[name])


def test_measured_figures_go_before_the_datasheet():
    assert rates("h200").memory_bandwidth_bytes_per_s == 3.1e12
    assert rates("h200").matmul("bfloat16") == 7.9e14


def test_unmeasured_rates_are_scaled_like_those_of_an_h200():
    assert rates("a100-80").matmul("bfloat16") == pytest.approx(0.8 * 312e12)
    assert rates("a100-80").memory_bandwidth_bytes_per_s == pytest.approx(0.65 * 2039.04e9)
    assert rates("v5e").matmul("bfloat16") == pytest.approx(0.8 * 197e12)


def test_float32_is_half_of_bfloat16_on_gpus_and_equal_on_tpus():
    assert rates("h200").matmul("float32") == rates("h200").matmul("bfloat16") / 2
    assert rates("v5e").matmul("float32") == rates("v5e").matmul("bfloat16")


def test_float64_runs_on_the_lanes_or_as_the_file_says():
    assert rates("a100-80").matmul("float64") == rates("a100-80").vector_flops_per_s
    assert rates("b200").matmul("float64") == pytest.approx(0.8 * 37e12)


def test_float8_is_twice_bfloat16_from_hopper_on():
    assert rates("h200").matmul("float8_e4m3fn") == 2 * rates("h200").matmul("bfloat16")
    assert rates("a100-80").matmul("float8_e5m2") == rates("a100-80").matmul("bfloat16")
    assert rates("a100-80").matmul("int8") == 2 * rates("a100-80").matmul("bfloat16")


@pytest.mark.parametrize("name", sorted(known_facts()))
def test_every_shipped_device_has_positive_rates_for_every_dtype(name):
    dtypes = ("bfloat16", "float16", "float32", "float64", "tf32", "int8", "uint4", "complex64")
    assert all(rates(name).matmul(dtype) > 0 for dtype in (*dtypes, "float8_e4m3fn", "int32", "bool"))
    assert rates(name).vector_flops_per_s > 0
    assert rates(name).host_bandwidth_bytes_per_s <= rates(name).memory_bandwidth_bytes_per_s * 1.2
    assert hash(rates(name)) == hash(rates(name))


def test_what_no_matrix_unit_takes_runs_at_the_vector_rate():
    assert rates("h200").matmul("int32") == rates("h200").vector_flops_per_s
    assert rates("h200").matmul("complex64") == rates("h200").matmul("float32")


def test_an_unknown_device_has_no_rates_instead_of_invented_ones():
    facts = UnknownDeviceFacts(description="Tensor 9000", platform="cuda", device_memory_bytes=1)
    with pytest.raises(TargetError, match="Tensor 9000") as caught:
        rates_from_facts("attached", facts)
    assert caught.value.device_kind == "Tensor 9000"
