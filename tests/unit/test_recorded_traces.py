"""The recordings in traces/ are what index.toml says, stay readable, and tell the story that their README tells."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flow_direction import FORMATS, directions
from kprof import analysis
from kprof import report as reports
from kprof.analysis import Summary
from kprof.analysis.warmup import steady_part
from kprof.analysis.wording import percent
from kprof.capture.directory import Capture
from kprof.export import ExportSummary, write
from kprof.export.model import FIRST_EVENT_NS
from kprof.report.opening import link_to, place_of
from kprof.trace import Trace
from recorded import TRACES, Recorded, analysed

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

INDEX = tomllib.loads((TRACES / "index.toml").read_text())


@pytest.mark.parametrize("name", INDEX)
def test_files_are_the_recorded_ones(name: str) -> None:
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (TRACES / name).iterdir()
    }
    assert found == INDEX[name]["sha256"]


def test_every_recording_is_listed() -> None:
    assert sorted(path.name for path in TRACES.glob("*.kprof")) == sorted(INDEX)


NOTHING = "No rank, block, SM, link, region or call costs 3 %. A typical call is "
BETWEEN = "Nothing that is recorded runs between one launch and the next; changing this alone would save up to 12 %"
LAST_WAVE = "Not all blocks fit at once, and the last wave is not full; changing this alone would save up to "
HEADLINES = {
    # Of four calls of processes that take turns on the GPU.
    "collectives-triton_cpp_nccl-2on1xH100": "Rank 1 starts late in 2 of 3 calls, rank 0 in 1",
    "all_to_all-token_flags-4xH200-skew3-264blocks": "combine/send runs on only 23-29 of 264 blocks; "
    "spreading it would save up to 32 %",
    "all_to_all-balanced-4xH200-skew3-264blocks": "Rank 3 has 3.0x as many items in dispatch/send as "
    "others; balancing it would save up to 19 %",
    "all_to_all-pipelined-4xH200-skew3-264blocks": "Rank 3 has 3.0x as many items in dispatch/send as "
    "others; balancing it would save up to 4 %",
    "all_to_all-token_flags-4xH200-skew3": "combine/reduce runs on only 11-32 of 132 blocks; "
    "spreading it would save up to 15 %",
    "all_to_all-balanced-4xH200-skew3": "combine/reduce runs on only 11-32 of 132 blocks; "
    "spreading it would save up to 10 %",
    "all_reduce-oneshot_serial-4xH200": "1 block does all the work, and 131 of 132 SMs (CUs) are "
    "idle; changing this alone would save up to 74 %",
    "all_reduce-oneshot_lock-4xH200": "Blocks take turns at the lock (lock/acquire); changing this alone "
    "would save up to 48 %",
    "all_reduce-oneshot_tree-4xH200": "Blocks wait while data is in flight; changing this alone would "
    "save up to 29 %",
    "all_reduce-oneshot-4xH200": NOTHING + "67 % wait, 22 % put and 10 % reduce",
    "all_reduce-oneshot-2xH200-torch_profiler": "Rank 1 starts late in 7 of 20 calls, rank 0 in 5; "
    "fixing it would save up to 88 %",
    "moe_align_sort-single_block-1xH200": "1 block does all the work, and 131 of 132 SMs (CUs)",
    "moe_align_sort-dcp-1xH200": "All blocks wait at wait-for-counts for the last one; "
    "changing this alone would save up to 7 %",
    "moe_align_sort-chained-1xH200": BETWEEN,
    "moe_align_sort-chained-hot-1xH200": BETWEEN,
    "rms_norm_fp8-pointwise-1xH200": "Nothing stands out: blocks do useful work 93 % of the time; "
    "add counts no bytes to compare with the device's limit",
    "rms_norm_fp8-vectors-1xH200": LAST_WAVE + "12 %",
    "rms_norm_fp8-shared-1xH200": LAST_WAVE + "12 %",
    "rms_norm_fp8-tuned-1xH200": LAST_WAVE + "4 %",
    "swiglu_fp8-pointwise-1xH200": NOTHING + "77 % activate",
    "swiglu_fp8-vectors-1xH200": LAST_WAVE + "8 %",
    "swiglu_fp8-packed-1xH200": NOTHING + "80 % load and 11 % between blocks",
    "swiglu_fp8-tuned-1xH200": NOTHING + "52 % before the first event and 48 % load",
    "skinny_gemm-tiled-1xH200": "36 blocks do all the work, and 96 of 132 SMs (CUs) are idle; "
    "changing this alone would save up to 73 %",
    "skinny_gemm-split_k-1xH200": "Nothing stands out: blocks do useful work 89 % of the time; "
    "multiply counts no bytes to compare with the device's limit",
    "skinny_gemm-specialised-2-2-1xH200": NOTHING
    + "38 % consumer/wait-tokens, 32 % consumer/wait-weights and 24 % consumer/multiply",
    "skinny_gemm-tuned-1xH200": NOTHING
    + "35 % consumer/wait-weights, 33 % consumer/wait-tokens and 25 % consumer/multiply",
    "skinny_gemm-direct-1xH200": "Nothing stands out: blocks do useful work 86 %",
    "skinny_gemm-ring-1xH200": "The first multiply on every track is 3.9x slower than later ones; "
    "fixing it would save up to 8 %",
}


# What each page says of a recording: the lines that begin with its name.
QUOTING = {
    "traces/README.md": r"^(?:\| `{name}\.kprof` \||\*\*`{name}`\*\*:)(.*)$",
    "docs/stories.md": r"^\| `{name}` \|(.*)$",
}


def what_the_pages_say(stem: str) -> list[str]:
    found: list[str] = []
    for page, pattern in QUOTING.items():
        text = (TRACES.parent / page).read_text()
        found += re.findall(pattern.format(name=re.escape(stem)), text, flags=re.MULTILINE)
    return found


def shares_of(summary: Summary, found: analysis.Findings) -> set[str]:
    """Every share that a report's first screen names, in words."""
    shares = [finding.share for finding in found.findings]
    shares += [limit.share for limit in found.rest.limits]
    shares += [share for _, share in found.rest.made_of]
    shares += [part.share for part in analysis.breakdown(summary, found.findings)]
    return {percent(share) for share in shares}


def test_sends_that_are_slow_on_most_ranks_are_named() -> None:
    """190 us on ranks 0 and 2, which wait for nobody: "38 % stays unexplained" was said."""
    differences = analysed("all_to_all-token_flags-4xH200-skew3").found.rest.differences
    (send,) = (one for one in differences if one.region == "dispatch/send")
    assert (send.slow, send.with_starts) == ((0, 2), True)


def steady_call_us(summary: Summary) -> float:
    """The median length of the calls after a warm-up."""
    calls = analysis.all_metrics()["calls"](summary)
    steady = calls[~calls["ordinal"].isin(steady_part(summary)[1])]
    return float(steady["length_ns"].median()) / 1e3


@pytest.fixture(scope="module", params=[name.removesuffix(".kprof") for name in INDEX])
def each(request: pytest.FixtureRequest) -> tuple[str, Recorded]:
    """The tests that take it run one recording after the other."""
    return request.param, analysed(request.param)


def test_the_headline_is_what_the_readme_tells(each: tuple[str, Recorded]) -> None:
    """What the report says first, without being asked; README files quote these."""
    stem, (_, summary, found) = each
    assert found.headline.startswith(HEADLINES[stem])
    assert len(found.headline.split()) <= 25
    assert sum(finding.share for finding in found.findings) <= 1.0
    ranges = [finding.interval_ns for finding in found.findings]
    assert all(0 <= low <= high <= found.total_ns for low, high in ranges)
    told = what_the_pages_say(stem)
    assert told
    for text in told:
        assert set(re.findall(r"\d+ %", text)) <= shares_of(summary, found), text
        lengths = re.findall(r"(\d+) us(?: a call| became| \|)", text)
        assert set(lengths) <= {f"{steady_call_us(summary):.0f}"}, text


# A finding's slice: a span of its region on its tracks, the end of such a wait, or its own slice.
# What is by design has no region.
SLICES = """
    SELECT start_ns, duration_ns, rank, block FROM events
        WHERE region = ifnull(?, region) AND kind = 'span' AND end_ns > start_ns
    UNION ALL
    SELECT wait_end_ns, 0, dst, wait_block FROM flows WHERE wait_region = ifnull(?, wait_region)"""


def test_every_finding_selects_and_frames_a_slice_of_its_own(each: tuple[str, Recorded]) -> None:
    trace, _, found = each[1]
    trace.require_flows()
    first_ns, last_ns = trace.window_ns()
    summary = ExportSummary(Path(), 0, 0, 0, 0, origin_ns=first_ns, last_ns=last_ns - first_ns)
    for finding in found.shown:
        assert finding.where_ns is not None, finding.id
        link = link_to(trace, place_of(finding), summary)
        assert link.selected is not None, finding.id
        assert link.from_ns is not None
        assert link.to_ns is not None
        # Those of whole runs begin and end with the file.
        assert link.from_ns <= max(FIRST_EVENT_NS, link.selected[0]) + 1
        assert sum(link.selected) <= link.to_ns + FIRST_EVENT_NS
        chosen = (link.selected[0] + first_ns, link.selected[1])
        if chosen == (finding.where_ns[0], finding.where_ns[1] - finding.where_ns[0]):
            continue
        rows = trace.frame(
            f"SELECT rank, block FROM ({SLICES}) WHERE start_ns = ? AND duration_ns = ?",
            [finding.region, finding.region, *chosen],
        )
        assert set(rows.itertuples(index=False, name=None)) & set(finding.tracks), finding.id


def test_what_is_said_of_selected_ranks_names_no_other() -> None:
    """Rank 3 has three times the rows, which the others see, too."""
    trace = Trace.open(TRACES / "all_to_all-pipelined-4xH200-skew3-264blocks.kprof")
    report = reports.build(trace.select(ranks="0-2"))
    found = report.found
    said = [found.headline, found.rest.below, *(finding.sentence for finding in found.shown)]
    assert [text for text in said if re.search(r"[Rr]anks? \d", text)] == []
    assert report.facts[0] == "3 of 4 ranks"


def test_every_launch_lies_under_the_kernel_that_the_pytorch_profiler_saw(
    tmp_path: Path, processor: Callable[[Path], Any]
) -> None:
    capture = Capture.open(TRACES / "all_reduce-oneshot-2xH200-torch_profiler.kprof")
    summary = write(
        Trace.open(capture), tmp_path / "run.pftrace", torch_traces=capture.torch_traces()
    )
    (notice,) = (n for n in summary.notices if "PyTorch" in n)
    found = re.search(r"within (\d+) ns at worst \(rank \d\), by 40 launches", notice)
    assert found is not None, notice
    bound_ns = int(found[1])
    assert bound_ns < 1000
    loaded = processor(summary.path)
    assert loaded.import_errors() == []
    rows = loaded.rows(
        f"""WITH tree AS (
                SELECT s.*, s.ts + s.dur AS end_ts, t.name AS line,
                    iif(t.name GLOB 'warp *', p.parent_id, t.parent_id) AS rank
                FROM slice s JOIN track t ON t.id = s.track_id LEFT JOIN track p ON p.id = t.parent_id),
            kernel AS (SELECT * FROM tree WHERE category = 'kernel' AND name GLOB '*::oneshot<*'),
            inside AS (SELECT * FROM tree WHERE line GLOB 'block *' OR line GLOB 'warp *'),
            placed AS (
                SELECT i.id, count(k.id) AS n FROM inside i LEFT JOIN kernel k ON k.rank = i.rank
                    AND k.ts - {bound_ns} <= i.ts AND i.end_ts <= k.end_ts + {bound_ns} GROUP BY i.id)
            SELECT n, count(*) FROM placed GROUP BY n"""
    )
    num_events = Trace.open(capture).num_events()
    # The processor also counts the instants that mark when a wait was released.
    ((num_kernels, num_slices),) = rows
    assert num_kernels == 1
    assert num_slices >= num_events == 15_360


# On one GPU only warps with roles send each other something.
WITH_ARROWS = [
    name for name in INDEX if "-1xH200" not in name or "consumer" in INDEX[name]["shows"]
]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("name", WITH_ARROWS)
def test_no_arrow_runs_backwards_in_perfetto(
    name: str, suffix: str, tmp_path: Path, processor: Callable[[Path], Any]
) -> None:
    whole = Trace.open(TRACES / name)
    # The first two calls of each; `python tests/support/flow_direction.py` looks at all of them.
    ordinals = whole.frame("SELECT DISTINCT launch FROM events ORDER BY launch LIMIT 2")["launch"]
    some = whole.select(launches=tuple(int(launch) for launch in ordinals))
    path = tmp_path / f"trace{suffix}"
    found = directions(some, path, processor)
    assert found.num_found == found.num_written
    assert found.num_reversed == 0
