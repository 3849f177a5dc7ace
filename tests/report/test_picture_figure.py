"""Figures: PNG, SVG and PDF are written, names stand in them as they are, and the peak is labelled."""

import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from matplotlib.text import Text

import jaxckpt
from jaxckpt.compiler import Footprint
from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture import memory_figure, save_figure
from tests.report.maps import blocks, memory_maps

BARE = Footprint(argument_bytes=1, output_bytes=1, alias_bytes=0, temp_bytes=1, target="h200")


def texts_of(path):
    return [element.text for element in ElementTree.parse(path).iter() if element.tag.endswith("}text")]


def test_a_png_is_written(tmp_path):
    jaxckpt.draw(blocks(3), tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")


def test_a_pdf_is_written(tmp_path):
    jaxckpt.draw(blocks(3), tmp_path / "map.PDF")
    assert (tmp_path / "map.PDF").read_bytes().startswith(b"%PDF")


def test_an_svg_says_layers_phases_and_the_peak_in_words(tmp_path):
    memory = blocks(12)
    jaxckpt.draw(BARE.with_memory(memory), tmp_path / "map.svg")
    texts = texts_of(tmp_path / "map.svg")
    assert {"jit_step on h200", "block_0 to block_11", "head", "forward", "backward"} <= set(texts)
    assert f"peak: 1.04 GiB at kernel {memory.peak}" in texts
    assert any("allocated, fragmentation 1.009" in text for text in texts)


def test_layer_names_are_shown_and_not_read_as_markup_or_formula(tmp_path):
    memory = blocks(2, prefix="net/<script>alert(1)</script>$\\frac_", head="_head & tail\x00\n")
    save_figure(memory, tmp_path / "map.svg", title="<b>$x$\x1b")
    raw = (tmp_path / "map.svg").read_text()
    assert "<script" not in raw and "<b>" not in raw
    texts = texts_of(tmp_path / "map.svg")
    assert "<b>$x$?" in texts and "_head & tail??" in texts
    assert any("<script>alert(1)" in text for text in texts)


def test_equal_maps_give_equal_files(tmp_path):
    for name in ("a.svg", "b.svg"):
        save_figure(blocks(2), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize("color", ["layer", "role", "part", "line", None])
def test_every_way_to_colour_names_its_groups(color):
    texts = {text.get_text() for text in memory_figure(blocks(3), color=color).findobj(Text)}
    expected = {"layer": "block_0 to block_2", "role": "residual", "part": "forward", "line": "me/model.py:31"}
    assert expected[color or "layer"] in texts


def test_a_step_of_one_scope_names_its_lines_by_their_ends(tmp_path):
    memory = blocks(12)
    sources = [f"a_folder_of_a_long_name/model.py:{b.id % 3}" for b in memory.buffers]
    buffers = tuple(replace(b, scope="", source=source) for b, source in zip(memory.buffers, sources, strict=True))
    save_figure(replace(memory, buffers=buffers), tmp_path / "map.svg")
    assert any((text or "").startswith("…") and text.endswith("model.py:2") for text in texts_of(tmp_path / "map.svg"))


@settings(max_examples=5)
@given(memory_maps())
def test_any_map_is_drawn(memory):
    memory_figure(memory, color="role").canvas.draw()


def test_a_program_without_kernels_is_drawn(tmp_path):
    save_figure(MemoryMap(program="none", kernels=(), buffers=(), allocations=()), tmp_path / "none.png")


def test_drawing_leaves_no_window_and_no_state_of_pyplot():
    code = (
        "import sys; from tests.report.maps import blocks; from jaxckpt.report.picture import memory_figure;"
        "assert 'matplotlib' not in sys.modules; memory_figure(blocks(2));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(jaxckpt.MissingPackageError, match=r'pip install "jaxckpt\[pictures\]"'):
        jaxckpt.draw(blocks(2), tmp_path / "map.png")
    jaxckpt.draw(blocks(2), tmp_path / "map.html")


def test_another_ending_is_refused_in_four_lines(tmp_path):
    with pytest.raises(jaxckpt.PictureError) as caught:
        jaxckpt.draw(blocks(2), tmp_path / "map.jpeg")
    assert len(str(caught.value).splitlines()) == 4
    assert "'.jpeg'" in str(caught.value) and ".html, .png, .svg, .pdf" in str(caught.value)
    assert caught.value.path == tmp_path / "map.jpeg" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", [BARE, None, "a path"])
def test_what_has_no_memory_map_is_refused_in_four_lines(what, tmp_path):
    with pytest.raises(jaxckpt.PictureError, match="no memory map") as caught:
        jaxckpt.draw(what, tmp_path / "map.html")
    assert len(str(caught.value).splitlines()) == 4 and not list(tmp_path.iterdir())


def test_of_a_plan_its_footprint_is_to_be_drawn(tmp_path):
    step = jax.grad(lambda w: jnp.sum(jnp.tanh(jnp.tanh(w))))
    plan = jaxckpt.plan(step, jnp.ones(4), budget="1MiB", target="cpu")
    with pytest.raises(jaxckpt.PictureError, match=r"plan\.footprint") as caught:
        jaxckpt.draw(plan, tmp_path / "map.html")
    assert "a footprint for" not in str(caught.value)


def test_an_unknown_colouring_is_refused():
    with pytest.raises(jaxckpt.PictureError, match="'dtype'"):
        memory_figure(blocks(2), color="dtype")
