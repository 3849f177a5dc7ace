"""What `jaxckpt footprint -o` writes for other tools."""

import json

from jaxckpt.hlo import memory_from_hlo
from tests.cli.test_cli import program

STEP = """
import jax
import jax.numpy as jnp

def make_step():
    step = jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum())
    return step, (jax.ShapeDtypeStruct((64, 64), "float32"), jax.ShapeDtypeStruct((128, 64), "float32"))
"""


def test_a_trace_for_perfetto_and_the_program_for_xprof(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    outputs = ["step.trace.json", "step.hlo.pb", "step.json", "step.html"]
    words = [word for name in outputs for word in ("-o", name)]
    done = program("footprint", "train.py:make_step", "--target", "cpu", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "step.trace.json").read_text())["traceEvents"]
    memory = memory_from_hlo((tmp_path / "step.hlo.pb").read_bytes(), platform="cpu")
    assert memory.temp_bytes == json.loads((tmp_path / "step.json").read_text())["footprint"]["temp_bytes"]
    assert (tmp_path / "step.html").read_text().startswith("<!doctype html>")


def test_a_saved_footprint_has_no_program_and_says_so(tmp_path):
    (tmp_path / "train.py").write_text(STEP)
    program("footprint", "train.py:make_step", "--target", "cpu", "-o", "step.json", cwd=tmp_path)
    done = program("footprint", "step.json", "-o", "step.hlo.pb", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no program" in done.stderr
