"""Reports as HTML: nothing is lost, nothing runs, nothing leaks, nothing is fetched."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, strategies as st

from jaxckpt import ReportFileError
from jaxckpt.report import Point, Scatter, Section, Table, Text, render_html, render_page, render_text, save_page
from jaxckpt.report.tree import columns

OURS = {"div", "style", "section", "p", "details", "summary", "table", "caption", "thead", "tbody", "tr", "th", "td"}
OURS |= {"h1", "h2", "h3", "h4", "h5", "h6", "figure", "figcaption", "canvas", "script"}
VOID = {"meta"}
ANY_TEXT = st.text(st.characters(), max_size=20)
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co"]), max_size=20)
LINE = TEXT.map(lambda text: text.strip().lstrip(">") or "x")


class Read(HTMLParser):
    """What a browser sees: elements, their attributes, and texts by element."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def of(self, *tags: str) -> list[str]:
        return [text for tag, text in self.texts if tag in tags]


def table(rows, *, headings=("scope", ">bytes"), **more) -> Table:
    return Table(title="Scopes", columns=columns(*headings), rows=tuple(rows), **more)


@given(text=ANY_TEXT)
def test_any_text_is_shown_and_makes_no_element_and_no_attribute(text):
    point = Point(name=text, x=1.0, y=2.0, x_text=text, y_text=text)
    scatter = Scatter(title=text, x_heading=text, y_heading=text, points=(point,))
    inner = (Text(text=text), table([(text, text)], notes=(text,)), scatter)
    read = Read(render_html(Section(title=text, parts=(*inner, Section(title=text, parts=inner, folded=True)))))
    assert read.open == []
    assert set(read.tags) <= OURS
    assert {name for name, _ in read.attributes} <= {"class", "role", "aria-label", "data-charts"}
    assert read.tags.count("script") == 1 and read.tags.count("canvas") == 2
    assert render_html(Text(text=text)).encode()


@given(rows=st.lists(st.tuples(TEXT, TEXT), max_size=6), shown=st.none() | st.integers(0, 6))
def test_every_cell_is_in_the_page_in_order_folded_or_not(rows, shown):
    read = Read(render_html(table(rows, compact_rows=shown)))
    assert "".join(read.of("td")) == "".join(cell for row in rows for cell in row)
    assert read.tags.count("tr") - read.tags.count("thead") == len(rows)


@given(title=LINE, sentence=LINE, heading=LINE, notes=st.lists(LINE, max_size=3), folded=LINE)
def test_titles_sentences_headings_and_notes_are_in_the_page(title, sentence, heading, notes, folded):
    inner = Section(title=folded, parts=(table([], headings=(heading,), notes=tuple(notes)),), folded=True)
    read = Read(render_html(Section(title=title, parts=(Text(text=sentence), inner))))
    assert read.of("h1") == [title]
    assert read.of("p") == [sentence, *notes]
    assert read.of("summary") == [folded]
    assert read.of("th") == [heading.removeprefix(">")]


def test_a_layer_named_script_is_shown_and_not_run():
    shown = render_html(table([("GPT/<script>alert(1)</script>", "1 B")]))
    assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown


def test_what_no_page_may_hold_is_replaced():
    assert "\N{REPLACEMENT CHARACTER}" in render_html(Text(text="a\x00b"))
    assert render_page(Text(text="\ud800")).encode()


def test_folded_sections_and_long_tables_unfold():
    folded = Section(title="Everything", parts=(Text(text="inside"),), folded=True)
    html = render_html(Section(title="", parts=(folded, table([("a", "1"), ("b", "2")], compact_rows=1))))
    assert "<details><summary>Everything</summary><p>inside</p></details>" in html
    assert '<summary class="rest">and 1 more</summary>' in html
    assert html.index(">a<") < html.index("and 1 more") < html.index(">b<")


def test_a_table_that_starts_without_rows_is_one_line_to_unfold():
    html = render_html(table([("a", "1")], compact_rows=0, rest="1 scope"))
    assert '<summary class="rest">Scopes: 1 scope</summary>' in html
    assert html.count("<table>") == 1


def test_a_terminal_shows_what_is_folded_and_counts_the_rest():
    folded = Section(title="Everything", parts=(table([("a", "1"), ("b", "2")], compact_rows=1),), folded=True)
    text = render_text(folded)
    assert "Everything" in text
    assert "and 1 more" in text
    assert "b " not in text
    unfolded = render_text(folded, unfold=True)
    assert "b " in unfolded
    assert "and 1 more" not in unfolded


def test_figures_stand_to_the_right_in_figures_of_one_width():
    html = render_html(table([("a", "1 B")]))
    assert '<th class="figures">bytes</th>' in html
    assert '<td class="figures">1 B</td>' in html
    assert re.search(r"td\.figures \{[^}]*text-align: right[^}]*tabular-nums", html)


def test_every_rule_of_style_is_below_our_own_class():
    (style,) = re.findall(r"<style>(.*?)</style>", render_html(Text(text="")), re.DOTALL)
    selectors = [each for rule in style.split("}") if "{" in rule for each in rule.split("{")[0].split(",")]
    assert len(selectors) > 10
    assert all(selector.strip().startswith(".jaxckpt-report.jaxckpt-report") for selector in selectors)


@pytest.mark.parametrize("pictures", [0, 1, 2])
def test_a_page_fetches_nothing_and_runs_nothing_but_its_pictures(pictures):
    scatter = Scatter(title="", x_heading="", y_heading="", points=())
    page = render_page(Section(title="t", parts=(table([("a", "1")]), *[scatter] * pictures)))
    read = Read(page)
    assert not {"link", "img", "iframe", "object", "base"} & set(read.tags)
    assert read.tags.count("script") == bool(pictures), "the library is in the page once"
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|sourceMappingURL", page)
    names = {name for name, _ in read.attributes}
    assert not {"src", "href", "srcset"} & names and not any(name.startswith("on") for name in names)
    assert not any(word in "".join(read.of("style")) for word in ("url(", "@import", "http"))


def test_a_page_follows_the_readers_light_or_dark():
    page = render_page(Text(text="x"), title="<t>")
    assert "color-scheme: light dark" in page
    assert "<title>&lt;t&gt;</title>" in page


def points(*places, frontier=()) -> tuple[Point, ...]:
    return tuple(
        Point(name=f"v{i}", x=x, y=y, x_text=f"{x} B", y_text=f"{y} s", on_frontier=i in frontier)
        for i, (x, y) in enumerate(places)
    )


def test_the_legend_of_a_terminal_scatter_stars_the_frontier():
    text = render_text(
        Scatter(title="t", x_heading="x", y_heading="y", points=points((1.0, 3.0), (3.0, 1.0), frontier=(0,)))
    )
    lines = text.splitlines()
    assert "  1* v0: 1.0 B, 3.0 s" in lines
    assert "  2  v1: 3.0 B, 1.0 s" in lines
    assert lines[1] == " |1"
    assert lines[10].endswith("2")


def test_a_terminal_scatter_counts_the_points_that_it_has_no_mark_for():
    places = [(float(x), float(-x)) for x in range(70)]
    text = render_text(Scatter(title="t", x_heading="x", y_heading="y", points=points(*places)))
    unmarked = sum(f" v{i}:" not in text for i in range(70))
    assert f"  and {unmarked} more points" in text and unmarked == 9


def test_a_page_is_saved_whole_and_a_missing_folder_is_said(tmp_path):
    save_page(Text(text="x"), tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(ReportFileError, match="mkdir -p"):
        save_page(Text(text="x"), tmp_path / "no" / "page.html")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
