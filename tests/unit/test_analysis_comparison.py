"""Comparing two sides: no change where there is none, the planted change where there is one."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from kprof import analysis
from kprof import report as reports
from kprof.errors import OutputExistsError, SelectionError
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder


def side(first_seed: int, **changes: object) -> list[Trace]:
    """Two repeats of four launches."""
    seeds = (first_seed, first_seed + 1)
    return [simulate(Plant(num_launches=4, noise=0.1, seed=seed, **changes)) for seed in seeds]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def base() -> list[Trace]:
    return side(1)


def test_a_run_against_itself_has_not_changed(base: list[Trace]) -> None:
    table = analysis.diff(base[0], base[0])
    assert set(table["verdict"]) == {"same"}
    assert reports.build_diff(base[:1], base[:1]).verdict.startswith("No change")


@pytest.mark.parametrize("num_launches", [1, 2, 3])
def test_a_run_of_few_launches_against_itself_has_not_changed_either(num_launches: int) -> None:
    twice = [simulate(Plant(num_launches=num_launches, noise=0.1, seed=5)) for _ in range(2)]
    assert set(analysis.diff(*twice)["verdict"]) == {"same"}
    assert reports.build_diff(twice[:1], twice[1:]).verdict.startswith("No change")


def test_repeats_of_the_same_thing_have_not_changed(base: list[Trace]) -> None:
    assert set(analysis.diff(base, side(11))["verdict"]) == {"same"}


def test_a_slower_rank_makes_the_launch_and_its_slowest_blocks_slower(base: list[Trace]) -> None:
    table = analysis.diff(base, side(21, speed_of={2: 1.5})).set_index(["region", "level"])
    launch = table.loc[("", "launch")]
    assert launch["verdict"] == "slower"
    assert launch["low_ns"] <= launch["change_ns"] <= launch["high_ns"]
    assert launch["base_launches"] == launch["candidate_launches"] == 8
    assert table.loc[("expert", "slowest block"), "verdict"] == "slower"
    assert table.loc[("expert", "slowest block"), "change_share"] == pytest.approx(0.5, abs=0.15)
    back = analysis.diff(side(21, speed_of={2: 1.5}), base).set_index(["region", "level"])
    assert back.loc[("", "launch"), "verdict"] == "faster"


def regions_run(*names: str) -> Trace:
    text = "\n".join(f'REGION(R_{i}, "{name}", compute)' for i, name in enumerate(names))
    build = TraceBuilder(text, 1)
    for launch in range(4):
        build.launch(launch, "k")
        for i, name in enumerate(names):
            start = launch * 1000 + i * 100
            build.span(rank=0, launch=launch, region=name, start_ns=start, duration_ns=50)
    return build.trace()


def test_regions_that_come_and_go() -> None:
    table = analysis.diff(regions_run("a", "old"), regions_run("a", "new"))
    verdicts = table.set_index(["region", "level"])["verdict"]
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
            build.span(rank=0, launch=launch, region="r", start_ns=start, duration_ns=length)
    return build.trace()


def test_a_variant_of_other_kernels_is_compared_by_its_calls() -> None:
    base, candidate = called(("send", "recv"), 1000), called(("fused",), 500)
    table = analysis.diff(base, candidate)
    assert table["level"][0] == "call"
    table = table.set_index(["kernel", "level"])
    assert table.loc[("", "call"), "verdict"] == "faster"
    assert table.loc[("", "call"), ["base_ns", "candidate_ns"]].tolist() == [2000, 500]
    verdict = reports.build_diff([base], [candidate]).verdict
    assert verdict == "A call is faster by 1.50 us (75 %): 2.00 us to 500 ns."


def test_a_call_of_one_kernel_is_not_said_twice() -> None:
    table = analysis.diff(called(("a",), 1000), called(("a",), 500))
    assert "call" not in set(table["level"])


def test_kernels_of_different_paces_make_no_calls() -> None:
    uneven = called(("a", "b"), 1000)
    uneven = uneven.select(launches=(0, 1, 2, 3, 4, 6, 8))
    assert "call" not in set(analysis.diff(uneven, uneven)["level"])
    assert "call" not in set(analysis.diff(uneven, called(("a", "b"), 1000))["level"])


def test_sides_with_nothing_in_common_are_not_called_unchanged() -> None:
    base, candidate = called(("a",), 1000, calls=1), called(("b",), 1000, calls=1)
    table = analysis.diff(base, candidate)
    assert set(table.loc[table["level"] != "call", "verdict"]) == {"added", "removed"}
    verdict = reports.build_diff([base], [candidate]).verdict
    assert verdict.startswith("No change: ")
    assert verdict.endswith("; only the base has a; only the candidate has b.")
    uneven = called(("a", "b"), 1000).select(launches=(0, 2, 3, 4)), called(("c",), 10)
    verdict = reports.build_diff([uneven[0]], [uneven[1]]).verdict
    assert verdict == "Nothing is in both sides to compare: c in place of a and b."


def test_few_launches_are_unclear_not_changed() -> None:
    def one(length: int) -> Trace:
        build = TraceBuilder('REGION(R, "r", compute)', 1)
        build.span(rank=0, region="r", start_ns=0, duration_ns=length)
        return build.trace()

    assert set(analysis.diff(one(100), one(200))["verdict"]) == {"unclear"}
    verdict = reports.build_diff([one(100)], [one(200)]).verdict
    assert verdict.startswith("Nothing can be said of 1 call against 1: it takes 4 a side")
    warm = [called(("a",), 1000 + i, calls=3) for i in (0, 900)]
    assert "of 3 calls against 3" in reports.build_diff(warm[:1], warm[1:]).verdict


def test_a_change_below_the_clock_error_is_no_change() -> None:
    def run(length: int, bound: float) -> Trace:
        build = TraceBuilder('REGION(R, "r", compute)', 2, bound_ns=bound)
        for launch in range(5):
            build.launch(launch, "k")
            for rank in range(2):
                build.span(
                    rank=rank, launch=launch, region="r", start_ns=launch * 9999, duration_ns=length
                )
        return build.trace()

    def verdict(bound: float) -> str:
        table = analysis.diff(run(1000, bound), run(1100, bound))
        return str(table.set_index("level").loc["launch", "verdict"])

    assert verdict(10.0) == "slower"
    assert verdict(200.0) == "same"


def test_an_empty_side_is_refused(base: list[Trace]) -> None:
    empty = TraceBuilder('REGION(R, "r", compute)', 1).trace()
    with pytest.raises(SelectionError, match="candidate side has no events"):
        analysis.diff(base, [empty])
    with pytest.raises(SelectionError, match="base side"):
        analysis.diff([], base)


def test_the_forms_of_a_comparison(base: list[Trace], tmp_path: Path) -> None:
    from rich.console import Console

    report = reports.build_diff(base, side(31, send_late_ns={1: 20_000}))
    assert report.verdict.startswith("A launch of all_to_all is slower by")
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
