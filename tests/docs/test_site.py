"""The documentation site: built strictly, and opened in a real browser without a network."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"the extra `docs` is not installed: {package}"
    )
    for package in ("material", "mkdocstrings")
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    # Not with --quiet: mkdocs then counts no warnings.
    command = ["-m", "mkdocs", "build", "--strict", "-f", "docs/site/mkdocs.yml", "-d", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def page(browser):
    """A page as wide as a phone; whatever it complains of or fetches from a network fails the test."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "blob:", "data:")) else complaints.append(request.url),
    )
    yield page
    page.close()
    assert not complaints


def test_every_public_name_has_its_place_in_the_reference(site):
    import jaxckpt

    pages = "".join(path.read_text() for path in (site / "reference").glob("*.html"))
    assert not [name for name in jaxckpt.__all__ if f'id="jaxckpt.{name}"' not in pages and name != "__version__"]
    assert 'id="jaxckpt.testing.assert_fits"' in pages and 'id="jaxckpt.dynamic.simulate"' in pages


def test_examples_of_docstrings_are_shown_as_code(site):
    text = (site / "reference" / "planning.html").read_text()
    assert "Examples:" in text and '<span class="gp">&gt;&gt;&gt; </span>' in text


@pytest.mark.parametrize("name", ["index", "tutorial", "reference/planning", "frontier", "gallery", "seeds"])
def test_a_phone_shows_a_page_without_scrolling_sideways(site, page, name):
    page.goto((site / f"{name}.html").as_uri())
    page.wait_for_selector("h1")
    width, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width == window == 390


def test_the_search_finds_a_public_name(site, page):
    page.set_viewport_size({"width": 1400, "height": 1000})
    page.goto((site / "index.html").as_uri())
    page.fill("input.md-search__input", "max_batch")
    page.locator('.md-search-result__link[href*="planning.html"][href$="#jaxckpt.max_batch"]').wait_for(
        state="attached"
    )
