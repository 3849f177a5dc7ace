"""What stages by themselves tell of the whole step."""

from itertools import product

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given

from jaxckpt.solve import Problem, boundaries
from jaxckpt.solve.effort import Effort
from jaxckpt.solve.optimal.options import stage_options
from jaxckpt.solve.optimal.stage_memory import profile_stages
from jaxckpt.solve.optimal.stage_problem import split_into_stages
from jaxckpt.solve.problem import decide
from jaxckpt.solve.stages import candidate_cuts
from jaxckpt.trace import trace_step
from tests.graphs import RATES, chain, graphs


@pytest.mark.parametrize(("length", "stage"), [(12, 3), (12, 4), (9, 3)])
def test_stages_tell_peak_and_time_of_all_combinations_in_chains(length, stage):
    problem = Problem(graph=chain(length, flops=1e9), rates=RATES, effort=Effort(options=4))
    stages = tuple(range(0, length, stage))
    cut = split_into_stages(problem, stages)
    options = stage_options(cut, {})
    seen = profile_stages(cut, options, {})
    for chosen in product(*(range(len(own)) for own in options)):
        taken = [own[k] for own, k in zip(options, chosen, strict=True)]
        saved = boundaries(problem, stages).union(*(option.saved for option in taken))
        untouched = frozenset().union(*(option.untouched for option in taken))
        full = decide(problem, saved, stages, "optimal", untouched).predicted
        assert seen.peak_bytes(options, chosen) == full.temp_bytes
        seconds = sum(own[k] for own, k in zip(seen.stage_s, chosen, strict=True))
        assert seconds == pytest.approx(full.step_s)


@given(graphs())
def test_where_stages_keep_nothing_windows_are_what_the_whole_replay_shows(graph):
    problem = Problem(graph=graph, rates=RATES, effort=Effort(options=3))
    for stages in candidate_cuts(problem):
        cut = split_into_stages(problem, stages)
        options = stage_options(cut, {})
        seen = profile_stages(cut, options, {})
        assert seen.peak_bytes(options, [0] * len(options)) == cut.baseline.peak_bytes
        assert sum(own[0] for own in seen.stage_s) == pytest.approx(cut.baseline.step_s)


def test_stages_of_one_structure_are_tried_once():
    cut = split_into_stages(Problem(graph=chain(24), rates=RATES), tuple(range(0, 24, 3)))
    tried = {}
    profile_stages(cut, stage_options(cut, {}), tried)
    assert len(tried) < len(cut.stages) == 8


def test_an_untouched_stage_saves_what_the_compiler_would_save():
    """Weights in half precision and exponentials of softmaxes wait too, which no plan would save."""

    def loss(params, x):
        for query, key, out in params:
            q, k = (x @ w.astype("bfloat16") for w in (query, key))
            x = x + jax.nn.softmax((q @ k.T).astype("float32")).astype("bfloat16") @ x @ out.astype("bfloat16")
        return jnp.sum(x.astype("float32") ** 2)

    params = [tuple(jax.ShapeDtypeStruct((256, 256), "float32") for _ in range(3)) for _ in range(6)]

    def step(params, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    x = jax.ShapeDtypeStruct((128, 256), "bfloat16")
    problem = Problem(graph=trace_step(step, params, x, donate_argnums=0).graph, rates=RATES)
    stages = next(stages for stages in candidate_cuts(problem) if len(stages) > 6)
    cut = split_into_stages(problem, stages)
    options = stage_options(cut, {})
    last = [len(own) - 1 for own in options]
    untouched = frozenset[int]().union(*(own[k].untouched for own, k in zip(options, last, strict=True)))
    full = decide(problem, boundaries(problem, stages), stages, "optimal", untouched).predicted
    assert profile_stages(cut, options, {}).peak_bytes(options, last) == pytest.approx(full.temp_bytes, rel=0.03)
