"""What the tests of targets share."""

import pytest

from jaxckpt._compilers import compiler_for


@pytest.fixture(scope="session")
def cuda_compiler():
    """Skips where NVIDIA's compiler is not installed."""
    compiler = compiler_for("cuda")
    if not compiler.fits:
        pytest.skip(f"{compiler.package} {compiler.version} (needed {compiler.needed_version})")
    return compiler


@pytest.fixture(scope="session")
def tpu_compiler():
    """Skips where Google's compiler is not installed."""
    compiler = compiler_for("tpu")
    if not compiler.fits:
        pytest.skip("libtpu is not installed")
    return compiler
