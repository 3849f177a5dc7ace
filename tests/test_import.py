"""`import jaxckpt` is light: it loads nothing that it does not need yet."""

import subprocess
import sys

CODE = """
import sys
import jaxckpt
heavy = {"flax", "optax", "scipy", "matplotlib", "IPython", "rich", "typer", "tomlkit"} & set(sys.modules)
assert not heavy, heavy
import jax
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized()
assert set(jaxckpt.__all__) <= set(dir(jaxckpt))
for name in jaxckpt.__all__:
    getattr(jaxckpt, name)
assert not xla_bridge.backends_are_initialized()
"""


def test_importing_loads_nothing_heavy_and_every_public_name_is_there():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_not_public_is_an_attribute_error():
    import jaxckpt
    import pytest

    with pytest.raises(AttributeError, match="no attribute 'plann'"):
        jaxckpt.plann
