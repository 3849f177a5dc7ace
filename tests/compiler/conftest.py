"""What the tests of footprints share."""

import jax
import pytest

from jaxckpt._compilers import compiler_for
from jaxckpt.machine import Target


@pytest.fixture(scope="session")
def h200() -> Target:
    """One H200 that is not there; skips where NVIDIA's compiler is not installed."""
    compiler = compiler_for("cuda")
    if not compiler.fits:
        pytest.skip(f"{compiler.package} {compiler.version} (needed {compiler.needed_version})")
    return Target("h200")


@pytest.fixture(scope="session")
def h200x8(h200) -> Target:
    """Eight of them in one host."""
    return Target("h200:8")


@pytest.fixture
def f32():
    """Describes a float32 array."""
    return lambda *shape, **more: jax.ShapeDtypeStruct(shape, "float32", **more)
