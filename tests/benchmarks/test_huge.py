"""The huge models are as large as their papers say, and every matrix of theirs is split over the whole mesh."""

from math import prod

import jax
import pytest

from benchmarks.huge import MODELS

PARAMETERS = {
    "Llama 7B": 6_738_415_616,
    "GPT-3 175B": 96 * (12 * 12288**2 + 13 * 12288) + (2 * 50304 + 2048 + 2) * 12288,
}
POSITIONS = (2048, 12288)
"""GPT-3's are split over the hosts alone."""


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_counted_as_in_the_literature(name):
    _, made = MODELS[name].jitted()
    assert made.parameters == PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_moments_are_split_over_the_mesh(name):
    huge = MODELS[name]
    _, made = huge.jitted()
    ways = prod(huge.axes.values())
    leaves = jax.tree_util.tree_leaves_with_path(made.args[:2])
    assert len(leaves) > 3 * 10
    for path, leaf in leaves:
        parts = leaf.size / prod(huge.weight(path[1:], leaf).shard_shape(leaf.shape))
        if leaf.size > 2**24:
            assert parts == (64 if leaf.shape == POSITIONS else ways), jax.tree_util.keystr(path)
