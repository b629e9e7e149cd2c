"""Pages of 4, 8, 64 and 1000 ranks in a real browser: light, dark, on a phone and on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.report_page import thousand_ranks
from browsing import COLORS_OF_ROWS, NEEDS_CHROMIUM, faults, show, wait_until
from kprof import report as reports
from planted import Plant, simulate

pytestmark = NEEDS_CHROMIUM
SIZES = (4, 8, 64, 1000)
# Of which each of the four is looked at.
LOOKS = {"light": (1280, "light"), "dark": (1280, "dark"), "phone": (390, "light")}
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
SIDEWAYS = """
  return ["ribbon", "gantt"].map(id => document.getElementById(id).querySelector(".drawn").closest(".figure-box"))
    .map(box => box.scrollWidth - box.clientWidth)"""
# The width and height of a part in the window, 0 where it is not shown.
BOX = """
  const box = document.querySelector(arguments[0])?.getBoundingClientRect();
  return box ? [box.width, box.height] : [0, 0]"""


@pytest.fixture(scope="module", params=SIZES)
def ranks_and_page(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path]:
    """The last rank sends late; of a thousand, most wait for rank 517."""
    num_ranks = request.param
    if num_ranks == 1000:
        trace = thousand_ranks()
    else:
        late = {num_ranks - 1: 9000}
        tokens = 2 if num_ranks > 8 else 8
        trace = simulate(
            Plant(num_ranks, tokens_per_pair=tokens, num_launches=1, send_late_ns=late)
        )
    path = tmp_path_factory.mktemp("page") / f"{num_ranks}.html"
    return num_ranks, reports.write_html(reports.build(trace), path)


def open_page(browser: Any, page: Path, width: int, scheme: str) -> None:
    show(browser, page, width, scheme=scheme)
    for figure in ("#ribbon .drawn", "#gantt .drawn"):
        if browser.find_elements("css selector", figure):
            wait_until(
                lambda name=figure: browser.find_elements(
                    "css selector", f"{name}[data-answers-ms]"
                ),
                f"{figure} to answer",
            )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("look", LOOKS)
def test_ribbon_and_timeline_are_readable(
    browser: Any, folder: Path, ranks_and_page: tuple[int, Path], look: str
) -> None:
    num_ranks, page = ranks_and_page
    width, scheme = LOOKS[look]
    browser.get_log("browser")
    open_page(browser, page, width, scheme)
    # Reading pixels, below, is worth a warning to the browser.
    assert browser.get_log("browser") == []
    browser.find_element("id", "ribbon").screenshot(str(folder / f"ribbon-{num_ranks}-{look}.png"))
    # A thousand rows in the dark take their time, and say the same.
    if num_ranks < 1000 or look != "dark":
        found = browser.execute_script(COLORS_OF_ROWS)
        culprit = 517 if num_ranks == 1000 else num_ranks - 1
        worn = {int(row): of.get(str(culprit), 0) for row, of in found.items()}
        others = sorted(pixels for row, pixels in worn.items() if row != culprit)
        assert len(worn) == num_ranks
        assert worn[culprit] * 5 <= others[len(others) // 2]
    browser.execute_script("location.hash = 'gantt'")
    assert browser.execute_script(BOX, "#gantt canvas")[1] > 100
    browser.find_element("id", "gantt").screenshot(str(folder / f"gantt-{num_ranks}-{look}.png"))
    assert browser.execute_script(OVERFLOW) <= 0
    # Nor does a drawing scroll sideways within its box.
    assert browser.execute_script(SIDEWAYS) == [0, 0]
    assert faults(browser) == []


def test_on_paper_they_are_pictures(
    browser: Any, folder: Path, ranks_and_page: tuple[int, Path]
) -> None:
    num_ranks, page = ranks_and_page
    show(browser, page, 700, scheme="print")
    browser.find_element("id", "ribbon").screenshot(str(folder / f"ribbon-{num_ranks}-paper.png"))
    assert browser.execute_script(BOX, "#ribbon canvas") == [0, 0]
    assert browser.execute_script(BOX, "#gantt canvas") == [0, 0]
    for picture in ("#ribbon svg.cells", "#gantt .drawn > svg"):
        width, height = browser.execute_script(BOX, picture)
        assert width > 400, picture
        assert height > min(80, 15 * num_ranks), picture
    assert browser.execute_script(OVERFLOW) <= 0
