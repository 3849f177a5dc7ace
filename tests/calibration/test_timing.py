"""Timing on a clock that does what it is told."""

import pytest

from jaxckpt.calibration import timed
from jaxckpt.calibration.timing import timing_of


class Clock:
    """Moves only when something runs."""

    def __init__(self, seconds):
        self.now = 0.0
        self.seconds = iter(seconds)
        self.runs = 0

    def __call__(self):
        return self.now

    def run(self):
        self.runs += 1
        self.now += next(self.seconds)


def test_warm_ups_do_not_count():
    clock = Clock([9.0, 7.0, 1.0, 1.0, 1.0])
    assert timed(clock.run, clock=clock, least=3, most=3).median_s == 1.0


def test_one_disturbed_run_changes_nothing():
    clock = Clock([0, 0, 1.0, 1.0, 50.0, 1.0, 1.0])
    assert timed(clock.run, clock=clock, least=5, most=5).median_s == 1.0


def test_slow_runs_stop_at_the_least():
    clock = Clock([10.0] * 100)
    timing = timed(clock.run, clock=clock, budget_s=1.0, least=5, warmups=1)
    assert timing.count == 5 and clock.runs == 6


def test_fast_runs_go_on_until_the_budget_is_spent():
    clock = Clock([0.1] * 100)
    assert timed(clock.run, clock=clock, budget_s=1.05, least=5, warmups=0).count == 11


def test_runs_are_never_more_than_asked():
    clock = Clock([1e-6] * 100)
    assert timed(clock.run, clock=clock, most=20).count == 20


def test_the_spread_is_that_of_the_middle_half():
    assert timing_of([1.0, 2.0, 3.0, 4.0, 5.0]).spread == pytest.approx(1.0)
    assert timing_of([2.0]).spread == 0.0
