"""What compilers say is explained; memory that lacks is told from everything else."""

import pytest

from jaxckpt.compiler.failures import COMPILE_FAILURES, compile_error, failure_of
from jaxckpt.machine import Target

EXHAUSTED = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO "
    "temporaries (20.02G) exceeds available HBM (15.75G). HLO module: jit_chain.\nSee https://openxla.org"
)


def test_exhausted_memory_has_the_compilers_figures():
    error = compile_error(RuntimeError(EXHAUSTED), name="chain", target=Target("v5e"))
    assert error.resource_exhausted
    assert error.needed_bytes == int(20.02 * 2**30)
    assert error.available_bytes == int(15.75 * 2**30) == Target("v5e").memory_bytes
    assert str(error).startswith(
        'step "chain" cannot be compiled for target "v5e:1x1": it does not fit.\n  Got:    RESOURCE_EXHAUSTED: E1000'
    )
    assert "openxla.org" not in str(error)


def test_exhausted_memory_without_figures_is_explained():
    error = compile_error(RuntimeError("RESOURCE_EXHAUSTED: sorry"), name="f", target=Target("h200"))
    assert error.resource_exhausted
    assert error.needed_bytes is None


def test_what_we_cannot_explain_keeps_the_compilers_words():
    error = compile_error(ValueError("INTERNAL: the moon"), name="f", target=Target("h200"))
    assert "the compiler refuses it" in str(error)
    assert "INTERNAL: the moon" in str(error)
    assert not error.resource_exhausted
    assert "ZeroDivisionError" in str(compile_error(ZeroDivisionError(), name="f", target=Target("h200")))


@pytest.mark.parametrize("failure", COMPILE_FAILURES, ids=lambda failure: failure.meaning)
def test_every_failure_is_found_by_each_of_its_signs(failure):
    assert all(failure_of(f"INTERNAL: {sign} (code 3)") is failure for sign in failure.signs)
