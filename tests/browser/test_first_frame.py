"""What `kprof view --local` shows before anybody clicks: coloured slices and a selected arrow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import NEEDS_THE_UI, SCREENSHOTS_VARIABLE, chromium, wait_until
from planted import Plant, simulate
from synthetic import write_trace

TRACES = Path(__file__).parents[2] / "traces"
RECORDED = (
    "all_to_all-token_flags-4xH200-skew3",
    "all_reduce-oneshot-4xH200",
    "all_reduce-oneshot-2xH200-torch_profiler",
)
TIMEOUT_S = 300
# Pixels of all canvases whose colours are far from grey, right of the names of tracks.
NUM_COLOURED = """
    let found = 0;
    for (const canvas of document.querySelectorAll("canvas")) {
        if (!canvas.width || !canvas.height) continue;
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4) {
            const [r, g, b, alpha] = data.slice(i, i + 4);
            if (alpha > 200 && Math.max(r, g, b) - Math.min(r, g, b) > 40) found++;
        }
    }
    return found"""
# The UI puts the open trace at window.ctx, for bookmarklets.
SELECTION = "return window.ctx?.selection?.selection?.kind"
NUM_ARROWS = "return window.ctx?.flows?.connectedFlows?.length ?? 0"
SCREEN = 1500 * 1000

pytestmark = NEEDS_THE_UI


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile"), "--window-size=1500,1000") as driver:
        yield driver


@pytest.fixture
def view() -> Iterator[Callable[..., str]]:
    """Runs `kprof view CAPTURE --local` and returns the address that it announces."""
    viewers = []

    def start(capture: Path, *options: str) -> str:
        command = [sys.executable, "-m", "kprof_cli", "view", str(capture), "--local", "--no-open"]
        viewer = subprocess.Popen(
            [*command, "--port", "0", *options], stderr=subprocess.PIPE, text=True
        )
        viewers.append(viewer)
        assert viewer.stderr is not None
        lines = []
        for line in viewer.stderr:
            lines.append(line)
            if found := re.search(r"open (http://\S+)", line):
                return found[1]
        raise AssertionError("".join(lines))

    yield start
    for viewer in viewers:
        viewer.terminate()
        viewer.communicate()


def capture_of(name: str, tmp_path: Path) -> Path:
    if name in RECORDED:
        return TRACES / f"{name}.kprof"
    # As `kprof demo` records it: one rank has three times the tokens.
    return write_trace(simulate(Plant(tokens_of={3: 3.0})), tmp_path / "demo.kprof").path


def screenshot(browser: Any, tmp_path: Path, name: str) -> None:
    folder = Path(os.environ.get(SCREENSHOTS_VARIABLE, tmp_path))
    assert browser.save_screenshot(str(folder / f"{name}.png"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["demo", *RECORDED])
def test_the_first_frame_shows_slices_and_an_arrow(
    name: str, browser: Any, view: Callable[..., str], tmp_path: Path
) -> None:
    browser.get("about:blank")
    browser.get(view(capture_of(name, tmp_path)))
    wait_until(
        lambda: browser.execute_script(SELECTION) == "track_event", "a selected slice", TIMEOUT_S
    )
    wait_until(lambda: browser.execute_script(NUM_ARROWS) == 1, "its arrow", TIMEOUT_S)
    wait_until(
        lambda: browser.execute_script(NUM_COLOURED) > SCREEN / 20, "coloured slices", TIMEOUT_S
    )
    screenshot(browser, tmp_path, f"first-frame-{name}")


def test_a_finding_keeps_the_rows_of_pytorch(
    browser: Any, view: Callable[..., str], tmp_path: Path
) -> None:
    browser.get("about:blank")
    browser.get(view(capture_of(RECORDED[2], tmp_path), "--finding", "1"))
    wait_until(
        lambda: browser.execute_script(SELECTION) == "track_event", "a selected slice", TIMEOUT_S
    )
    # It is the finding's own slice, which is half of the frame.
    first, last = browser.execute_script(
        """const {start, end} = window.ctx.timeline.visibleWindow.toTimeSpan();
           return [Number(start), Number(end)]"""
    )
    start, length = browser.execute_script(
        "const {ts, dur} = window.ctx.selection.selection; return [Number(ts), Number(dur)]"
    )
    assert first <= start < start + length <= last
    assert (last - first) / length == pytest.approx(2, rel=0.01)
    # The frame shows all of the late start: 295 us, of which the blocks work for 4.
    wait_until(
        lambda: browser.execute_script(NUM_COLOURED) > SCREEN / 100, "coloured slices", TIMEOUT_S
    )
    rows = browser.execute_script("return window.ctx.workspace.flatTracks.map(track => track.name)")
    assert any("PyTorch" in row or "stream" in row for row in rows), rows
    # Tabs: for whom ranks wait, and in front the findings.
    text = "return document.body.innerText"
    wait_until(lambda: "what_was_found" in browser.execute_script(text), "the findings", TIMEOUT_S)
    assert browser.execute_script(text).count("Command Query (") == 2
    screenshot(browser, tmp_path, "first-frame-finding")
