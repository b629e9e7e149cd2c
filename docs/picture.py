"""Draws the README's picture from a recorded trace: `python docs/picture.py`. Needs chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import kprof

ROOT = Path(__file__).parents[1]
TRACE = ROOT / "traces" / "all_to_all-token_flags-4xH200-skew3-264blocks.kprof"
PICTURE = ROOT / "traces" / "pictures" / "all_to_all-timeline.png"
WIDTH, HEIGHT = 1100, 330


def main() -> None:
    """Twelve blocks of rank 0 in one launch of dispatch_recv; every fourth serves rank 3."""
    trace = kprof.open(TRACE)
    launches = trace.launches()
    of_kernel = launches[launches["kernel"] == "all_to_all/dispatch_recv"]
    launch = int(of_kernel[of_kernel["rank"] == 0]["launch"].iloc[1])
    figure = trace.select(blocks="0-11").timeline(rank=0, launch=launch)
    figure.update_layout(
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 110, "r": 15, "t": 30, "b": 45},
        template="plotly_white",
        xaxis_title="time since the start of dispatch_recv on rank 0, us",
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "figure.html"
        page.write_text(
            "<style>body{margin:0}</style>" + figure.to_html(config={"staticPlot": True})
        )
        subprocess.run(
            [
                "chromium",
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                f"--window-size={WIDTH},{HEIGHT}",
                "--virtual-time-budget=20000",
                f"--screenshot={PICTURE}",
                page.as_uri(),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main()
