"""The report page in a real browser, without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kprof import report as reports
from planted import Plant, simulate
from synthetic import TraceBuilder

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        shutil.which("chromium") is None or shutil.which("chromedriver") is None,
        reason="needs chromium and chromedriver (Debian: chromium-driver)",
    ),
]
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    report = reports.build(simulate(Plant(tokens_of={3: 3.0}, send_late_ns={3: 9000})))
    return reports.write_html(report, tmp_path_factory.mktemp("page") / "report.html")


def show(browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(path.as_uri())


def requested(browser: Any) -> list[str]:
    """What the page asked the network for, other than itself."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]


@pytest.mark.parametrize("width", [1280, 1920])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn_without_errors_or_network(
    browser: Any, page: Path, width: int, scheme: str
) -> None:
    show(browser, page, width, scheme)
    boxes = browser.execute_script(
        """return [...document.querySelectorAll(".figure-box")].map(box => {
             const drawn = box.querySelector(".main-svg");
             return {id: box.id, width: drawn ? drawn.getBoundingClientRect().width : 0,
                     marks: box.querySelectorAll(".plot path, .heatmaplayer image, .fills path, .point").length};
           })"""
    )
    assert len(boxes) == 10
    for box in boxes:
        assert box["width"] > 300, box
        assert box["marks"] > 0, box
    assert browser.get_log("browser") == []
    assert requested(browser) == []
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0


def test_text_and_figures_follow_the_scheme(browser: Any, page: Path) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        show(browser, page, scheme=scheme)
        colors[scheme] = browser.execute_script(
            """const text = document.querySelector("#blame .xtitle");
               return [getComputedStyle(document.body).backgroundColor, text.style.fill]"""
        )
    assert colors["light"][0] != colors["dark"][0]
    assert colors["light"][1] != colors["dark"][1]


def test_the_verdict_is_on_the_first_screen(browser: Any, page: Path) -> None:
    show(browser, page)
    bottom = browser.execute_script(
        'return document.getElementById("verdict").getBoundingClientRect().bottom'
    )
    assert bottom < 300


def test_names_with_html_in_them_run_nothing(browser: Any, tmp_path: Path) -> None:
    evil = (
        "<img src=x onerror=document.title='pwned'></script><script>document.title='pwned'</script>"
    )
    build = TraceBuilder(f'REGION(R, "{evil}", wait, peer:8)\nREGION(C, "<b>c", compute)', 2)
    build.launch(0, evil)
    for rank in range(2):
        build.span(rank=rank, region=evil, start_ns=0, duration_ns=5000, peer=1 - rank)
        build.span(rank=rank, region="<b>c", start_ns=5000, duration_ns=5000)
    show(browser, reports.write_html(reports.build(build.trace()), tmp_path / "evil.html"))
    assert browser.title != "pwned"
    assert (
        browser.execute_script("return document.querySelectorAll('main img, main b.c').length") == 0
    )
    assert browser.get_log("browser") == []
    drawn = browser.execute_script(
        "return document.querySelectorAll('.figure-box .main-svg').length"
    )
    assert drawn > 0


def test_long_names_stay_on_the_page(browser: Any, tmp_path: Path) -> None:
    name = "moe/layer_17/expert_parallel/dispatch/" + "a_very_long_name_" * 6
    build = TraceBuilder(f'REGION(R, "{name}wait", wait, peer:8)\nREGION(C, "{name}", compute)', 2)
    build.launch(0, name)
    for rank in range(2):
        build.span(rank=rank, region=name + "wait", start_ns=rank * 5000, duration_ns=9000, peer=1)
        build.span(rank=rank, region=name, start_ns=20_000, duration_ns=1000 + 5000 * rank)
    report = reports.build(build.trace())
    assert name in report.verdict
    show(browser, reports.write_html(report, tmp_path / "long.html"))
    beyond = browser.execute_script(
        """return [...document.querySelectorAll("#verdict, .sentence, td, .legendtext")].filter(
             part => part.getBoundingClientRect().right > part.closest("section").getBoundingClientRect().right
           ).map(part => part.textContent)"""
    )
    assert beyond == []
    overflow = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.execute_script(overflow) <= 0


def test_a_report_without_events_is_a_page_without_figures(browser: Any, tmp_path: Path) -> None:
    trace = TraceBuilder('REGION(R, "r", wait, peer:8)', 2).trace()
    show(browser, reports.write_html(reports.build(trace), tmp_path / "empty.html"))
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('.figure-box').length") == 0
    assert "holds no events" in browser.find_element("id", "verdict").text
