"""An exported trace in the real Perfetto UI, in headless Chromium, with no internet."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsing import NEEDS_THE_UI, SCREENSHOTS_VARIABLE, chromium, wait_until
from kprof.export import ExportSummary, write
from kprof.export.links import DeepLink, PinnedTrack
from kprof.export.viewer import serve
from synthetic import TraceBuilder

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
