"""The timeline of blocks on a report page in a real browser: it answers pointer, keys and fingers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from browsing import NEEDS_CHROMIUM, show, wait_until
from kprof import report as reports
from planted import Plant, simulate

pytestmark = NEEDS_CHROMIUM
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
PICTURE = "return document.querySelector('#gantt canvas').toDataURL()"
TIP = "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"
# As a pointer would at a share of the canvas's width and a pixel of its height.
POINTER = """
  const [kind, across, y, id, type] = arguments, canvas = document.querySelector("#gantt canvas");
  const area = canvas.getBoundingClientRect();
  canvas.dispatchEvent(new PointerEvent(kind, {bubbles: true, pointerId: id ?? 1, pointerType: type ?? "mouse",
    clientX: area.left + across * area.width, clientY: area.top + y}))"""
KEY = """
  for (const key of arguments[0]) document.querySelector("#gantt canvas").dispatchEvent(
    new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}))"""
CHOOSE = """
  const select = document.querySelectorAll("#gantt select")[arguments[0]];
  select.selectedIndex = arguments[1];
  select.dispatchEvent(new Event("change"));
  return [...select.options].map(option => option.text)"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rank 3 sends three times the tokens, and late."""
    report = reports.build(simulate(Plant(tokens_of={3: 3.0}, send_late_ns={3: 9000})))
    return reports.write_html(report, tmp_path_factory.mktemp("page") / "report.html")


def open_timeline(browser: Any, page: Path, width: int = 1280, scheme: str = "light") -> None:
    show(browser, page, width, scheme=scheme)
    wait_until(
        lambda: browser.find_elements("css selector", "#gantt [data-answers-ms]"), "the timeline"
    )
    browser.execute_script("location.hash = ''; location.hash = 'gantt'")
    wait_until(
        lambda: browser.execute_script(
            "return document.querySelector('#gantt canvas').clientWidth > 0"
        ),
        "the fold",
    )
    # Two frames, so that the canvas has its size.
    browser.execute_async_script(
        "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
    )


def test_the_timeline_answers(browser: Any, page: Path, folder: Path) -> None:
    browser.get_log("browser")
    open_timeline(browser, page)
    box = browser.find_element("id", "gantt")
    box.screenshot(str(folder / "timeline-light.png"))
    assert not browser.find_element("css selector", "#gantt .drawn > svg").is_displayed()
    whole = browser.execute_script(PICTURE)

    # The pointer reads a span, the arrow keys the next ones.
    browser.execute_script(POINTER, "pointermove", 0.13, 30)
    assert browser.execute_script(TIP).startswith("rank 3 block 0: dispatch/count, ")
    browser.execute_script(KEY, ["Escape"])
    assert browser.execute_script(TIP) == ""
    browser.execute_script(KEY, ["ArrowRight"])
    first = browser.execute_script(TIP)
    assert first.startswith("rank 3 block 0: dispatch/count, ")
    browser.execute_script(KEY, ["ArrowRight"] * 30)
    later = browser.execute_script(TIP)
    assert later.startswith("rank 3 block 0: ")
    assert later != first
    browser.execute_script(KEY, ["ArrowDown"])
    assert browser.execute_script(TIP).startswith("rank 3 block 1: ")

    # Zoom, pan and back.
    browser.execute_script(KEY, ["Escape", "w", "w"])
    near = browser.execute_script(PICTURE)
    browser.execute_script(KEY, ["d"])
    assert len({whole, near, browser.execute_script(PICTURE)}) == 3
    browser.execute_script(KEY, ["Escape"])
    assert browser.execute_script(PICTURE) == whole

    # Two fingers spread, and the tip of a touched span stays.
    for kind, across, finger in (
        ("pointerdown", 0.4, 1),
        ("pointerdown", 0.6, 2),
        ("pointermove", 0.7, 2),
        ("pointerup", 0.7, 2),
        ("pointerup", 0.4, 1),
        ("pointerleave", 0.4, 1),
    ):
        browser.execute_script(POINTER, kind, across, 30, finger, "touch")
    assert browser.execute_script(PICTURE) != whole
    assert (
        browser.execute_script("return document.querySelector('#gantt canvas').style.touchAction")
        == "pan-y"
    )
    browser.execute_script(KEY, ["Escape"])

    # Another call, all blocks of a rank, and what belongs to no finding in full colour, too.
    assert browser.execute_script(CHOOSE, 0, 1)[0].startswith("call ")
    wait_until(lambda: browser.execute_script(PICTURE) != whole, "the other call")
    browser.execute_script(CHOOSE, 0, 0)
    wait_until(lambda: browser.execute_script(PICTURE) == whole, "the first call again")
    rows = browser.execute_script(CHOOSE, 1, 1)
    assert rows[0] == "what stands out"
    assert rows[1].startswith("rank 0, all ")
    box.screenshot(str(folder / "timeline-all-blocks.png"))
    highlighted = browser.execute_script(PICTURE)
    assert browser.execute_script(CHOOSE, 2, 0)[:2] == ["nothing", "finding 1"]
    assert browser.execute_script(PICTURE) != highlighted
    assert browser.get_log("browser") == []


def test_other_screens_paper_and_no_scripts(browser: Any, page: Path, folder: Path) -> None:
    for width, scheme in ((1280, "dark"), (390, "light")):
        open_timeline(browser, page, width, scheme)
        browser.find_element("id", "gantt").screenshot(
            str(folder / f"timeline-{scheme}-{width}.png")
        )
        assert browser.execute_script(OVERFLOW) <= 0
    show(browser, page, 700, scheme="print")
    heights = browser.execute_script(
        """return ["canvas", ".controls", "svg"].map(part =>
             document.querySelector("#gantt " + part).getBoundingClientRect().height)"""
    )
    assert heights[:2] == [0, 0]
    assert heights[2] > 200
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page)
        assert browser.find_elements("css selector", "#gantt canvas") == []
        # The spans of the first finding have an outline there.
        assert browser.find_elements("css selector", "#gantt svg path.guilty")
        assert browser.find_elements("css selector", ".picture svg rect.guilty")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
