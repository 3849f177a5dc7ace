"""A fit finds the factors that made the times, keeps what it knows nothing of, and says how wrong it was."""

import pytest

from benchmarks.attached.regression import TimedStep, calibration_from_fit, corrected, estimated_s, fit_rates
from jaxckpt.cost import Rates
from jaxckpt.hlo import Kernel, class_of, kernel_s
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
TRUE = {"matmul": 1.4, "elementwise": 1.2, "reduction": 1.9, "launch": 2.0}


def kernels(products, loops, sums, tiny=0):
    """A step of so many kernels of each class."""
    return (
        Kernel(
            name="gemm", opcode="fusion", count=products, flops=10**11, matmul_flops=10**11, matmul_dtype="bfloat16"
        ),
        Kernel(name="loop_add_fusion", opcode="fusion", count=loops, traffic_bytes=10**8),
        Kernel(name="input_reduce_fusion", opcode="fusion", count=sums, traffic_bytes=5 * 10**7),
        Kernel(name="loop_compare_fusion", opcode="fusion", count=tiny, traffic_bytes=8),
    )


def timed_steps(rates):
    counts = {
        "a": ((10, 90, 5, 300), (20, 80, 9, 5)),
        "b": ((30, 10, 60, 900), (3, 200, 7, 50)),
        "c": ((50, 50, 50, 2000), (9, 9, 300, 10)),
    }
    return [
        TimedStep(
            name=f"{group} {i}", group=group, kernels=kernels(*each), measured_s=estimated_s(kernels(*each), rates)
        )
        for group, rows in counts.items()
        for i, each in enumerate(rows)
    ]


def test_the_factors_that_made_the_times_are_found():
    fit = fit_rates(timed_steps(corrected(RATES, TRUE)), RATES, pull=1e-6)
    assert fit.factors == pytest.approx(TRUE, rel=1e-3)
    assert fit.before.median > 0.15 and fit.after.worst == pytest.approx(0, abs=1e-4)
    assert fit.held_out.median < 0.02 and len(fit.held_out.relative) == 6


def test_fitted_rates_give_every_caller_the_fitted_estimate():
    rates = corrected(RATES, TRUE)
    for each in kernels(1, 1, 1)[:3]:
        own = TRUE[class_of(each)]
        before = estimated_s([each], RATES) - RATES.launch_s
        assert kernel_s(each, rates) == pytest.approx(2 * RATES.launch_s + own * before)
        assert estimated_s([each], rates) == pytest.approx(kernel_s(each, rates))


def test_corrections_of_corrections_multiply():
    once = corrected(corrected(RATES, TRUE), {"matmul": 2.0, "elementwise": 0.5})
    both = corrected(RATES, {**TRUE, "matmul": 2.8, "elementwise": 0.6})
    for each in kernels(1, 1, 1)[:3]:
        assert estimated_s([each], once) == pytest.approx(estimated_s([each], both))


def test_a_class_that_does_not_occur_keeps_its_factor():
    fit = fit_rates(timed_steps(RATES), RATES)
    assert fit.rates.factor("convolution") == pytest.approx(1.0, rel=1e-6)
    assert fit.factors == pytest.approx(dict.fromkeys(TRUE, 1.0))


def test_factors_stay_within_their_bounds():
    steps = [TimedStep(name="slow", group="slow", kernels=kernels(1, 1, 1), measured_s=100.0)]
    assert max(fit_rates(steps, RATES, pull=0.0).factors.values()) <= 5.0 + 1e-9


def test_one_step_moves_all_its_classes_and_is_not_held_out():
    steps = [TimedStep(name="one", group="one", kernels=kernels(9, 9, 9), measured_s=0.01)]
    fit = fit_rates(steps, RATES)
    assert abs(fit.after.worst) < abs(fit.before.worst) and fit.held_out.relative == ()


def test_a_fitted_calibration_says_what_it_was_fitted_to():
    steps = timed_steps(corrected(RATES, TRUE))
    known = Calibration(device_kind="toy", platform="cuda", driver="1", date="2026-01-01", source="measured")
    fit = fit_rates(steps, RATES)
    made = calibration_from_fit(fit, known, steps=steps)
    assert "fitted to 6 timed steps of a, b, c" in made.source
    assert estimated_s(steps[0].kernels, made.over(RATES)) == pytest.approx(estimated_s(steps[0].kernels, fit.rates))
