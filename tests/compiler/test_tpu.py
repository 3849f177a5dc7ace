"""One real compilation for a TPU that is not there."""

import jax
import jax.numpy as jnp
import pytest

from jaxckpt._compilers import compiler_for
from jaxckpt._errors import CompileError
from jaxckpt.compiler import footprint
from jaxckpt.machine import Target


@pytest.mark.slow
@pytest.mark.skipif(not compiler_for("tpu").fits, reason="libtpu is not installed")
def test_a_tpu_is_compiled_for_and_says_when_it_does_not_fit():
    small, large = (jax.ShapeDtypeStruct((rows,), jnp.float32) for rows in (2**18, 2**32))
    held = jax.random.normal(jax.random.key(0), (2**18,))
    made = footprint(lambda x: x + held, small, target="v5e")
    assert made.argument_bytes == made.output_bytes == 2**20
    assert made.constant_bytes == 0
    assert made.generated_code_bytes > 2**20  # the closed-over array is in there
    assert made.total_bytes == 2**21 + made.generated_code_bytes
    with pytest.raises(CompileError, match="does not fit") as caught:
        footprint(jnp.sin, large, target="v5e")
    assert caught.value.resource_exhausted
    assert caught.value.needed_bytes > caught.value.available_bytes == Target("v5e").memory_bytes
