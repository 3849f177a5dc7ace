"""Folding of layers: which number is the layer, and that nothing is lost on the way."""

import pytest
from hypothesis import given, strategies as st

from jaxckpt.ir.layers import fold_layers, layer_ranges, layers_from_ranges, unfolded_scope

_parts = st.sampled_from(
    ["GPT2", "block_0", "block_1.attn", "block_1", "block_11", "b_01", "*", "LayerNorm_0", "LayerNorm_1", "7", ""]
)
_items = st.lists(st.tuples(st.lists(_parts, max_size=3).map("/".join), st.integers(0, 1)), max_size=20)


def folded(*scopes: str):
    return [
        (group.scope, layer_ranges(group.layers)) for group in fold_layers(scopes, scope=str, alike=lambda scope: None)
    ]


def test_equal_layers_become_one_group():
    assert folded(*(f"GPT/block_{i}/qkv" for i in range(12))) == [("GPT/block_*/qkv", "0-11")]


def test_the_number_of_the_model_is_not_taken_for_the_layer():
    assert folded("GPT2/block_0/qkv", "GPT2/block_1/qkv") == [("GPT2/block_*/qkv", "0-1")]


def test_the_number_that_puts_most_together_is_the_layer():
    scopes = [f"net/stage_{s}/block_{b}" for s in range(2) for b in range(5)]
    assert folded(*scopes) == [("net/stage_0/block_*", "0-4"), ("net/stage_1/block_*", "0-4")]


def test_of_two_equal_numbers_the_outer_one_is_the_layer():
    assert folded("a_0/b_0", "a_0/b_1", "a_1/b_0", "a_1/b_1") == [("a_*/b_0", "0-1"), ("a_*/b_1", "0-1")]


@pytest.mark.parametrize("scope", ["head", "", "GPT2/head", "block_3", "a*b_1"])
def test_a_single_item_keeps_its_scope(scope):
    assert folded(scope, scope) == [(scope, "")]


def test_a_scope_with_its_own_star_is_not_folded():
    assert folded("x_*", "x_0", "x_1") == [("x_*", ""), ("x_*", "0-1")]


def test_numbers_that_are_written_in_two_ways_are_not_folded():
    assert folded("block_01", "block_02") == [("block_01", ""), ("block_02", "")]


@given(_items)
def test_nothing_is_lost_or_moved(items):
    found = []
    for group in fold_layers(items, scope=lambda item: item[0], alike=lambda item: item[1]):
        scopes = [unfolded_scope(group.scope, layer) for layer in group.layers] or [group.scope]
        for scope, members in zip(scopes, group.members, strict=True):
            assert {member[0] for member in members} == {scope}
            found += members
        assert len({member[1] for member in group.items}) == 1
        assert len(group.layers) != 1
    assert sorted(found) == sorted(items)


@given(st.lists(st.integers(0, 40), min_size=1))
def test_layer_numbers_read_back(numbers):
    assert list(layers_from_ranges(layer_ranges(numbers), most=len(numbers))) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "0-3", "0-999999999999", "1,", "0-1,2-3"])
def test_text_that_names_too_many_layers_is_refused(text):
    with pytest.raises(ValueError, match="layers"):
        layers_from_ranges(text, most=3)


def test_a_repeated_number_counts_once():
    scopes = [f"GPT/block_{n}/block_{n}.attn/qkv_0" for n in range(3)]
    (group,) = fold_layers(scopes, scope=str, alike=lambda _: None)
    assert (group.scope, group.layers) == ("GPT/block_*/block_*.attn/qkv_0", (0, 1, 2))
    assert [unfolded_scope(group.scope, layer) for layer in group.layers] == scopes
