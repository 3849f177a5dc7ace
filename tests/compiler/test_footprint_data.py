"""The figures as plain data."""

import dataclasses
import json

import pytest
from hypothesis import given, settings, strategies as st

from jaxckpt._errors import PlanFileError
from jaxckpt.compiler import Footprint

SMALL = Footprint(argument_bytes=300, output_bytes=200, alias_bytes=150, temp_bytes=700)


def test_the_total_counts_what_is_donated_once():
    assert SMALL.total_bytes == 300 + 200 - 150 + 700


def test_constants_and_code_are_one_program_and_counted_once():
    assert dataclasses.replace(SMALL, constant_bytes=40).total_bytes == SMALL.total_bytes + 40
    both = dataclasses.replace(SMALL, constant_bytes=40, generated_code_bytes=50)
    assert both.total_bytes == SMALL.total_bytes + 50


def test_the_total_has_no_host_memory_and_unread_arguments():
    more = dataclasses.replace(
        SMALL,
        host_argument_bytes=1,
        host_output_bytes=2,
        host_temp_bytes=4,
        host_alias_bytes=1,
        unused_argument_bytes=9,
    )
    assert more.total_bytes == SMALL.total_bytes
    assert more.host_bytes == 6


figures = st.integers(0, 2**50)


@given(figures, figures, st.lists(st.tuples(st.text(), st.integers() | st.booleans() | st.text())))
@settings(derandomize=True)
def test_a_footprint_reads_back_from_json(argument_bytes, host_temp_bytes, options):
    footprint = dataclasses.replace(
        SMALL,
        argument_bytes=argument_bytes,
        host_temp_bytes=host_temp_bytes,
        compiler_options=tuple(options),
        caveats=("It is small.",),
        target="h200:8",
        compile_s=0.25,
    )
    assert Footprint.from_dict(json.loads(json.dumps(footprint.to_dict()))) == footprint


def test_a_footprint_hashes_and_cannot_be_changed():
    assert hash(SMALL) == hash(dataclasses.replace(SMALL))
    with pytest.raises(dataclasses.FrozenInstanceError):
        SMALL.temp_bytes = 0


def test_keys_that_are_not_ours_are_all_named():
    plain = SMALL.to_dict() | {"colour": 1}
    del plain["temp_bytes"], plain["alias_bytes"], plain["caveats"]
    with pytest.raises(PlanFileError) as caught:
        Footprint.from_dict(plain)
    assert caught.value.missing == ("alias_bytes", "temp_bytes")
    assert caught.value.unknown == ("colour",)


def test_it_prints_its_parts():
    text = dataclasses.replace(SMALL, target="h200", constant_bytes=8, host_temp_bytes=2048).summary()
    assert text == (
        "1.033 KiB on h200: arguments 300 B + outputs 200 B - alias 150 B + temporaries 700 B + program 8 B, host 2 KiB"
    )
