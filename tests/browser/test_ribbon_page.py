"""The wait ribbon of a report page in a real browser: its colours, its answers, its size."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from browsing import COLORS_OF_ROWS, NEEDS_CHROMIUM, show, wait_until
from kprof import report as reports
from planted import CULPRITS, Plant, simulate

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(CULPRITS["items-and-late-sends"][0], tmp_path_factory.mktemp("page"))


def written(plant: Plant, folder: Path) -> Path:
    return reports.write_html(reports.build(simulate(plant)), folder / "report.html", force=True)


def open_ribbon(browser: Any, page: Path, width: int = 1280, scheme: str = "light") -> None:
    show(browser, page, width, scheme=scheme)
    wait_until(
        lambda: browser.find_elements("css selector", ".drawn[data-answers-ms]"), "the ribbon"
    )


# Each of the plants in one of the two schemes, by turns.
@pytest.mark.parametrize(
    ("name", "scheme"), list(zip(CULPRITS, itertools.cycle(["light", "dark"]), strict=False))
)
def test_the_culprit_is_the_row_without_the_colour_that_the_others_wear(
    browser: Any, folder: Path, tmp_path: Path, name: str, scheme: str
) -> None:
    plant, culprit = CULPRITS[name]
    open_ribbon(browser, written(plant, tmp_path), scheme=scheme)
    browser.find_element("id", "ribbon").screenshot(str(folder / f"ribbon-{name}-{scheme}.png"))
    found = browser.execute_script(COLORS_OF_ROWS)
    worn = {int(row): of.get(str(culprit), 0) for row, of in found.items()}
    most = {int(row): max(of, key=of.get, default=None) for row, of in found.items()}
    waiting = [0] if name == "slow-link" else [row for row in worn if row != culprit]
    assert worn[culprit] * 10 < min(worn[row] for row in waiting), worn
    assert {most[row] for row in waiting} == {str(culprit)}


def text_of_tip(browser: Any) -> str:
    text: str = browser.execute_script(
        "const tip = document.getElementById('tip'); return tip.hidden ? '' : tip.textContent"
    )
    return text


def press(browser: Any, *keys: str) -> None:
    for key in keys:
        browser.execute_script(
            """document.querySelector("#ribbon canvas").dispatchEvent(
                 new KeyboardEvent("keydown", {key: arguments[0], bubbles: true, cancelable: true}))""",
            key,
        )


def test_the_pointer_and_the_arrow_keys_read_cells(browser: Any, page: Path) -> None:
    open_ribbon(browser, page)
    browser.execute_script(
        """const canvas = document.querySelector("#ribbon canvas"), area = canvas.getBoundingClientRect();
           canvas.dispatchEvent(new PointerEvent("pointermove", {bubbles: true,
             clientX: area.left + .2 * area.width, clientY: area.top + .2 * area.height}))"""
    )
    assert "of its blocks wait for rank 3" in text_of_tip(browser)
    press(browser, "Escape")
    assert text_of_tip(browser) == ""
    press(browser, "ArrowRight")
    assert text_of_tip(browser).startswith("rank 0 at 0")
    press(browser, "ArrowDown", "ArrowDown", "ArrowDown")
    assert text_of_tip(browser).startswith("rank 3 at 0")
    assert text_of_tip(browser).endswith("the critical path is here")


def test_zooming_changes_the_picture_and_escape_takes_it_back(browser: Any, page: Path) -> None:
    open_ribbon(browser, page)
    picture = "return document.querySelector('#ribbon canvas').toDataURL()"
    whole = browser.execute_script(picture)
    press(browser, "w", "w")
    near = browser.execute_script(picture)
    press(browser, "d")
    aside = browser.execute_script(picture)
    assert len({whole, near, aside}) == 3
    press(browser, "Escape")
    assert browser.execute_script(picture) == whole


def test_dragging_zooms_to_what_was_dragged_over(browser: Any, page: Path) -> None:
    from selenium.webdriver import ActionChains

    open_ribbon(browser, page)
    canvas = browser.find_element("css selector", "#ribbon canvas")
    picture = "return document.querySelector('#ribbon canvas').toDataURL()"
    whole = browser.execute_script(picture)
    actions = ActionChains(browser)
    actions.move_to_element_with_offset(canvas, -200, 0).click_and_hold().move_by_offset(200, 0)
    actions.release().perform()
    browser.execute_script(
        "document.querySelector('#ribbon canvas').dispatchEvent(new PointerEvent('pointerleave'))"
    )
    assert browser.execute_script(picture) != whole
    actions = ActionChains(browser)
    actions.double_click(canvas).perform()
    press(browser, "Escape")
    assert browser.execute_script(picture) == whole


def test_a_name_in_the_legend_shows_that_culprit_alone(browser: Any, page: Path) -> None:
    open_ribbon(browser, page)
    browser.execute_script(
        """document.querySelector("#ribbon .controls i.culprit-1").parentElement.dispatchEvent(
             new PointerEvent("pointerenter"))"""
    )
    found = browser.execute_script(COLORS_OF_ROWS)
    assert all("3" not in of for of in found.values())
    browser.execute_script(
        """document.querySelector("#ribbon .controls i.culprit-1").parentElement.dispatchEvent(
             new PointerEvent("pointerleave"))"""
    )
    assert "3" in browser.execute_script(COLORS_OF_ROWS)["0"]
