"""The page of memory call by call: it draws, follows its slider, says why a run stopped, and fetches nothing."""

import html
import json
import re

import pytest

from jaxckpt.dynamic import Memory, Mode, address_map, stepper, stepper_page, unit_chain


def maps(budget=5):
    hard = Memory(mode=Mode.HARD)
    return {
        rule: address_map(unit_chain(12), budget=budget, evictor=name, memory=hard)
        for rule, name in (("DTR </script>", "dtr_eq"), ("Coop", "coop"))
    }


def test_equal_maps_make_equal_text_and_no_name_ends_the_script():
    text = stepper(maps())
    assert text == stepper(maps())
    assert text.count("<") == 4, "all of the page is the attribute of the frame in the element"
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', text)[1])
    assert page == stepper_page(maps(), title="Memory, call by call")
    assert page.count("</script>") == stepper_page({}).count("</script>")
    assert "http://" not in page and "https://" not in page and "fetch(" not in page


def test_no_maps_make_a_page_too():
    assert stepper_page({}, title="<nothing>").count("<nothing>") == 0


def test_states_are_those_of_the_map():
    found = maps()["DTR </script>"]
    (text,) = re.findall(r'id="data">(.*?)</script>', stepper_page({"run": found}), flags=re.DOTALL)
    (drawn,) = json.loads(text)["maps"]
    states = drawn["states"]
    assert [tick for tick, *_ in states] == list(found.calls)
    for at, (_, free, piece, again, refused) in enumerate(states):
        alive = [(each.address, each.address + each.size_bytes) for each in found.at(at)]
        taken = [any(low <= byte < high for low, high in alive) for byte in range(found.budget_bytes)]
        assert free == taken.count(False)
        assert piece == max(map(len, "".join("x" if each else " " for each in taken).split("x")))
        assert again == at + 1 - len(set(found.calls[: at + 1]))
        assert refused == sum(refusal.execution <= at for refusal in found.refusals)
    assert states[-1][3] > 0 and states[-1][4] > 0


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_in_a_browser_it_follows_the_slider(browser, tmp_path, width, scheme):
    page_path = tmp_path / "pool.html"
    page_path.write_text(stepper_page({**maps(), "too little": maps(budget=2)["Coop"]}, title="a chain"))
    page, complaints = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900}), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_path.as_uri())
    page.wait_for_selector("html[data-drawn]")
    begin = page.locator(".state").all_inner_texts()
    page.fill("#tick", "23")
    end = page.locator(".state").all_inner_texts()
    assert page.locator(".map h2").all_inner_texts() == ["DTR </script>", "Coop", "too little"]
    assert "0 calls again" in begin[0] and "4 B free, of these 4 B in one piece" in begin[0]
    again = len(maps()["Coop"].calls) - 24
    assert again > 0 and f"{again} calls again" in end[1]
    assert "it had to stop: out of memory" in end[2]
    assert page.inner_text("#now") == "call 23 of 23"
    assert "first time" in page.inner_text("#legend") and "no free piece" in page.inner_text("#legend")
    page.click("#play")
    page.wait_for_function("() => document.documentElement.dataset.call !== '23'")
    assert page.inner_text("#play") == "stop"
    page.locator(".over").first.focus()
    page.keyboard.press("ArrowDown")
    assert "tensor" in page.inner_text("#details")
    assert page.evaluate("() => document.documentElement.scrollWidth") == width
    page.close()
    assert not complaints


def test_in_a_notebook_the_page_is_a_frame(browser):
    page, complaints = browser.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.set_content(f"<p>a cell</p>{stepper(maps())}")
    inner = page.frame_locator("iframe")
    inner.locator("html[data-drawn]").wait_for()
    assert inner.locator("canvas.over").count() == 2
    page.close()
    assert not complaints
