"""Where pictures put things: no byte is lost by folding or by thinning out, and layers are what people call layers."""

from dataclasses import replace
from importlib import import_module

import pytest
from hypothesis import given, strategies as st

from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture import layout
from jaxckpt.report.picture.groups import NEUTRAL, colours, layer_groups
from jaxckpt.report.picture.layout import KEYS
from tests.report.maps import blocks, memory_maps

SIZES = st.sampled_from((1, 3, 10, 1000))
EMPTY = MemoryMap(program="nothing", kernels=(), buffers=(), allocations=())


@given(memory_maps(), SIZES, SIZES)
def test_rectangles_lose_no_byte_at_the_peak_however_small_the_picture(memory, width, height):
    picture = layout(memory, width=width, height=height)
    assert sum(r.peak_bytes for r in picture.rectangles) == memory.peak_bytes
    assert sum(r.size_bytes for r in picture.rectangles) == sum(b.size_bytes for b in memory.temporaries)
    members = [b.id for r in picture.rectangles for b in r.members]
    assert sorted(members) == [b.id for b in memory.temporaries]


@given(memory_maps(), SIZES, SIZES)
def test_a_rectangle_covers_its_members_and_has_their_groups(memory, width, height):
    picture = layout(memory, width=width, height=height)
    bases, base = {}, 0
    for index in sorted({b.allocation for b in memory.temporaries}):
        bases[index], base = base, base + 2000
    _, layer_of = layer_groups(memory.temporaries)
    for r in picture.rectangles:
        for b in r.members:
            low = bases[b.allocation] + b.offset_bytes
            assert r.start <= b.born <= b.dies < r.stop
            assert r.low_bytes <= low <= low + b.size_bytes <= r.high_bytes <= max(picture.extent_bytes, r.high_bytes)
            assert r.layer == layer_of[b.scope]
            assert picture.groups["role"][r.role].label == b.role.replace("_", " ")
            assert picture.groups["part"][r.part].label == b.part


@given(memory_maps(), st.integers(1, 12), st.sampled_from(KEYS))
def test_stacked_curves_reach_the_peak_and_are_the_live_bytes(memory, points, key):
    picture = layout(memory, points=points)
    stacked = [sum(column) for column in zip(*picture.curves[key], strict=True)] or [0] * len(picture.samples)
    assert stacked == [memory.live_bytes[sample.at] for sample in picture.samples]
    assert max(stacked) == memory.peak_bytes
    assert len(picture.samples) <= points
    assert memory.peak in [sample.at for sample in picture.samples]


@pytest.mark.parametrize("points", [1, 2, 5, 26])
def test_the_peak_is_on_the_curve_however_few_its_points(points):
    memory = blocks(12)
    picture = layout(memory, points=points)
    assert memory.peak in [sample.at for sample in picture.samples]
    for key in KEYS:
        assert max(map(sum, zip(*picture.curves[key], strict=True))) == memory.peak_bytes


@given(memory_maps(), st.integers(1, 12))
def test_samples_parts_and_phases_cover_all_kernels_once(memory, points):
    picture = layout(memory, width=points, points=points)
    for loop_splits in (picture.samples, picture.parts, picture.phases):
        ends = [0, *(s.stop for s in loop_splits)]
        assert [s.start for s in loop_splits] == ends[:-1] and ends[-1] == len(memory.kernels)
    assert all(s.start <= s.at < s.stop for s in picture.samples)


def test_visible_buffers_are_separate_and_small_ones_are_folded():
    memory = blocks(12, small=200)
    picture = layout(memory)
    large = [r for r in picture.rectangles if r.members[0].size_bytes > 2**20]
    assert len(memory.temporaries) == 2413
    assert len(large) == 13 and all(len(r.members) == 1 for r in large)
    assert len(picture.rectangles) < 400


def test_folding_goes_on_until_there_are_few_enough(monkeypatch):
    # The package has a function of the module's name.
    monkeypatch.setattr(import_module("jaxckpt.report.picture.layout"), "_MOST_RECTANGLES", 30)
    picture = layout(blocks(12, small=200))
    assert len(picture.rectangles) <= 30
    assert picture.rectangles[0].size_bytes > 0


def test_a_program_without_kernels_is_an_empty_picture():
    picture = layout(EMPTY)
    assert (picture.rectangles, picture.samples, picture.phases, picture.extent_bytes) == ((), (), (), 0)


def test_phases_name_forward_backward_and_update():
    assert [phase.label for phase in layout(blocks(3)).phases] == ["forward", "backward", "update"]


def labels(*scopes):
    buffers = [replace(blocks(1).buffers[0], id=at, born=at, scope=scope) for at, scope in enumerate(scopes)]
    groups, index = layer_groups(buffers)
    assert set(index) == set(scopes)
    return [group.label for group in groups]


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        (["GPT/block_1/LN_0", "GPT/block_0/LN_1", "GPT/head", ""], ["block_0", "block_1", "head", "no scope"]),
        (["GPT/block_2", "GPT/block_10", "GPT/block_1"], ["block_1", "block_2", "block_10"]),
        (["net/0/a", "net/1/a", "net/2/b"], ["0", "1", "2"]),
        (["enc/layer_0/x", "enc/layer_1/x", "enc/layer_2/x"], ["layer_0", "layer_1", "layer_2"]),
        (
            ["enc/l_0", "enc/l_1", "enc/l_2", "dec/l_0", "dec/l_1"],
            ["enc/l_0", "enc/l_1", "enc/l_2", "dec/l_0", "dec/l_1"],
        ),
        (["net/embed", "net/layers/mlp", "net/head"], ["embed", "layers", "head"]),
        (["embed", "head"], ["embed", "head"]),
        (["net/a/b"], ["net"]),
        (["", ""], ["no scope"]),
        ([], []),
    ],
)
def test_a_layer_is_the_scope_at_the_depth_at_which_layers_lie(scopes, expected):
    assert labels(*scopes) == expected


def test_two_blocks_of_many_numbered_parts_are_two_layers():
    scopes = [f"net/block_{block}/Dense_{dense}" for block in range(2) for dense in range(6)]
    assert labels(*scopes) == ["block_0", "block_1"]


def test_thousands_of_layers_are_cut_to_the_largest():
    assert len(labels(*(f"net/block_{at}" for at in range(1000)))) == 256


def test_a_family_is_one_colour_gradient_and_the_rest_is_grey():
    groups = layout(blocks(12)).groups["layer"]
    shades = colours(groups)
    family = [shade for group, shade in zip(groups, shades, strict=True) if group.family == 0]
    lightness = [sum(w * c for w, c in zip((299, 587, 114), bytes.fromhex(s[1:]), strict=True)) for s in family]
    assert len(set(family)) == 12 and lightness == sorted(lightness)
    assert colours(layer_groups([replace(blocks(1).buffers[0], scope="")])[0]) == (NEUTRAL,)
