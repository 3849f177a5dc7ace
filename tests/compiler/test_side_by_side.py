"""Several steps are compiled at once, with the figures that each has alone."""

import threading

import jax
import jax.numpy as jnp
import pytest

from jaxckpt._errors import CompileError
from jaxckpt.compiler import compile_side_by_side, lower_flat, side_by_side
from jaxckpt.machine import Target

SPEC = jax.ShapeDtypeStruct((256, 256), jnp.float32)


def lowered(power, **options):
    return lower_flat(lambda x: (jnp.linalg.matrix_power(x, power),), (SPEC,), target=Target("h200"), **options)


@pytest.mark.parametrize("most", [1, 2])
def test_figures_come_in_order_and_are_those_of_each_alone(monkeypatch, most):
    monkeypatch.setattr(side_by_side, "most_compiles", lambda: most)
    alone = [lowered(power).compile().footprint for power in (2, 4, 8)]
    made = [each.footprint for each in compile_side_by_side(map(lowered, (2, 4, 8)))]
    assert [each.total_bytes for each in made] == [each.total_bytes for each in alone]
    assert [each.step_s for each in made] == [each.step_s for each in alone]


def test_steps_after_the_first_are_compiled_in_other_threads(monkeypatch):
    monkeypatch.setattr(side_by_side, "most_compiles", lambda: 2)
    threads = []

    class Recorded:
        def compile(self):
            threads.append(threading.current_thread())

    monkeypatch.setattr(side_by_side, "LoweredStep", Recorded)
    compile_side_by_side([Recorded(), Recorded(), Recorded()])
    assert threads[0] is threading.main_thread()
    assert threading.main_thread() not in threads[1:]


@pytest.mark.parametrize("most", [1, 2])
def test_an_error_of_a_later_step_is_raised(monkeypatch, most):
    monkeypatch.setattr(side_by_side, "most_compiles", lambda: most)
    with pytest.raises(CompileError):
        compile_side_by_side([lowered(2), lowered(4, compiler_options=(("xla_no_such_option", 1),))])
