"""Draws the docs' pictures from the recorded traces: `python docs/picture.py`. Needs chromium.

One is the README's timeline, one a wait ribbon; the others are the first screens of reports, one
for each recording from several GPUs.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import kprof
from kprof import report as reports
from kprof.trace import Trace

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "traces" / "pictures"
TRACE = ROOT / "traces" / "all_to_all-token_flags-4xH200-skew3-264blocks.kprof"
RIBBON = ROOT / "traces" / "all_to_all-balanced-4xH200-skew3-264blocks.kprof"
BLOCKS = "0-11"
WIDTH, HEIGHT = 1100, 330
SCREEN = 1280, 800


def main() -> None:
    """Draw all of them."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        timeline(page)
        shoot(page, PICTURES / "all_to_all-timeline.png", WIDTH, HEIGHT)
        for capture in sorted((ROOT / "traces").glob("*-[!1]xH200*.kprof")):
            trace = Trace.open(capture)
            report = reports.build(trace, view_command=f"kprof view traces/{capture.name}")
            if capture == RIBBON:
                reports.write_picture(report, "ribbon", PICTURES / "ribbon.svg", force=True)
            embedded = reports.embed(trace, report)
            reports.write_html(report, page, force=True, trace=embedded)
            shoot(page, PICTURES / f"report-{capture.stem}.png", *SCREEN)


def timeline(page: Path) -> None:
    """Twelve blocks of rank 0 in one launch of dispatch_recv; every fourth serves rank 3."""
    run = kprof.open(TRACE)
    figure = run.select(blocks=BLOCKS).timeline(rank=0, launch=launch_of(run))
    figure.update_layout(
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 110, "r": 15, "t": 30, "b": 45},
        template="plotly_white",
        xaxis_title="time since the start of dispatch_recv on rank 0, us",
    )
    page.write_text("<style>body{margin:0}</style>" + figure.to_html(config={"staticPlot": True}))


def launch_of(run: kprof.Run) -> int:
    """The launch of the timeline, whose tracks are the first warps of these blocks."""
    launches = run.launches()
    of_kernel = launches[launches["kernel"] == "all_to_all/dispatch_recv"]
    return int(of_kernel[of_kernel["rank"] == 0]["launch"].iloc[1])


def shoot(page: Path, picture: Path, width: int, height: int) -> None:
    """A picture of a page in a window of that size."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    size, place = f"--window-size={width},{height}", f"--screenshot={picture}"
    command = ["chromium", *options, size, "--virtual-time-budget=20000", place, page.as_uri()]
    subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main()
