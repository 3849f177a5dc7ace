"""The garbage collector is paused for a piece of work, and as it was before, whatever happens."""

import gc

import pytest

from jaxckpt.planner.gc_pause import collector_paused


def test_the_collector_is_off_inside_and_on_afterwards():
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_does_not_leave_it_off():
    with pytest.raises(ValueError, match="mine"), collector_paused():
        raise ValueError("mine")
    assert gc.isenabled()


def test_who_had_it_off_keeps_it_off():
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
