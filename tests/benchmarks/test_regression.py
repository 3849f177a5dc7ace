"""A fit finds the rates that made the times, keeps what it knows nothing of, and says how wrong it was."""

from dataclasses import replace

import pytest

from benchmarks.attached.regression import TimedStep, calibration_from_fit, estimated_s, fit_rates
from jaxckpt.cost import Rates
from jaxckpt.hlo import Kernel
from jaxckpt.machine import Calibration

RATES = Rates(
    name="toy",
    matmul_flops_per_s=(("bfloat16", 8e14),),
    vector_flops_per_s=5e13,
    memory_bandwidth_bytes_per_s=4e12,
    host_bandwidth_bytes_per_s=5e10,
    launch_s=1e-6,
    memory_bytes=2**37,
)
TRUE = replace(RATES, memory_bandwidth_bytes_per_s=2.5e12, launch_s=2.2e-6)


def kernels(products, loops, tiny=0):
    """A step of so many products, large loops and tiny ones."""
    return (
        Kernel(
            name="gemm",
            opcode="fusion",
            count=products,
            flops=10**11,
            matmul_flops=10**11,
            matmul_dtype="bfloat16",
            traffic_bytes=10**7,
        ),
        Kernel(name="loop_add_fusion", opcode="fusion", count=loops, traffic_bytes=10**8),
        Kernel(name="loop_compare_fusion", opcode="fusion", count=tiny, traffic_bytes=8),
    )


def timed_steps(rates):
    counts = {"a": ((10, 90, 300), (20, 80, 5)), "b": ((30, 10, 900), (3, 200, 50)), "c": ((50, 50, 2000), (9, 9, 10))}
    return [
        TimedStep(
            name=f"{group} {i}", group=group, kernels=kernels(*each), measured_s=estimated_s(kernels(*each), rates)
        )
        for group, rows in counts.items()
        for i, each in enumerate(rows)
    ]


def test_the_rates_that_made_the_times_are_found():
    fit = fit_rates(timed_steps(TRUE), RATES, pull=1e-6)
    assert fit.rates.memory_bandwidth_bytes_per_s == pytest.approx(TRUE.memory_bandwidth_bytes_per_s, rel=1e-3)
    assert fit.rates.launch_s == pytest.approx(TRUE.launch_s, rel=1e-3)
    assert fit.rates.matmul_flops_per_s == RATES.matmul_flops_per_s
    assert fit.before.median > 0.15 and fit.after.worst == pytest.approx(0, abs=1e-4)
    assert fit.held_out.median < 1e-3 and len(fit.held_out.relative) == 6


def test_steps_that_take_what_was_expected_change_nothing():
    fit = fit_rates(timed_steps(RATES), RATES)
    assert fit.rates.memory_bandwidth_bytes_per_s == pytest.approx(RATES.memory_bandwidth_bytes_per_s)
    assert fit.rates.launch_s == pytest.approx(RATES.launch_s)


def test_a_step_without_traffic_leaves_the_bandwidth_where_it_was():
    steps = [TimedStep(name="tiny", group="tiny", kernels=kernels(0, 0, 100), measured_s=2e-4)]
    fit = fit_rates(steps, RATES)
    assert fit.rates.memory_bandwidth_bytes_per_s == pytest.approx(RATES.memory_bandwidth_bytes_per_s)
    assert fit.rates.launch_s == pytest.approx(2 * RATES.launch_s, rel=0.01)


def test_one_step_moves_both_rates_and_is_not_held_out():
    steps = [TimedStep(name="one", group="one", kernels=kernels(9, 9, 9), measured_s=0.01)]
    fit = fit_rates(steps, RATES)
    assert abs(fit.after.worst) < abs(fit.before.worst) and fit.held_out.relative == ()


def test_a_fitted_calibration_says_what_it_was_fitted_to():
    steps = timed_steps(TRUE)
    known = Calibration(device_kind="toy", platform="cuda", driver="1", date="2026-01-01", source="measured")
    fit = fit_rates(steps, RATES)
    made = calibration_from_fit(fit, known, steps=steps)
    assert "fitted to 6 timed steps of a, b, c" in made.source
    assert estimated_s(steps[0].kernels, made.over(RATES)) == pytest.approx(estimated_s(steps[0].kernels, fit.rates))
