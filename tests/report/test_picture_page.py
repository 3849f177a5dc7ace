"""The page: small, complete in itself, and deaf to what names try to say."""

import json
import re
import time
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

import jaxckpt
from jaxckpt.hlo import MemoryMap
from jaxckpt.report.picture import memory_page
from jaxckpt.report.picture.page import embedded_json
from tests.report.maps import blocks, memory_maps

EVIL = "</script><script>alert(1)</script><!--{{data}}\u2028&lt;\x00"


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text, parse_constant=pytest.fail)  # NaN is Python's, not JSON's


def with_names(memory, name):
    buffers = tuple(replace(b, name=name, scope=f"net/{name}", op=name, source=name) for b in memory.buffers)
    kernels = tuple(replace(k, name=name, scope=name, op=name, source=name) for k in memory.kernels)
    return replace(memory, program=name, buffers=buffers, kernels=kernels, problems=(name,))


def test_a_large_program_gives_a_small_page_quickly():
    memory = blocks(48, small=24)  # 1,201 buffers, 2,403 kernels
    started = time.perf_counter()
    page = memory_page(memory)
    assert time.perf_counter() - started < 3
    assert len(page.encode()) < 3_000_000


def test_a_huge_program_gives_a_bounded_page():
    page = memory_page(blocks(200, small=99))
    assert len(page.encode()) < 3_000_000


def test_the_page_names_nothing_to_fetch():
    page = memory_page(blocks(3))
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(|\bsrc=|fetch\(|XMLHttpRequest|import\(", page)
    assert re.findall(r'href="([^"]*)"', page) == ["data:,"]
    assert "default-src 'none'" in page


def test_the_data_is_what_the_map_says():
    memory = blocks(12, small=3)
    data = data_of(memory_page(memory))
    (drawn,) = data["maps"]
    assert drawn["kernels"] == len(memory.kernels)
    assert drawn["peak"] == {"at": memory.peak, "bytes": memory.peak_bytes}
    assert sum(r[9] for r in drawn["rectangles"]) == memory.peak_bytes
    assert ["total on the device", sum(a.size_bytes for a in memory.allocations)] in drawn["figures"]
    assert "net/block_3/attention" in data["texts"] and "/home/me/model.py:31" in data["texts"]
    assert [group["label"] for group in data["groups"]["layer"]][:3] == ["block_0", "block_1", "block_2"]
    for key in ("layer", "role", "part", "line"):
        sums = [sum(differences[: at + 1]) for differences in drawn["curves"][key] for at in [memory.peak]]
        assert sum(sums) == memory.peak_bytes
    assert drawn["largest"][0][1] == 300 * 2**20
    assert drawn["largest_of"] == len(memory.alive_at(memory.peak))


def test_names_can_neither_end_the_data_nor_begin_a_tag():
    page = memory_page(with_names(blocks(3), EVIL))
    assert "alert(1)</script>" not in page and "<!--{{" not in page
    assert page.count("</script>") == memory_page(blocks(3)).count("</script>")
    shown = EVIL.replace("\x00", "?").replace("\u2028", "?")
    assert shown in data_of(page)["texts"] and data_of(page)["maps"][0]["problems"] == [shown]


@given(memory_maps(), st.text())
def test_any_map_with_any_names_is_a_page(memory, name):
    page = memory_page(with_names(memory, name))
    page.encode()
    assert len(data_of(page)["maps"][0]["samples"]) == len(memory.kernels)


def test_a_program_without_kernels_is_a_page():
    data = data_of(memory_page(MemoryMap(program="none", kernels=(), buffers=(), allocations=())))
    assert data["maps"][0]["rectangles"] == [] and data["maps"][0]["samples"] == []
    assert data_of(memory_page({}))["maps"] == []


def test_maps_of_one_page_share_their_groups():
    few, many = blocks(4), blocks(12)
    data = data_of(memory_page({"few": few, "many": many}, total_bytes={"many": 77}))
    assert [each["name"] for each in data["maps"]] == ["few", "many"]
    assert [each["label"] for each in data["groups"]["layer"]] == [*(f"block_{at}" for at in range(12)), "head"]
    for drawn, memory in zip(data["maps"], (few, many), strict=True):
        at_peak = [sum(curve[: memory.peak + 1]) for curve in drawn["curves"]["layer"]]
        assert len(at_peak) == 13 and sum(at_peak) == memory.peak_bytes
        assert bool(at_peak[11]) == (memory is many)
    assert data["maps"][1]["figures"][0] == ["total on the device", 77]


def test_a_name_of_half_a_character_is_written(tmp_path):
    memory = with_names(blocks(2), "caf\udce9")
    jaxckpt.draw(memory, tmp_path / "map.html", title="caf\udce9")
    assert "<title>caf?</title>" in (tmp_path / "map.html").read_text("utf-8")


@pytest.mark.parametrize("data", [{"a": "</SCRIPT>"}, ["<!--", "]]>"], "&amp;"])
def test_embedded_json_reads_back(data):
    text = embedded_json(data)
    assert json.loads(text) == data
    assert not set("<>&") & set(text)
