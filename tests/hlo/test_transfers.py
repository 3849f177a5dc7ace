"""What hides the copies of a compiled program: counted on fingers, kept in files, and never more than all of them."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from jaxckpt import HloError
from jaxckpt.hlo import (
    Allocation,
    MemoryMap,
    Space,
    Transfer,
    Use,
    hiding,
    memory_from_plain,
    plain_from_memory,
    stall_s,
)
from tests.graphs import RATES
from tests.memory_maps import MIB, buffer, kernel

SECOND = replace(RATES, launch_s=0.0, host_bandwidth_bytes_per_s=float(MIB))
"""One MiB a second to the host."""
_PER_S = int(RATES.memory_bandwidth_bytes_per_s)


def worked(seconds: float):
    """A kernel that takes so long."""
    return kernel("work", flops=0, traffic_bytes=int(seconds * _PER_S))


def waiting(name: str, opcode: str):
    return kernel(name, opcode=opcode, flops=0, traffic_bytes=0)


def program(*, before: float, between: float, size_bytes: int = MIB) -> MemoryMap:
    """One copy out, with work before and behind its start, and the same value back."""
    kernels = (
        worked(before), waiting("out", "copy-start"), worked(between), waiting("out done", "copy-done"),
        waiting("back", "copy-start"), worked(between / 2), waiting("back done", "copy-done"),
    )  # fmt: skip
    held = buffer(0, "", 1, 6, size_bytes, offset_bytes=0, allocation=0)
    return MemoryMap(
        program="jit_step",
        kernels=kernels,
        buffers=(held,),
        allocations=(Allocation(index=0, size_bytes=size_bytes, use=Use.TEMPORARY, space=Space.HOST),),
        transfers=(
            Transfer(size_bytes=size_bytes, to_host=True, starts=1, ends=3),
            Transfer(size_bytes=size_bytes, to_host=False, starts=4, ends=6),
        ),
    )


def test_a_copy_is_hidden_by_kernels_between_start_and_end():
    memory = program(before=3.0, between=0.5)
    out, back = (hiding(memory, SECOND, to_host=way) for way in (True, False))
    assert (out.share, back.share) == (pytest.approx(0.5), pytest.approx(0.25))
    assert (out.copies, out.fully_hidden) == (1, 0)
    assert hiding(program(before=0.0, between=1.5), SECOND, to_host=True).fully_hidden == 1


def test_what_is_not_hidden_delays_the_program():
    assert stall_s(program(before=3.0, between=0.5), SECOND) == pytest.approx(0.5 + 0.75)
    assert stall_s(program(before=3.0, between=2.0), SECOND) == 0.0


def test_copies_of_a_loop_are_hidden_per_iteration():
    turns = 5
    kernels = (worked(7.0), *(replace(k, count=turns) for k in (waiting("out", "fusion"), worked(0.5))), worked(9.0))
    kernels = (*kernels[:1], replace(kernels[1], is_copy=True, traffic_bytes=10**12), *kernels[2:])
    memory = replace(
        program(before=0.0, between=1.0),
        kernels=kernels,
        transfers=(Transfer(size_bytes=MIB, to_host=True, starts=1, ends=3, count=turns),),
    )
    found = hiding(memory, SECOND, to_host=True)
    assert (found.copies, found.size_bytes, found.fully_hidden) == (turns, turns * MIB, 0)
    assert found.share == pytest.approx(0.5)
    assert stall_s(memory, SECOND) == pytest.approx(turns * 0.5)
    at_once = replace(memory, transfers=(replace(memory.transfers[0], ends=2),))  # nobody works meanwhile
    assert stall_s(at_once, SECOND) == pytest.approx(turns * 1.0)


def test_a_copy_awaited_at_the_end_is_hidden_by_all_that_follows():
    memory = program(before=3.0, between=0.5)
    last = replace(memory, transfers=(replace(memory.transfers[0], ends=len(memory.kernels)),))
    assert hiding(last, SECOND, to_host=True).share == pytest.approx(0.75)
    assert stall_s(last, SECOND) == pytest.approx(0.25)
    assert memory_from_plain(plain_from_memory(last)) == last


def test_copies_queue_though_each_is_hidden_by_itself():
    at_once = tuple(Transfer(size_bytes=MIB, to_host=True, starts=at, ends=4) for at in (0, 1, 2))
    starts = [waiting(f"out.{i}", "copy-start") for i in range(3)]
    memory = replace(
        program(before=0.0, between=1.0),
        kernels=(*starts, worked(1.0), *(waiting("done", "copy-done") for _ in range(3))),
        transfers=at_once,
    )
    assert hiding(memory, SECOND, to_host=True).share == pytest.approx(1.0)
    assert stall_s(memory, SECOND) == pytest.approx(2.0)


def test_the_most_bytes_on_the_host_are_those_alive_at_once():
    assert program(before=1.0, between=1.0).most_host_bytes == MIB
    assert replace(program(before=1.0, between=1.0), buffers=()).most_host_bytes == 0


def test_copies_are_read_from_files_and_damaged_ones_are_refused():
    memory = program(before=1.0, between=1.0)
    plain = plain_from_memory(memory)
    assert memory_from_plain(plain) == memory
    plain["transfers"]["ends"][0] = 99
    with pytest.raises(HloError, match="behind the last kernel"):
        memory_from_plain(plain)


@given(st.floats(0, 4), st.floats(0, 4), st.integers(0, 4))
def test_hidden_bytes_are_bounded_and_hidden_copies_never_delay(before, between, mebibytes):
    memory = program(before=before, between=between, size_bytes=mebibytes * MIB)
    ways = [hiding(memory, SECOND, to_host=way) for way in (True, False)]
    assert all(0 <= way.hidden_bytes <= way.size_bytes for way in ways)
    exposed_s = sum(way.size_bytes - way.hidden_bytes for way in ways) / SECOND.host_bandwidth_bytes_per_s
    assert stall_s(memory, SECOND) == pytest.approx(exposed_s, abs=1e-6)
