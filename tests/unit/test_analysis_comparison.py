"""Comparing two sides: no change where there is none, the planted change where there is one."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from kprof import analysis
from kprof import report as reports
from kprof.errors import OutputExistsError, SelectionError
from kprof.report.blocks import Depth, Table, flat
from kprof.report.difference import blocks_of
from kprof.trace import Trace
from planted import Plant, simulate
from simulation import Cause, Kind, Scenario, Sizes
from simulation import simulate as simulate_scenario
from synthetic import TraceBuilder


def side(first_seed: int, **changes: object) -> list[Trace]:
    """Two repeats of four launches."""
    seeds = (first_seed, first_seed + 1)
    return [simulate(Plant(num_launches=4, noise=0.1, seed=seed, **changes)) for seed in seeds]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def base() -> list[Trace]:
    return side(1)


def sides_of(
    topology: str, sizes: Sizes, *causes: Sequence[Cause], noise: float = 0.05
) -> list[list[Trace]]:
    """A run of twelve calls per side, with these causes."""
    return [
        [simulate_scenario(Scenario(topology, sizes, 12, tuple(each), noise=noise, seed=i)).trace()]
        for i, each in enumerate(causes, start=1)
    ]


def of_medians(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["measure"] == "median"]


@pytest.mark.parametrize("num_launches", [1, 3, 7])
def test_a_recording_against_itself_is_the_same_however_few_its_launches(
    num_launches: int,
) -> None:
    """Noise of 40 % makes two recordings unclear; one has nothing to differ by."""
    run, other = (calls_of(lengths(seed, num_launches, 0.4)) for seed in (5, 6))
    report = reports.build_diff([run], [run])
    table, verdict = report.table, report.verdict
    assert set(table["verdict"]) == {"same"}
    assert set(table["low_ns"]) == set(table["high_ns"]) == {0.0}
    same = "No change: every launch and region took exactly as long on both sides"
    assert verdict.startswith(same)
    assert ("too few to tell two recordings apart: that takes 4." in verdict) == (num_launches < 4)
    assert not reports.build_diff([run], [other]).verdict.startswith(same)


def test_repeats_of_the_same_thing_have_not_changed(base: list[Trace]) -> None:
    table = analysis.diff(base, side(11))
    assert set(table["verdict"]) <= {"same", "unclear"}


def calls_of(lengths: Sequence[int]) -> Trace:
    build = TraceBuilder('REGION(R, "r", compute)', 1)
    start = 0
    for launch, length in enumerate(lengths):
        build.launch(launch, "k")
        build.span(0, "r", start, length, launch=launch)
        start += 10 * length
    return build.trace()


def lengths(seed: int, count: int, spread: float = 0.02) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).normal(1e6, spread * 1e6, count)]


def test_some_calls_that_are_slow_are_no_same() -> None:
    slow = [n * 5 // 2 if i % 10 in (2, 5, 6) else n for i, n in enumerate(lengths(1, 40))]
    base, candidate = calls_of(lengths(2, 40)), calls_of(slow)
    report = reports.build_diff([base], [candidate])
    rows = report.table[report.table["level"] == "launch"].set_index("measure")
    assert rows["verdict"].to_dict() == {
        "mean": "slower",
        "median": "same",
        "p95": "slower",
        "slow share": "slower",
    }
    assert rows.loc["slow share", ["base_ns", "candidate_ns"]].tolist() == [0, 0.3]
    assert report.verdict.startswith(
        "A launch of k went from 1.00 ms to 1.45 ms, +45 % in the mean; slow launches went from 0 % to 30 %. "
    )


@pytest.mark.slow
def test_a_wide_interval_is_unclear_and_a_narrow_one_the_same() -> None:
    verdicts = {
        spread: of_medians(
            analysis.diff(calls_of(lengths(3, 12, spread)), calls_of(lengths(4, 12, spread)))
        )
        for spread in (0.01, 0.15)
    }
    assert set(verdicts[0.01]["verdict"]) == {"same"}
    assert set(verdicts[0.15]["verdict"]) == {"unclear"}
    wide = [calls_of(lengths(seed, 12, 0.15)) for seed in (3, 4)]
    report = reports.build_diff(wide[:1], wide[1:])
    assert report.verdict.startswith(
        "A launch of k went from 956 us to 1.01 ms, +6 %, which is unclear: the mean may have "
    )
    assert report.causes == ()


@pytest.mark.slow
def test_diff_says_which_place_takes_longer_and_in_which_calls() -> None:
    report = reports.build_diff(slow_block(False), slow_block(True))
    (change,) = report.changes
    assert (change.finding.ranks, change.finding.blocks) == ((1,), (5,))
    assert change.finding.calls == tuple(call for call in range(40) if call % 10 in (2, 5, 6))
    assert change.finding.factor == pytest.approx(3.5, rel=0.15)
    (cause,) = report.causes
    assert cause.startswith("Slower: work of block 5 of rank 1 takes 3.")
    assert "x as long as before in 12 of 40 calls; undoing it would save " in cause
    assert len(change.sentence.split()) <= 25
    assert change.measured is not None
    assert change.measured.factor == pytest.approx(change.finding.factor, rel=0.15)
    back = reports.build_diff(slow_block(True), slow_block(False))
    (gone,) = back.causes
    assert gone.startswith("Faster: work of block 5 of rank 1 took 3.")
    document = json.loads(reports.diff_to_json(back))
    assert [row["way"] for row in document["changes"]] == ["faster"]
    assert document["changes"][0]["blocks"] == [5]


@pytest.mark.slow
def test_diff_charges_the_place_that_grew_and_not_those_that_wait_for_it() -> None:
    """Rank 2 is slower on both sides; what changed is the link from 0 to 1."""
    slow = Cause(Kind.SLOW, 1.0, (1.0,) * 12, ranks=(2,))
    link = Cause(Kind.SLOW_LINK, 30_000.0, (1.0,) * 12, link=(0, 1))
    (change,) = reports.build_diff(*sides_of("ring", Sizes(4, 4, 2), [slow], [slow, link])).changes
    assert change.finding.links == ((0, 1),)
    assert change.sentence.startswith("Transfers from rank 0 to rank 1 take ")


def test_diff_keeps_a_pause_apart_from_the_work_after_it() -> None:
    """Both are about one region: what it takes, and how long nothing is recorded before it."""
    causes = (
        Cause(Kind.SLOW, 1.0, (1.0,) * 12, ranks=(1,), region="work"),
        Cause(Kind.IDLE_GAP, 40_000.0, (1.0,) * 12, region="work"),
    )
    changes = reports.build_diff(*sides_of("halo", Sizes(3, 4, 2), [], causes)).changes
    said = [change.sentence.partition(";")[0] for change in changes]
    assert said[0] == "All ranks have longer gaps ahead of work than before", said
    (of_work,) = (change.measured for change in changes if change.measured)
    assert [text for text in said if text.startswith("work of")] == [
        f"work of rank 1 takes {of_work.factor:.1f}x as long per block as before"
    ], said


REDUCES = 'REGION(R, "reduce", compute, bytes:32)'


def reduces(num_spans: int, span_ns: int, num_bytes: int) -> Trace:
    """Six calls of one rank's two blocks, which reduce so many times so much."""
    build = TraceBuilder(REDUCES, 1)
    for launch in range(6):
        build.launch(launch, "k")
        for block in range(2):
            for i in range(num_spans):
                place = {"launch": launch, "block": block, "bytes": num_bytes}
                build.span(0, "reduce", launch * 100_000 + i * span_ns, span_ns, **place)
    return build.trace()


@pytest.mark.slow
def test_diff_says_what_a_figure_is_per_and_whether_bytes_grew() -> None:
    """4x the time for 4x the bytes is as fast."""
    report = reports.build_diff([reduces(1, 4_000, 8_000)], [reduces(1, 16_000, 32_000)])
    (change,) = report.changes
    assert change.sentence.startswith(
        "reduce of rank 0 takes 4.0x as long per block as before, with 4.0x the bytes; undoing it "
    )
    assert change.detail == (
        "Per block of a call: 4.00 us before, 16.0 us now; "
        "per byte 1.0x as long (2.0 GB/s of a block before, 2.0 now)"
    )
    rows = of_medians(report.table).set_index("level")
    work = ["base_spans", "candidate_spans", "base_bytes", "candidate_bytes"]
    for level in ("mean block", "slowest block"):
        assert rows.loc[level, work].tolist() == [1, 1, 8_000, 32_000]
    assert rows.loc["launch", work].isna().all()
    assert report.verdict.endswith("4.00 us to 16.0 us, +300 %, with 4.0x the bytes.")
    (table,) = [block for block in flat(blocks_of(report), Depth.PAGE) if isinstance(block, Table)]
    shown = {row[3]: row[-1] for row in table.rows}
    assert shown == {
        "launch": "",
        "mean block": "4.0x the bytes",
        "slowest block": "4.0x the bytes",
    }


@pytest.mark.slow
def test_diff_says_whether_spans_grew() -> None:
    (change,) = reports.build_diff([reduces(1, 4_000, 0)], [reduces(4, 3_000, 0)]).changes
    assert "takes 3.0x as long per block as before, with 4.0x the spans; " in change.sentence
    assert change.detail == (
        "Per block of a call: 4.00 us before, 12.0 us now; per span 4.00 us before, 3.00 us now"
    )
    back = reports.build_diff([reduces(4, 3_000, 0)], [reduces(1, 4_000, 0)]).changes[0]
    assert (
        "took 3.0x as long per block before, with 4.0x the spans; the change saves" in back.sentence
    )
    assert "12.0 us before, 4.00 us now" in back.detail


def looks(look_ns: int) -> Trace:
    """Rank 1 looks at a flag that rank 0 has set long before."""
    build = TraceBuilder(
        'REGION(S, "send", send, peer:8, slot:24)\nREGION(W, "wait", wait, peer:8, slot:24)\n'
        'REGION(C, "work", compute)\nFLOW(S, W)',
        2,
    )
    for launch in range(6):
        build.launch(launch, "k")
        at = launch * 1_000_000
        build.span(0, "send", at, 100, launch=launch, peer=1, slot=launch)
        build.span(1, "work", at, 20_000, launch=launch)
        build.span(1, "wait", at + 20_000, look_ns, launch=launch, peer=0, slot=launch)
    return build.trace()


def test_a_figure_of_the_replay_says_that_it_leaves_waiting_out() -> None:
    """What a wait takes once its data is there is no column of a table."""
    (change,) = reports.build_diff([looks(1_000)], [looks(9_000)]).changes
    assert change.measured is None
    assert change.detail == ""
    assert change.sentence.startswith("wait of all ranks takes ")
    assert "x as long as before, waits excluded; undoing it would save " in change.sentence


def test_diff_names_no_place_where_runs_differ_by_chance() -> None:
    sides = sides_of("halo", Sizes(4, 6, 3), [], [], noise=0.2)
    assert reports.build_diff(*sides).changes == ()


def slow_block(planted: bool) -> list[Trace]:
    """Block 5 of rank 1 is slow in 12 of 40 calls."""
    weights = tuple(float(planted and call % 10 in (2, 5, 6)) for call in range(40))
    cause = Cause(Kind.SLOW, 2.5, weights, ranks=(1,), blocks=(5,), region="work")
    run = Scenario("halo", Sizes(2, 6, 2), num_calls=40, causes=(cause,), seed=3)
    return [simulate_scenario(run).trace()]


@pytest.mark.slow
def test_a_slower_rank_makes_the_launch_and_its_slowest_blocks_slower(base: list[Trace]) -> None:
    table = analysis.diff(base, side(21, speed_of={2: 1.5}))
    table = of_medians(table).set_index(["region", "level"])
    launch = table.loc[("", "launch")]
    assert launch["verdict"] == "slower"
    assert launch["low_ns"] <= launch["change_ns"] <= launch["high_ns"]
    assert launch["base_launches"] == launch["candidate_launches"] == 8
    assert table.loc[("expert", "slowest block"), "verdict"] == "slower"
    assert table.loc[("expert", "slowest block"), "change_share"] == pytest.approx(0.5, abs=0.15)
    back = of_medians(analysis.diff(side(21, speed_of={2: 1.5}), base))
    back = back.set_index(["region", "level"])
    assert back.loc[("", "launch"), "verdict"] == "faster"


def regions_run(*names: str, kernel: str = "k") -> Trace:
    text = "\n".join(f'REGION(R_{i}, "{name}", compute)' for i, name in enumerate(names))
    build = TraceBuilder(text, 1)
    for launch in range(4):
        build.launch(launch, kernel)
        for i, name in enumerate(names):
            build.span(0, name, launch * 1000 + i * 100, 50, launch=launch)
    return build.trace()


def test_regions_that_come_and_go() -> None:
    table = analysis.diff(regions_run("a", "old"), regions_run("a", "new"))
    verdicts = of_medians(table).set_index(["region", "level"])["verdict"]
    assert verdicts[("new", "mean block")] == "added"
    assert verdicts[("old", "mean block")] == "removed"
    assert verdicts[("a", "mean block")] == "same"


def called(names: tuple[str, ...], length: int, calls: int = 5) -> Trace:
    """Calls of some kernels, one after the other."""
    build = TraceBuilder('REGION(R, "r", compute)', 1)
    for call in range(calls):
        for i, name in enumerate(names):
            launch = call * len(names) + i
            build.launch(launch, name)
            start = call * 100_000 + i * length
            build.span(0, "r", start, length, launch=launch)
    return build.trace()


def test_a_variant_of_other_kernels_is_compared_by_its_calls() -> None:
    base, candidate = called(("send", "recv"), 1000), called(("fused",), 500)
    report = reports.build_diff([base], [candidate])
    assert report.table["level"][0] == "call"
    table = of_medians(report.table).set_index(["kernel", "level"])
    assert table.loc[("", "call"), "verdict"] == "faster"
    assert table.loc[("", "call"), ["base_ns", "candidate_ns"]].tolist() == [2000, 500]
    assert report.verdict == "A call went from 2.00 us to 500 ns, -75 %."


def test_a_call_of_one_kernel_is_not_said_twice() -> None:
    table = analysis.diff(called(("a",), 1000), called(("a",), 500))
    assert "call" not in set(table["level"])


def test_kernels_of_different_paces_make_no_calls() -> None:
    uneven = called(("a", "b"), 1000)
    uneven = uneven.select(launches=(0, 1, 2, 3, 4, 6, 8))
    assert "call" not in set(analysis.diff(uneven, uneven)["level"])
    assert "call" not in set(analysis.diff(uneven, called(("a", "b"), 1000))["level"])


@pytest.mark.slow
def test_sides_with_nothing_in_common_are_not_called_unchanged() -> None:
    base, candidate = called(("a",), 1000, calls=1), called(("b",), 1000, calls=1)
    report = reports.build_diff([base], [candidate])
    table, verdict = report.table, report.verdict
    assert set(table.loc[table["level"] != "call", "verdict"]) == {"added", "removed"}
    assert verdict.startswith(
        "A call went from 1.00 us to 1.00 us, -0 %, but 1 call against 1 cannot tell that from "
    )
    assert verdict.endswith(". Only the base has a. Only the candidate has b.")
    uneven = called(("a", "b"), 1000).select(launches=(0, 2, 3, 4)), called(("c",), 10)
    verdict = reports.build_diff([uneven[0]], [uneven[1]]).verdict
    assert verdict == "The sides have nothing in common to compare: c in place of a and b."


@pytest.mark.slow
def test_few_launches_are_unclear_not_changed() -> None:
    report = reports.build_diff([calls_of([100])], [calls_of([200])])
    assert set(report.table["verdict"]) == {"unclear"}
    assert report.table[["low_ns", "high_ns"]].isna().all(axis=None)
    assert report.verdict.startswith(
        "A launch of k went from 100 ns to 200 ns, +100 %, but 1 call against 1 cannot tell "
        "that from chance: it takes 4 a side"
    )
    few = [reduces(1, length, 0).select(launches=(1, 2)) for length in (4_000, 16_000)]
    report = reports.build_diff(few[:1], few[1:])
    assert report.causes
    assert report.verdict.endswith(" The changes below hold for these calls, and may be chance.")
    warm = [called(("a",), 1000 + i, calls=3) for i in (0, 900)]
    assert ", but 3 calls against 3 " in reports.build_diff(warm[:1], warm[1:]).verdict


@pytest.mark.slow
def test_kernels_that_have_nothing_in_common_are_refused() -> None:
    def run(kernel: str, *regions: str) -> Trace:
        return regions_run(*regions, kernel=kernel)

    base = run("sum/a", "load", "reduce", "store")
    with pytest.raises(
        SelectionError, match="nothing in common to compare: gemm in place of sum/a"
    ):
        reports.build_diff([base], [run("gemm", "multiply", "reduce", "epilogue")])
    for variant in (run("sum/b", "fetch"), run("other", "load", "reduce")):
        assert reports.build_diff([base], [variant]).verdict


def test_a_change_below_the_clock_error_is_no_change() -> None:
    def run(length: int, bound: float) -> Trace:
        build = TraceBuilder('REGION(R, "r", compute)', 2, bound_ns=bound)
        for launch in range(5):
            build.launch(launch, "k")
            for rank in range(2):
                build.span(rank, "r", launch * 9999, length, launch=launch)
        return build.trace()

    def verdict(bound: float) -> str:
        table = analysis.diff(run(1000, bound), run(1100, bound))
        return str(of_medians(table).set_index("level").loc["launch", "verdict"])

    assert verdict(10.0) == "slower"
    assert verdict(200.0) == "same"


def test_an_empty_side_is_refused(base: list[Trace]) -> None:
    empty = TraceBuilder('REGION(R, "r", compute)', 1).trace()
    with pytest.raises(SelectionError, match="candidate side has no events"):
        analysis.diff(base, [empty])
    with pytest.raises(SelectionError, match="base side"):
        analysis.diff([], base)


@pytest.mark.slow
def test_the_forms_of_a_comparison(base: list[Trace], tmp_path: Path) -> None:
    from rich.console import Console

    report = reports.build_diff(base, side(31, send_late_ns={1: 20_000}))
    assert re.match(
        r"A launch of all_to_all went from 1\d\.\d us to 3\d\.\d us, \+1\d\d %", report.verdict
    )
    # The region that changed most first, after the launch.
    timelines, regions = report.figures
    assert re.findall(r">([^<]+, rank \d)</text>", timelines.svg) == [
        *(f"base, rank {rank}" for rank in range(4)),
        *(f"candidate, rank {rank}" for rank in range(4)),
    ]
    texts = re.findall(r">([^<]+)</text>", regions.svg)
    assert texts[2] == "a launch of all_to_all"
    assert texts[4] == "dispatch/wait-token"
    assert texts[-1].endswith(", same")
    document = json.loads(reports.diff_to_json(report))
    assert document["schema_version"] == reports.DIFF_SCHEMA_VERSION
    assert document["counts"]["slower"] == len(
        [r for r in document["rows"] if r["verdict"] == "slower"]
    )
    console = Console(file=io.StringIO(), width=160)
    console.print(reports.render_diff_terminal(report))
    assert "(whole launch)" in console.file.getvalue()  # type: ignore[attr-defined]
    path = reports.write_diff_html(report, tmp_path / "diff.html")
    page = path.read_text(encoding="utf-8")
    assert report.verdict in page
    assert "http://" not in page
    assert "https://" not in page
    with pytest.raises(OutputExistsError):
        reports.write_diff_html(report, path)


def test_names_are_escaped_in_the_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    report = reports.build_diff([regions_run("a")], [regions_run("a", evil)])
    page = reports.write_diff_html(report, tmp_path / "diff.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;" in page
