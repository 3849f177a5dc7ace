"""Dumps that were cut, edited or are something else end in a clear error, never in a wrong number or a crash."""

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt import HloError
from jaxckpt.hlo import memory_from_hlo
from jaxckpt.hlo.schema import Hlo

SOMEWHERE = st.integers(0, 2**24 - 1).map(lambda part: part / 2**24)
"""A place in a dump, as a share of its length."""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "without any computation"),
        (b"HloModule jit_f, is_scheduled=true", "no protocol buffer"),
        (b"\x00" * 100, "no protocol buffer"),
    ],
)
def test_other_data_is_refused_as_no_dump(data, said):
    with pytest.raises(HloError, match=said):
        memory_from_hlo(data)


def edited(data, edit):
    message = Hlo.FromString(data)
    edit(message)
    return message.SerializeToString()


def entry(message):
    (found,) = [c for c in message.hlo_module.computations if c.id == message.hlo_module.entry_computation_id]
    return found


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda m: m.ClearField("buffer_assignment"), "without a buffer assignment"),
        (lambda m: m.hlo_module.ClearField("schedule"), "without a schedule"),
        (lambda m: setattr(m.hlo_module, "entry_computation_id", 10**6), "entry computation is missing"),
        (lambda m: setattr(entry(m), "root_id", 10**6), "no root"),
        (lambda m: entry(m).instructions[-1].operand_ids.append(10**6), "reads an instruction that is missing"),
        (lambda m: entry(m).instructions[-1].called_computation_ids.append(10**6), "calls a computation"),
        (lambda m: m.hlo_module.schedule.sequences[0].value.instruction_ids.append(10**6), "runs an instruction"),
        (lambda m: setattr(m.buffer_assignment.buffer_allocations[-1], "size", 1), "smaller than a buffer in it"),
        (lambda m: setattr(m.buffer_assignment.logical_buffers[-1], "size", 10**12), "another size"),
        (lambda m: [setattr(b, "size", 1) for b in m.buffer_assignment.logical_buffers], "smaller than its array"),
        (lambda m: m.buffer_assignment.ClearField("logical_buffers"), "holds a buffer that is missing"),
    ],
)
def test_what_points_nowhere_is_named(dumped, edit, said):
    with pytest.raises(HloError, match=said):
        memory_from_hlo(edited(dumped, edit))


@settings(max_examples=60)
@given(place=SOMEWHERE)
def test_a_dump_that_was_cut_is_an_error(dumped, place):
    with pytest.raises(HloError):
        memory_from_hlo(dumped[: int(place * len(dumped))])


@settings(max_examples=60)
@given(place=SOMEWHERE, byte=st.integers(0, 255))
def test_a_dump_with_a_wrong_byte_is_an_error_or_keeps_its_sums(dumped, place, byte):
    whole, at = memory_from_hlo(dumped), int(place * len(dumped))
    try:
        memory = memory_from_hlo(dumped[:at] + bytes([byte]) + dumped[at + 1 :])
    except HloError as error:
        assert "Got:" in str(error)
    else:
        # What may differ is what no second figure vouches for: names, the flags and the spare bytes of an allocation.
        sizes = {b.size_bytes for b in whole.temporaries}
        assert {b.size_bytes for b in memory.temporaries} <= sizes
