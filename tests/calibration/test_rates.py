"""Figures of a device that is exactly as the model has it give that device's rates back."""

import pytest

from jaxckpt.calibration.links import hidden_share
from jaxckpt.calibration.rates import STEP_BANDWIDTH, STEP_LAUNCH, derived_rates, ramp_and_rate
from jaxckpt.machine import Measured

RATE, RAMP, LAUNCH = 8e14, 3e9, 2e-6
SIZES = ((8192, 8192, 8192), (4096, 4096, 4096), (8192, 768, 3072), (2048, 2048, 2048), (1024, 1024, 1024))


def product(dtype, sizes, rate=RATE):
    flops = 2.0 * sizes[0] * sizes[1] * sizes[2]
    seconds = LAUNCH + (flops + RAMP) / rate
    return Measured(
        what="matmul", detail=f"{dtype} {' x '.join(map(str, sizes))}", value=flops / seconds, unit="FLOP/s"
    )


def bandwidth(what, value):
    return Measured(what=what, detail="", value=value, unit="bytes/s")


def test_a_line_through_all_sizes_is_recovered():
    figures = [product("bfloat16", sizes) for sizes in SIZES] + [product("float32", SIZES[1], RATE / 2)]
    found = derived_rates([Measured(what="launch", detail="", value=LAUNCH, unit="s"), *figures])
    assert dict(found["matmul_flops_per_s"]) == pytest.approx({"bfloat16": RATE, "float32": RATE / 2}, rel=1e-6)
    assert found["matmul_ramp_flops"] == pytest.approx(RAMP, rel=1e-6)


def test_products_that_grow_faster_than_their_work_have_no_ramp():
    assert ramp_and_rate([1e9, 1e12], [1e-6, 2e-3])[0] == 0.0


def test_kernels_of_a_step_are_slower_than_those_of_the_measurement():
    found = derived_rates([bandwidth("elementwise", 4e12), bandwidth("elementwise", 4.2e12)])
    assert found["memory_bandwidth_bytes_per_s"] == pytest.approx(STEP_BANDWIDTH * 4.1e12)
    found = derived_rates([Measured(what="launch", detail="", value=LAUNCH, unit="s")])
    assert found["launch_s"] == pytest.approx(STEP_LAUNCH * LAUNCH)


def test_the_link_is_as_fast_as_its_slower_way_and_half_of_both():
    ways = [bandwidth("copy to host", 50e9), bandwidth("copy from host", 55e9)]
    assert derived_rates(ways)["host_bandwidth_bytes_per_s"] == 50e9
    assert derived_rates([*ways, bandwidth("copy both ways", 70e9)])["host_bandwidth_bytes_per_s"] == 35e9


def test_what_was_not_measured_is_left_to_the_datasheet():
    assert derived_rates([]) == {}


def test_the_hidden_share_of_a_copy_is_between_0_and_1():
    assert hidden_share(10.0, 10.0, 2.0) == 1.0
    assert hidden_share(13.0, 10.0, 2.0) == 0.0
    assert hidden_share(9.9, 10.0, 2.0) == 1.0
