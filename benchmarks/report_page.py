"""How large the report page is, how long its scripts run before it is there, and when it is painted.

    python -m benchmarks.report_page --json benchmarks/results/report_page.json

The demo's page holds its trace, those of traces/ and of a thousand ranks do not. Script time is what the browser counts
as such until the page has loaded, first paint is its first-contentful-paint, and the ribbon answers once its script has
drawn it: medians of five loads. Needs chromium and chromedriver.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from kprof import report as reports
from kprof.trace import Trace

ROOT = Path(__file__).parents[1]
REPEATS = 5
RANKS, BLOCKS, ROUNDS = 1000, 4, 12
# First paint, and when the ribbon's canvas was there (0: the page has none), in ms since the page was asked for.
PAINTED = """
  const done = arguments[0], box = document.querySelector(".drawn");
  (function ask() {
    const paint = performance.getEntriesByName("first-contentful-paint")[0];
    if (!paint || box && !box.dataset.answersMs) return setTimeout(ask, 10);
    done([paint.startTime, Number(box?.dataset.answersMs ?? 0)]);
  })();"""


def pages(folder: Path) -> Iterator[tuple[str, Path]]:
    """The demo's page, as `kprof demo` writes it, and that of every recording."""
    from planted import Plant, simulate

    captures = sorted((ROOT / "traces").glob("*.kprof"))
    traces = [("demo", simulate(Plant(tokens_of={3: 3.0}, send_late_ns={3: 9000})))]
    traces += [("1000 ranks", thousand_ranks())]
    traces += [(path.stem, Trace.open(path)) for path in captures]
    for name, trace in traces:
        report = reports.build(trace)
        with_trace = reports.embed(trace, report) if name == "demo" else None
        yield name, reports.write_html(report, folder / f"{name}.html", trace=with_trace)


def thousand_ranks() -> Trace:
    """A thousand ranks that wait for each other at random, and all for rank 517."""
    import numpy as np

    from synthetic import TraceBuilder

    random = np.random.default_rng(34)
    build = TraceBuilder('REGION(W, "work", compute)\nREGION(T, "wait", wait, peer:16)', RANKS)
    for rank in range(RANKS):
        for block in range(BLOCKS):
            start = 0
            for _ in range(ROUNDS):
                work, wait = map(int, random.integers(200, 2000, 2))
                peer = 517 if random.random() < 0.5 else int(random.integers(RANKS))
                if rank == 517:
                    work, wait = work + wait, 0
                build.span(rank, "work", start, work, block=block)
                start += work
                if wait:
                    build.span(rank, "wait", start, wait, block=block, peer=peer)
                start += wait
    return build.trace()


def measure(browser: Any, page: Path) -> dict[str, float]:
    """The page's size, and medians of what the browser measured while loading it."""
    browser.execute_cdp_cmd("Performance.enable", {})
    script, total, paint, answers = [], [], [], []
    for _ in range(REPEATS):
        browser.get("about:blank")
        browser.get(page.as_uri())
        found = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        values = {metric["name"]: metric["value"] for metric in found}
        script.append(1e3 * values["ScriptDuration"])
        total.append(1e3 * values["TaskDuration"])
        first, ribbon = browser.execute_async_script(PAINTED)
        paint.append(first)
        answers.append(ribbon)
    return {
        "size_bytes": page.stat().st_size,
        "script_ms": round(sorted(script)[REPEATS // 2], 2),
        "all_tasks_ms": round(sorted(total)[REPEATS // 2], 2),
        "first_paint_ms": round(sorted(paint)[REPEATS // 2]),
        "ribbon_answers_ms": round(sorted(answers)[REPEATS // 2]),
    }


def main() -> None:
    options = harness.options(__doc__).parse_args()
    from browsing import chromium

    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder) / "profile") as browser:
        results = {name: measure(browser, page) for name, page in pages(Path(folder))}
    for name, values in results.items():
        print(
            f"{name}: {values['size_bytes'] / 1e6:.2f} MB, scripts {values['script_ms']} ms, first paint "
            f"{values['first_paint_ms']} ms, ribbon answers after {values['ribbon_answers_ms']} ms"
        )
    if options.output:
        harness.write(results, options.output)


if __name__ == "__main__":
    main()
