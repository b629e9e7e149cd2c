"""The page of a comparison in a real browser: two timelines on one axis, a pair of bars per region."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from browsing import NEEDS_CHROMIUM, SCREENSHOTS_VARIABLE, chromium, faults, show
from kprof import report as reports
from planted import Plant, simulate

pytestmark = NEEDS_CHROMIUM
# Of the call of each side: where its lanes begin and where its end is marked, in pixels of the drawing.
ENDS = """
  return [...document.querySelectorAll("#two-timelines path.hops")].map(line => {
    const box = line.getBBox();
    return [box.x, document.querySelector("#two-timelines rect.idle:not([height='11'])").getBBox().x]})"""
BARS = """
  return [...document.querySelectorAll("#region-changes rect")].slice(2, 4).map(bar => bar.getBBox().width)"""
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


def test_a_slower_candidate_is_longer_on_the_one_axis(tmp_path: Path) -> None:
    sides = [[simulate(Plant(num_launches=6, send_late_ns=late))] for late in ({}, {1: 20_000})]
    report = reports.build_diff(*sides)
    call = report.table[(report.table["level"] == "launch") & (report.table["measure"] == "median")]
    ratio = (call["candidate_ns"] / call["base_ns"]).iloc[0]
    assert ratio > 1.5
    page = tmp_path / "diff.html"
    reports.write_diff_html(report, page)
    folder = Path(os.environ.get(SCREENSHOTS_VARIABLE, tmp_path))
    with chromium(tmp_path / "profile", logs=("browser",)) as browser:
        for scheme, width in (("light", 1280), ("dark", 1280), ("light", 390), ("print", 700)):
            show(browser, page, width, 1000, scheme)
            browser.save_screenshot(str(folder / f"diff-{scheme}-{width}.png"))
            assert browser.execute_script(OVERFLOW) <= 0, (scheme, width)
            if width == 1280:
                assert faults(browser) == []
                drawn = browser.find_element("id", "two-timelines").rect
                assert drawn["y"] + drawn["height"] < 1000
        (base_end, left), (candidate_end, _) = browser.execute_script(ENDS)
        assert (candidate_end - left) / (base_end - left) == pytest.approx(ratio, rel=0.1)
        base, candidate = browser.execute_script(BARS)
        assert candidate / base == pytest.approx(ratio, rel=0.01)
        assert browser.get_log("browser") == []
