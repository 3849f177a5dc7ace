"""Every way to write a step, one row of docs/call-styles.md each: planned, applied, and trained beside its own jit."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxckpt
from tests.calling.styles import STYLES

DOCS = Path(__file__).parents[2] / "docs" / "call-styles.md"
STEPS = 20


def arrays(*trees) -> list[np.ndarray]:
    """All arrays of arguments and results."""
    leaves = [leaf for leaf in jax.tree.leaves(trees) if hasattr(leaf, "dtype")]
    return [
        np.asarray(jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in leaves
    ]


def trained(function, style) -> list[np.ndarray]:
    """What 20 steps leave in the results and the arguments."""
    args, kwargs = style.make()
    out = None
    for _ in range(STEPS):
        out = function(*args, **kwargs)
        args, kwargs = style.again(args, kwargs, out)
    return arrays(out, args)


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_a_planned_step_trains_as_the_step_does(style):
    args, kwargs = style.make()
    step = jaxckpt.Step(style.step, args, kwargs=kwargs, donate_argnums=style.donate_argnums)
    plan = jaxckpt.plan(step, budget="1GiB", target="cpu", strategy="full")
    assert plan.decisions
    expected = trained(style.own_jit, style)
    ways = (
        [plan.apply(style.step)] if style.jit is None else [plan.apply(style.step), style.jit(plan.apply(style.step))]
    )
    for planned in ways:
        for one, other in zip(trained(planned, style), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


def test_the_table_of_the_docs_has_the_rows_that_are_tested():
    rows = re.findall(r"^\| ([^|]+?) +\|", DOCS.read_text(), flags=re.MULTILINE)
    assert {str(style) for style in STYLES} <= set(rows)
    assert len({str(style) for style in STYLES}) == len(STYLES)
