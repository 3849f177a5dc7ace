"""When loads of offloaded values start: behind their barriers, and no earlier before their readers than later loads."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt.cost.kernels import StepKernel
from jaxckpt.cost.load_starts import loads_by_start
from jaxckpt.ir import Offload
from jaxckpt.schedule import Move, Run, Schedule

KERNELS = 20


def starts(*loads: tuple[int, int]) -> dict[int, int]:
    """For each load the kernels before its start; loads are given by the kernels before its barrier and its reader."""
    steps, by_step = [], []
    for number in range(KERNELS):
        for load, (barrier, _) in enumerate(loads):
            if barrier == number:
                steps.append(Move(reads=(load,), writes=(100 + load,), decision=Offload(), restores=True))
                by_step.append(None)
        reads = {100 + load: 1 for load, (_, reader) in enumerate(loads) if reader == number}
        steps.append(Run(op=number, reads=tuple(reads), writes=(200 + number,)))
        by_step.append(StepKernel(reads=reads, writes=(200 + number,), seconds=1e-3))
    laid_out = Schedule(steps=tuple(steps), origin=(), outputs=())
    before = [sum(kernel is not None for kernel in by_step[:at]) for at in range(len(steps))]
    return {move.reads[0]: before[at] for at, moves in loads_by_start(laid_out, by_step).items() for move in moves}


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        ([(3, 10)], [3]),
        ([(3, 10), (7, 14)], [3, 7]),  # seven kernels before each reader
        ([(1, 10), (8, 12)], [6, 8]),  # the second has four kernels, and so has the first
        ([(1, 10), (8, 9)], [8, 8]),  # what is read before ends its search where it can start
        ([(1, 10), (10, 12)], [1, 10]),  # starts behind the reader of the first
        ([(1, 10), (6, 12), (9, 11)], [8, 9, 9]),
    ],
)
def test_no_load_has_more_time_than_one_that_starts_before_its_reader(loads, expected):
    assert list(dict(sorted(starts(*loads).items())).values()) == expected


@given(st.lists(st.integers(0, KERNELS - 6), min_size=1, max_size=6, unique=True), st.integers(1, 5))
def test_loads_of_one_distance_start_at_their_barriers(barriers, distance):
    found = starts(*((barrier, barrier + distance) for barrier in barriers))
    assert found == dict(enumerate(barriers))


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(1, 4)), min_size=1, max_size=6))
def test_every_load_starts_between_its_barrier_and_its_reader(given_loads):
    loads = [(barrier, barrier + kernels) for barrier, kernels in given_loads]
    found = starts(*loads)
    assert found.keys() == set(range(len(loads)))
    assert all(loads[load][0] <= at < loads[load][1] for load, at in found.items())
