"""The page in a real browser without a window: it draws, answers the pointer and the keys, and fetches nothing."""

import json
from dataclasses import replace

import pytest

import jaxckpt
from jaxckpt.comparison import compare_footprints
from jaxckpt.hlo import Frame
from tests.memory_maps import made_footprint
from tests.report.maps import blocks

WRITTEN = """
window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (words, x, y) {
  const size = this.measureText(words), matrix = this.getTransform(), scale = window.devicePixelRatio;
  const [left, right] = [x - size.actualBoundingBoxLeft, x + size.actualBoundingBoxRight];
  const [top, bottom] = [y - size.actualBoundingBoxAscent, y + size.actualBoundingBoxDescent];
  const corners = [[left, top], [right, top], [left, bottom], [right, bottom]].map(([a, b]) => [
    (matrix.a * a + matrix.c * b + matrix.e) / scale, (matrix.b * a + matrix.d * b + matrix.f) / scale]);
  const [xs, ys] = [0, 1].map((at) => corners.map((corner) => corner[at]));
  window.written.push([words, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)]);
  return fill.apply(this, arguments);
};
"""
"""Keeps the words on a canvas with their places: left, top, right and bottom in pixels of the page."""


class Opened:
    """A page, and all that it fetched and complained of."""

    def __init__(self, browser, path, scheme="light", width=1400):
        self.requests, self.complaints = [], []
        self.page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 1000})
        self.page.add_init_script(WRITTEN)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.complaints.append(dialog.message), dialog.dismiss()))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn]")
        self.page.evaluate("() => new Promise(requestAnimationFrame)")
        self.url = path.as_uri()

    def place(self, memory, kernel, address):
        """Where a kernel and an address are on the screen."""
        box = json.loads(self.page.get_attribute(".over", "data-map"))
        canvas = self.page.locator(".over").bounding_box()
        across = kernel / len(memory.kernels)
        up = address / (max(memory.temp_bytes, memory.peak_bytes) * 1.01)
        left = canvas["x"] + box["left"] + across * (box["right"] - box["left"])
        return left, canvas["y"] + box["bottom"] - up * (box["bottom"] - box["top"])

    def pixel(self, place):
        script = """([x, y]) => {
          const canvas = document.querySelector(".base"), box = canvas.getBoundingClientRect();
          const scale = canvas.width / box.width;
          const copy = new OffscreenCanvas(1, 1).getContext("2d");
          copy.drawImage(canvas, (x - box.x) * scale, (y - box.y) * scale, 1, 1, 0, 0, 1, 1);
          return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }"""
        return bytes(self.page.evaluate(script, list(place))).hex()

    def written(self):
        """The words of the picture as it was drawn last, with their places."""
        self.page.evaluate("() => { window.written.length = 0; }")
        self.page.focus(".over")
        self.page.keyboard.press("0")
        return self.page.evaluate("() => window.written")

    def text(self, selector):
        return self.page.inner_text(selector)

    def is_quiet(self):
        return self.requests == [self.url] and not self.complaints


@pytest.fixture
def opened(browser, tmp_path):
    pages = []

    def open_map(memory, **how):
        jaxckpt.draw(memory, tmp_path / "map.html")
        pages.append(Opened(browser, tmp_path / "map.html", **how))
        return pages[-1]

    yield open_map
    for each in pages:
        each.page.close()


MEMORY = blocks(12)
BUFFER = MEMORY.buffers[3]
MIDDLE = (8.5, BUFFER.offset_bytes + BUFFER.size_bytes / 2)
BELOW_ITS_NAME = (8.5, BUFFER.offset_bytes + BUFFER.size_bytes / 6)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_renders_and_fetches_nothing(opened, scheme):
    there = opened(MEMORY, scheme=scheme)
    assert there.page.get_attribute("html", "data-drawn") == str(len(MEMORY.temporaries))
    assert "1.06 GiB\ntotal on the device" in there.text(".figures")
    assert "1.04 GiB" in there.text(".figures") and "fragmentation" in there.text(".figures")
    data = json.loads(there.page.evaluate("() => document.getElementById('data').textContent"))
    expected = bytes.fromhex(data["groups"]["layer"][3]["colour"].removeprefix("#"))
    drawn = bytes.fromhex(there.pixel(there.place(MEMORY, *BELOW_ITS_NAME)))
    assert all(abs(a - b) <= 2 for a, b in zip(drawn, expected, strict=True)), (drawn, expected)
    ground = there.pixel(there.place(MEMORY, 0.2, MEMORY.peak_bytes))
    assert ground == {"light": "ffffff", "dark": "14161a"}[scheme]
    assert there.is_quiet(), (there.requests, there.complaints)


def test_hovering_says_which_buffer_which_layer_and_which_line(opened):
    there = opened(MEMORY)
    there.page.mouse.move(*there.place(MEMORY, *MIDDLE))
    for panel in (".tip", "#details"):
        for words in ("fusion.3", "net/block_3/attention", "64 MiB", "/home/me/model.py:31", "residual"):
            assert words in there.text(panel).replace("\n", " ")
    there.page.mouse.move(0, 0)
    assert there.page.is_hidden(".tip")
    assert there.is_quiet()


def test_hovering_over_folded_buffers_says_how_many(opened):
    memory = blocks(12, small=200)
    folded = memory.buffers[12 * 201 - 20]
    there = opened(memory)
    there.page.mouse.move(*there.place(memory, memory.peak, folded.offset_bytes))
    assert "small buffers" in there.text(".tip")
    assert there.is_quiet()


def test_a_click_keeps_a_buffer_and_escape_lets_it_go(opened):
    there = opened(MEMORY)
    there.page.mouse.click(*there.place(MEMORY, *MIDDLE))
    there.page.mouse.move(0, 0)
    assert "net/block_3/attention" in there.text("#details")
    there.page.keyboard.press("Escape")
    assert "Point at a rectangle" in there.text("#details")
    there.page.keyboard.press("ArrowDown")
    assert "net/block_0/attention" in there.text("#details")
    assert there.is_quiet()


def test_dragging_zooms_to_a_time_range_and_0_shows_everything(opened):
    there = opened(MEMORY)
    inside = there.place(MEMORY, 1, BELOW_ITS_NAME[1])
    ground = there.pixel(inside)
    there.page.mouse.move(*there.place(MEMORY, 6, 1000))
    there.page.mouse.down()
    there.page.mouse.move(*there.place(MEMORY, 14, 1000), steps=3)
    there.page.mouse.up()
    assert there.pixel(inside) != ground, "block 3 reaches over the whole stretch"
    there.page.keyboard.press("0")
    assert there.pixel(inside) == ground
    there.page.mouse.wheel(0, -400)
    there.page.wait_for_timeout(100)
    there.page.keyboard.press("p")
    assert there.is_quiet()


def apart(one, other):
    return one[3] <= other[1] or other[3] <= one[1] or one[4] <= other[2] or other[4] <= one[2]


@pytest.mark.parametrize("width", [1400, 390])
def test_words_are_whole_and_axis_titles_keep_off_the_ticks(opened, width):
    head = replace(MEMORY.buffers[12], scope="a_network_of_a_long_name/with_a_head", name="a_fusion_of_a_long_name.1")
    there = opened(replace(MEMORY, buffers=(*MEMORY.buffers[:12], head)), width=width)
    words = there.written()
    (address,), (alive,) = ([each for each in words if each[0] == title] for title in ("address", "alive"))
    ticks = [each for each in words if each[0] == "0" or (each[0].endswith(("MiB", "GiB")) and each[0][0].isdigit())]
    assert len(ticks) > 6
    assert all(apart(title, tick) for title in (address, alive) for tick in ticks)
    box = json.loads(there.page.get_attribute(".over", "data-map"))
    edge = there.page.locator(".over").bounding_box()["width"]
    assert all(each[1] >= 0 and each[3] <= edge for each in words)
    (peak,) = [each for each in words if each[0].startswith("peak")]
    (name,) = [each for each in words if each[0].endswith("name.1")]
    assert all(box["left"] <= each[1] and each[3] <= box["right"] for each in (peak, name)), (peak, name)
    assert there.page.evaluate("() => document.documentElement.scrollWidth") == width
    assert there.is_quiet()


def test_one_legend_follows_every_colouring(opened):
    there = opened(MEMORY)
    place = there.place(MEMORY, *BELOW_ITS_NAME)
    by_layer = there.pixel(place)
    there.page.check("#color input[value=role]", force=True)
    assert there.pixel(place) != by_layer
    assert "residual" in there.text("#legend") and "logits" in there.text("#legend")
    there.page.check("#color input[value=line]", force=True)
    assert "me/model.py:31" in there.text("#legend") and "residual" not in there.text("#legend")
    assert there.is_quiet()


def test_a_step_of_one_scope_is_coloured_by_what_tells_its_buffers_apart(opened):
    lines = tuple(replace(b, scope="", source=f"model.py:{b.id % 3}") for b in MEMORY.buffers)
    there = opened(replace(MEMORY, buffers=lines))
    assert there.page.is_checked("#color input[value=line]")
    assert "model.py:2" in there.text("#legend")
    assert opened(MEMORY).page.is_checked("#color input[value=layer]")


def test_the_table_names_the_largest_buffers_at_the_peak(opened):
    there = opened(MEMORY)
    first = there.text(".peak tbody tr:first-child")
    assert "logits_fusion" in first and "300 MiB" in first and "net/head" in first
    there.page.click(".peak tbody tr:first-child button")
    assert "logits_fusion" in there.text("#details")
    assert there.is_quiet()


def test_a_kept_buffer_shows_its_python_stack(opened):
    frames = [("main", "train.py:9"), ("loss", "train.py:4"), ("Block.__call__", "/home/me/model.py:31")]
    stack = tuple(Frame(function=name, source=line, caller=at - 1) for at, (name, line) in enumerate(frames))
    frame_of = tuple(2 if b.id == 3 else -1 for b in MEMORY.buffers)
    there = opened(replace(MEMORY, frames=stack, frame_of=frame_of))
    there.page.mouse.click(*there.place(MEMORY, *MIDDLE))
    shown = [item.replace("\n", " ") for item in there.page.locator("#details .stack li").all_inner_texts()]
    assert shown == ["Block.__call__ /home/me/model.py:31", "loss train.py:4", "main train.py:9"]
    there.page.click(".peak tbody tr:first-child button")
    assert there.page.locator("#details .stack").count() == 0, "the stack of the logits is unknown"
    assert there.is_quiet()


def test_a_search_finds_buffers_in_map_and_table(opened):
    there = opened(MEMORY)
    place = there.place(MEMORY, *BELOW_ITS_NAME)
    drawn = there.pixel(place)
    there.page.fill("#search", "block_3 ATTENTION")
    assert there.text("#found") == "1 buffer, 64 MiB at the peak"
    assert there.pixel(place) == drawn and there.page.locator(".peak tbody tr:visible").count() == 1
    there.page.fill("#search", "block_3 logits")
    assert there.text("#found") == "0 buffers, 0 B at the peak"
    assert there.pixel(place) != drawn and there.page.locator(".peak tbody tr:visible").count() == 0
    there.page.fill("#search", "")
    assert there.text("#found") == "" and there.pixel(place) == drawn
    assert there.page.locator(".peak tbody tr:visible").count() == 13
    assert there.is_quiet()


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_a_comparison_draws_its_versions_with_one_scale_and_one_legend(opened, width, scheme):
    few = replace(MEMORY, buffers=MEMORY.buffers[6:], allocations=(replace(MEMORY.allocations[1], size_bytes=2**30),))
    few = replace(few, buffers=tuple(replace(b, id=at) for at, b in enumerate(few.buffers)))
    there = opened(
        compare_footprints({"as written": made_footprint(MEMORY), "planned": made_footprint(few)}),
        width=width,
        scheme=scheme,
    )
    assert [each.split("\n")[0] for each in there.page.locator(".map h2").all_inner_texts()] == [
        "as written",
        "planned",
    ]
    tops = [json.loads(each.get_attribute("data-map"))["top"] for each in there.page.locator(".over").all()]
    assert tops[0] == tops[1]
    assert there.text("#legend").replace("\n", " ").startswith("Layers as written planned")
    assert "768 MiB 384 MiB" in there.text("#legend").replace("\n", " "), "all blocks, and half of them"
    there.page.fill("#search", "block_3")
    assert there.text("#found") == "as written: 1 buffer, 64 MiB at the peak; planned: 0 buffers, 0 B at the peak"
    second = there.page.locator(".over").nth(1)
    second.focus()
    there.page.keyboard.press("ArrowDown")
    assert "net/block_6/attention" in there.text("#details") and "planned" in there.text("#details")
    assert there.page.locator(".peak h2").count() == 2
    assert there.page.evaluate("() => document.documentElement.scrollWidth") == width
    assert there.is_quiet()


def test_a_layer_named_script_is_shown_and_not_run(opened):
    name = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    buffers = tuple(replace(b, scope=name if b.id else "", name=name, source=name) for b in MEMORY.buffers)
    memory = replace(MEMORY, program=name, buffers=buffers, problems=(name,))
    there = opened(memory)
    there.page.check("#color input[value=layer]", force=True)
    there.page.mouse.move(*there.place(memory, *MIDDLE))
    for panel in ("h1", ".tip", "#details", "#legend", ".peak", ".problems"):
        assert "<script>alert(1)<" in there.text(panel).replace("\n", "")
    assert there.page.title() == name
    assert there.is_quiet(), there.complaints


def test_an_empty_program_is_shown_without_complaint(opened):
    there = opened(replace(MEMORY, kernels=(), buffers=(), allocations=()))
    there.page.mouse.move(400, 400)
    there.page.keyboard.press("Tab")
    assert there.is_quiet()
