"""The report page in a real browser, without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import NEEDS_CHROMIUM, chromium, show, wait_until
from kprof import report as reports
from planted import Plant, simulate
from synthetic import TraceBuilder

pytestmark = NEEDS_CHROMIUM
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    flags = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    profile = tmp_path_factory.mktemp("profile")
    with chromium(profile, *flags, logs=("browser", "performance")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `kprof demo` writes it: with the trace inside."""
    trace = simulate(Plant(tokens_of={3: 3.0}, send_late_ns={3: 9000}))
    report = reports.build(trace)
    path = tmp_path_factory.mktemp("page") / "report.html"
    return reports.write_html(report, path, trace=reports.embed(trace, report))


def requested(browser: Any) -> list[str]:
    """What the page asked the network for, other than itself."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    return [url for url in urls if not url.startswith(("file:", "data:", "blob:"))]


def box(browser: Any, selector: str) -> dict[str, float]:
    """Where an element is in the window, in pixels."""
    script = "return document.querySelector(arguments[0]).getBoundingClientRect().toJSON()"
    found: dict[str, float] = browser.execute_script(script, selector)
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_answers(browser: Any, page: Path, scheme: str) -> None:
    show(browser, page, 1280, 800, scheme)
    wait_until(lambda: browser.find_elements("css selector", "#ribbon canvas"), "the ribbon")
    for part in ("#verdict", "ol.findings > li", ".picture svg", ".bar", "#ribbon canvas"):
        found = box(browser, part)
        assert found["top"] >= 0, part
        assert found["bottom"] <= 800, part
        assert found["width"] > 200, part
        assert found["height"] > 10, part
    assert box(browser, "ol.findings > li:last-child")["bottom"] < box(browser, ".bar")["top"]


@pytest.mark.parametrize("width", [700, 1280, 1920])
def test_nothing_is_wider_than_the_window_or_loaded_from_elsewhere(
    browser: Any, page: Path, width: int
) -> None:
    browser.get_log("browser")
    browser.get_log("performance")
    show(browser, page, width)
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = 1")
    boxes = browser.execute_script(
        """return [...document.querySelectorAll(".figure-box svg[role=img]")].map(drawn => [
             drawn.closest(".figure-box").id, drawn.getBoundingClientRect().width,
             drawn.querySelectorAll("rect, path").length])"""
    )
    assert len(boxes) == 11
    for name, wide, marks in boxes:
        assert wide > 250, name
        assert marks > 2, name
    assert browser.execute_script(OVERFLOW) <= 0
    assert browser.get_log("browser") == []
    assert requested(browser) == []


def test_colours_follow_the_scheme(browser: Any, page: Path) -> None:
    colors = {}
    for scheme in ("light", "dark"):
        show(browser, page, scheme=scheme)
        colors[scheme] = browser.execute_script(
            """return ["body", "#timeline path.send", "#timeline text"].map(name => {
                 const style = getComputedStyle(document.querySelector(name));
                 return name == "body" ? style.backgroundColor : style.fill })"""
        )
    assert all(a != b for a, b in zip(colors["light"], colors["dark"], strict=True))


def test_every_link_leads_to_something_that_it_unfolds(browser: Any, page: Path) -> None:
    show(browser, page)
    links = browser.execute_script(
        "return [...document.querySelectorAll('nav a, main a')].map(link => link.hash.slice(1))"
    )
    assert {"details", "waits", "clocks", "detail-1", "blocks-work"} <= set(links)
    for target in set(links) - {"top"}:
        browser.execute_script("location.hash = arguments[0]", target)
        height = browser.execute_async_script(
            """const [target, done] = arguments;
               requestAnimationFrame(() => requestAnimationFrame(() =>
                   done(document.getElementById(target).getBoundingClientRect().height)))""",
            target,
        )
        assert height > 10, target


def test_a_print_holds_what_is_folded(browser: Any, page: Path) -> None:
    show(browser, page, scheme="print")
    heights = browser.execute_script(
        """return [...document.querySelectorAll("details:not([open]) table, details:not([open]) svg")]
             .map(part => part.getBoundingClientRect().height)"""
    )
    assert len(heights) > 10
    assert min(heights) > 10
    assert box(browser, "nav")["height"] == 0


def test_no_figure_is_cut_on_paper(browser: Any, page: Path) -> None:
    """A sheet is as narrow as a small screen, where figures scroll."""
    show(browser, page, 700, scheme="print")
    hidden = browser.execute_script(
        """return [...document.querySelectorAll(".figure-box")]
             .map(figure => figure.scrollWidth - figure.clientWidth)"""
    )
    assert len(hidden) >= 10
    assert max(hidden) <= 0


def test_without_scripts_sentences_tables_and_figures_are_there(browser: Any, page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        show(browser, page)
        assert "would save" in browser.find_element("id", "verdict").text
        assert browser.find_elements("css selector", "#ribbon canvas") == []
        cells = browser.find_element("css selector", "#ribbon svg.cells image")
        assert cells.size["width"] > 700
        assert cells.size["height"] > 200
        assert browser.find_element("css selector", "#ribbon path.hops").is_displayed()
        assert browser.find_element("css selector", "#tip").is_displayed() is False
        assert len(browser.find_elements("css selector", "details table tr")) > 20
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_pointer_shows_what_is_under_it(browser: Any, page: Path) -> None:
    show(browser, page)
    texts = browser.execute_script(
        """const shape = [...document.querySelectorAll(".picture rect")].find(
               rect => rect.querySelector("title") && rect.getBoundingClientRect().width > 3);
           const {x, y} = shape.getBoundingClientRect();
           shape.dispatchEvent(new PointerEvent("pointermove", {clientX: x, clientY: y, bubbles: true}));
           const tip = document.getElementById("tip");
           return [shape.textContent, tip.textContent, tip.hidden]"""
    )
    assert texts[0] == texts[1]
    assert texts[2] is False


def test_names_with_html_in_them_run_nothing(browser: Any, tmp_path: Path) -> None:
    evil = (
        "<img src=x onerror=document.title='pwned'></script><script>document.title='pwned'</script>"
    )
    build = TraceBuilder(f'REGION(R, "{evil}", wait, peer:8)\nREGION(C, "<b>c", compute)', 2)
    build.launch(0, evil)
    for rank in range(2):
        build.span(rank, evil, 0, 5000, peer=1 - rank)
        build.span(rank, "<b>c", 5000, 5000)
    browser.get_log("browser")
    show(browser, reports.write_html(reports.build(build.trace()), tmp_path / "evil.html"))
    assert browser.title != "pwned"
    assert browser.execute_script("return document.querySelectorAll('main img').length") == 0
    assert browser.get_log("browser") == []
    assert len(browser.find_elements("css selector", ".figure-box svg")) > 0


def test_long_names_stay_on_the_page(browser: Any, tmp_path: Path) -> None:
    name = "moe/layer_17/expert_parallel/dispatch/" + "a_very_long_name_" * 6
    build = TraceBuilder(f'REGION(R, "{name}wait", wait, peer:8)\nREGION(C, "{name}", compute)', 2)
    build.launch(0, name)
    for rank in range(2):
        build.span(rank, name + "wait", rank * 5000, 9000, peer=1)
        build.span(rank, name, 20_000, 1000 + 5000 * rank)
    report = reports.build(build.trace())
    assert name in report.verdict
    show(browser, reports.write_html(report, tmp_path / "long.html"))
    browser.execute_script("for (const fold of document.querySelectorAll('details')) fold.open = 1")
    beyond = browser.execute_script(
        """return [...document.querySelectorAll("#verdict, .sentence, .advice, td, summary")].filter(
             part => part.getBoundingClientRect().right > innerWidth && !part.closest(".scroll")
           ).map(part => part.textContent)"""
    )
    assert beyond == []
    assert browser.execute_script(OVERFLOW) <= 0


def test_a_report_without_events_is_a_page_without_figures(browser: Any, tmp_path: Path) -> None:
    trace = TraceBuilder('REGION(R, "r", wait, peer:8)', 2).trace()
    browser.get_log("browser")
    show(browser, reports.write_html(reports.build(trace), tmp_path / "empty.html"))
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.querySelectorAll('.figure-box').length") == 0
    assert "holds no events" in browser.find_element("id", "verdict").text
