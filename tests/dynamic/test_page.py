"""The page of memory call by call: it draws, follows its slider, says why a run stopped, and fetches nothing."""

import os
import shutil

import pytest

from jaxckpt.dynamic import Memory, Mode, address_map, stepper, stepper_page, unit_chain

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def maps(budget=5):
    hard = Memory(mode=Mode.HARD)
    return {
        rule: address_map(unit_chain(12), budget=budget, evictor=name, memory=hard)
        for rule, name in (("DTR </script>", "dtr_eq"), ("Coop", "coop"))
    }


def test_equal_maps_make_equal_text_and_no_name_ends_the_script():
    text = stepper(maps())
    assert text == stepper(maps())
    assert text.count("</script>") == 1 and text.endswith("</script>")
    assert "http" not in text and "fetch(" not in text


def test_no_maps_make_a_page_too():
    assert stepper_page({}, title="<nothing>").count("<nothing>") == 0


@pytest.mark.skipif(CHROMIUM is None, reason=f"no Chromium here: none of {', '.join(NAMES)} is on the path")
def test_in_a_browser_it_follows_the_slider(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    page_path = tmp_path / "pool.html"
    page_path.write_text(stepper_page({**maps(), "too little": maps(budget=2)["Coop"]}, title="a chain"))
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"{CHROMIUM} does not start here: {str(error).splitlines()[0]}")
        page, complaints = browser.new_page(), []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_path.as_uri())
        move = (
            "(at) => { const s = document.querySelector('input'); s.value = at; s.dispatchEvent(new Event('input')) }"
        )
        page.evaluate(move, 0)
        begin = [each.inner_text() for each in page.query_selector_all(".words")]
        page.evaluate(move, 23)
        end = [each.inner_text() for each in page.query_selector_all(".words")]
        browser.close()
    assert not complaints
    assert begin[0].startswith("DTR </script>: ") and "0 calls again" in begin[0]
    again = len(maps()["Coop"].calls) - 24
    assert again > 0 and f"{again} calls again" in end[1]
    assert "it had to stop: out of memory" in end[2]
