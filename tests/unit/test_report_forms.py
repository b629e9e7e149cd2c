"""The report's forms: JSON for programs, a page, a terminal, and bars for CI."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from kprof import report as reports
from kprof.analysis import all_metrics
from kprof.analysis.findings import Limit, LimitKind
from kprof.analysis.wording import (
    counted,
    difference,
    duration,
    listed,
    members,
    percent,
    signed_percent,
)
from kprof.capture.manifest import RegionLosses
from kprof.errors import ClockError, OutputExistsError, SelectionError
from kprof.report import Report
from kprof.report.figures import all_figures
from kprof.report.page import to_html
from kprof.trace import Trace
from planted import Plant, simulate
from synthetic import TraceBuilder

pytestmark = pytest.mark.slow

EVIL = "<script>alert(1)</script></script><img src=x onerror=alert(2)>&'"


@pytest.fixture(scope="module")
def uneven() -> Report:
    return reports.build(simulate(Plant(tokens_of={3: 3.0}, send_late_ns={3: 20_000})))


PAIR_REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
FLOW(R_SEND, R_WAIT)
"""


def exchange(send_slot: int = 0, send_ns: int = 0, missing: tuple[int, ...] = ()) -> TraceBuilder:
    """Rank 0 waits from 0 to 100 for what rank 1 sends."""
    build = TraceBuilder(PAIR_REGIONS, 2 + len(missing), missing_ranks=missing)
    build.span(1, "send", send_ns, 10, peer=0, slot=send_slot)
    build.span(0, "wait", 0, 100, peer=1, slot=0)
    return build


def terminal_text(report: Report, width: int = 120) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width)
    console.print(reports.render_terminal(report))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_json_names_the_rank_and_the_blocks_that_serve_it(uneven: Report) -> None:
    document = json.loads(reports.to_json(uneven))
    assert document["schema_version"] == reports.SCHEMA_VERSION
    first = document["findings"][0]
    assert (first["kind"], first["ranks"]) == ("idle_gap", [3])
    assert first["waits"][0] | {"wait_ns": 0, "share": 0} == {
        "region": "dispatch/wait-token",
        "ranks": [0, 1, 2, 4, 5, 6, 7],
        "peers": [3],
        "wait_ns": 0,
        "share": 0,
    }
    low, high = first["interval_ns"]
    assert low <= first["gain_ns"] <= high
    assert sum(row["gain_ns"] for row in first["evidence"]) == pytest.approx(first["gain_ns"])
    second = document["findings"][1]
    assert (second["kind"], second["ranks"]) == ("uneven_work", [3])
    assert document["verdict"] == first["sentence"]
    per_peer = [sum(column) for column in zip(*document["blame_matrix"]["wait_ns"], strict=True)]
    assert per_peer.index(max(per_peer)) == 3
    assert document["rest"]["explained"] == pytest.approx(
        sum(finding["share"] for finding in document["findings"])
    )


def test_json_holds_every_documented_table(uneven: Report) -> None:
    tables = json.loads(reports.to_json(uneven))["tables"]
    can_be_empty = ("unmatched_flows", "barrier_waits", "bandwidth", "role_waits")
    can_be_empty += (
        "open_waits",
        "hung_waits",
        "collectives",
        "warp_lifetimes",
        "hosts_and_rails",
        "compiled",
    )
    assert set(all_metrics()) == set(tables)
    needed = [
        name for name in tables if name not in can_be_empty and not name.startswith("achieved")
    ]
    assert all(tables[name] for name in needed)


def test_building_tells_its_progress() -> None:
    heard: list[float] = []
    reports.build(
        simulate(Plant(num_launches=1)), progress=lambda _what, share: heard.append(share)
    )
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


def test_unaligned_clocks_leave_a_sentence_where_the_sections_would_be() -> None:
    report = reports.build(simulate(Plant(is_aligned=False)))
    document = json.loads(reports.to_json(report))
    assert document["tables"]["late_sender"] is None
    assert "no clock calibration" in document["refused"]["late_sender"]
    assert document["tables"]["waits_by_peer"]
    assert "no clock calibration" in terminal_text(report)
    page = to_html(report)
    assert re.search("Not shown: [a-z ,]*late sender", page)
    assert "compare within a lane only" in page


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (TraceBuilder('REGION(R, "r", wait, peer:8)', 2).trace(), "holds no events"),
        (
            simulate(Plant(num_ranks=1, num_blocks=1)),
            "Nothing stands out: blocks do useful work 98 %",
        ),
    ],
)
def test_poor_traces_still_get_a_whole_report(trace: object, words: str, tmp_path: Path) -> None:
    report = reports.build(trace)  # type: ignore[arg-type]
    assert words in report.verdict
    assert words in terminal_text(report)
    assert json.loads(reports.to_json(report))["verdict"] == report.verdict
    assert not re.search(r"\bnan\b", terminal_text(report) + texts_of(to_html(report)))
    assert reports.write_html(report, tmp_path / "r.html").exists()


def texts_of(page: str) -> str:
    """What a page says, without its scripts, styles and tags."""
    return re.sub(r"(?s)<(script|style).*?</\1>|<[^>]*>", " ", page)


def test_too_large_a_call_is_refused_in_a_whole_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kprof.analysis.replay.load.MAX_SPANS_WALKED", 10)
    report = reports.build(simulate(Plant(num_launches=1)))
    (reason,) = report.reasons
    assert reason.startswith("the call has ")
    assert report.reasons[reason] == "critical path, critical regions, delay costs, what-if"
    assert "delay costs, what-if.</b> The call has" in to_html(report)
    assert "what-if. The call has" in " ".join(terminal_text(report).split())


def test_no_wait_regions_get_a_sentence() -> None:
    build = TraceBuilder('REGION(R, "work", compute)', 2)
    build.span(0, "work", 0, 10)
    build.span(1, "work", 0, 11)
    quiet = reports.build(build.trace())
    assert "no_waits" in {doubt.kind.value for doubt in quiet.found.doubts}
    assert "note: No region of category wait" in terminal_text(quiet)
    assert quiet.advice == ""


def texts(svg: str) -> list[str]:
    """What is written in a drawing."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def test_legends_hold_few_and_short_names() -> None:
    names = [f"a/very/long/path/of/names/that/goes/on/step_{i}" for i in range(12)]
    text = "\n".join(f'REGION(R{i}, "{name}", wait, peer:8)' for i, name in enumerate(names))
    build = TraceBuilder(text, 2)
    for i, name in enumerate(names):
        build.span(0, name, 1000 * i, 100 + i, peer=1)
    figures = {figure.id: figure for figure in all_figures(reports.build(build.trace()))}
    for name in ("peers", "wait-distribution"):
        legend = [text for text in texts(figures[name].svg) if re.search("step_|other", text)]
        assert len(legend) == 8
        assert any(entry.startswith("5 other regions") for entry in legend)
        assert all(len(entry.partition(":")[0]) <= 36 for entry in legend)
    counts = [re.search(": ([0-9]+)$", text) for text in texts(figures["wait-distribution"].svg)]
    assert sum(int(count[1]) for count in counts if count) == len(names)


@pytest.mark.parametrize(
    ("build", "words", "is_grave"),
    [
        (exchange(send_slot=5), "1 send released no recorded wait", False),
        (exchange(send_ns=5000), "1 of 1 waits ended before their send began", True),
        (exchange(missing=(2, 3)), "Ranks 2, 3 of 4 left no events", True),
    ],
    ids=["unmatched flows", "violated causality", "missing ranks"],
)
def test_bad_traces_get_a_sentence_before_the_verdict_if_it_is_grave_and_all_forms(
    build: TraceBuilder, words: str, is_grave: bool, tmp_path: Path
) -> None:
    report = reports.build(build.trace())
    (said,) = [doubt for doubt in report.found.doubts if words in doubt.sentence]
    assert said.is_grave == is_grave
    text = " ".join(terminal_text(report).split())
    assert text.index(words) < text.index(report.verdict) or not is_grave
    document = json.loads(reports.to_json(report))
    assert any(words in doubt["sentence"] for doubt in document["doubts"])
    # What still makes sense is still said.
    waits = {row["peer"]: row["wait_ns"] for row in document["tables"]["waits_by_peer"]}
    assert waits == {1: 100}
    page = reports.write_html(report, tmp_path / "r.html").read_text(encoding="utf-8")
    assert words.lower() in page.lower()
    assert page.index(words) < page.index('id="verdict"') or not is_grave


def test_losses_are_shown_by_rank_and_region(uneven: Report) -> None:
    first, *others = uneven.manifest.ranks
    losses = (RegionLosses("dispatch/copy", dropped=1234, clamped=5),)
    ranks = (replace(first, losses=losses), *others)
    report = dataclasses.replace(uneven, manifest=replace(uneven.manifest, ranks=ranks))
    (row,) = json.loads(reports.to_json(report))["losses"]
    assert (row["rank"], row["region"], row["dropped"], row["clamped"]) == (
        first.rank,
        "dispatch/copy",
        1234,
        5,
    )
    assert ">1,234</span></td>" in to_html(report)
    assert ">1,234</span></td>" not in to_html(uneven)


def evil_report() -> Report:
    build = TraceBuilder(f'REGION(R, "{EVIL}", wait, peer:8)\nREGION(C, "<b>c", compute)', 2)
    build.launch(0, EVIL)
    for rank in range(2):
        build.span(rank, EVIL, 0, 5000, peer=1 - rank)
        build.span(rank, "<b>c", 5000, 5000)
    return reports.build(build.trace())


def test_names_with_html_in_them_are_escaped_everywhere() -> None:
    report = evil_report()
    page = to_html(report)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    # The page has exactly the one script that we wrote, and what ribbon and timeline draw from.
    assert page.count("<script>") == 1
    assert page.count('<script type="application/json">') == 2
    assert page.count("<script") == page.count("</script>") == 3
    figures = all_figures(report)
    assert len(figures) > 5
    assert not any("<img" in figure.svg or "<b>c" in figure.svg for figure in figures)


def test_markup_in_names_is_text_in_the_terminal() -> None:
    build = TraceBuilder('REGION(R, "[red]x[/red]", compute)', 1)
    build.span(0, "[red]x[/red]", 0, 10)
    assert "[red]x[/red]" in terminal_text(reports.build(build.trace()))


def test_the_page_loads_nothing_and_is_small_enough(uneven: Report, tmp_path: Path) -> None:
    path = reports.write_html(uneven, tmp_path / "report.html")
    assert path.stat().st_size < 1.5e6
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page)
    assert "default-src 'none'" in page


def test_every_figure_is_a_drawing_with_a_name(uneven: Report) -> None:
    from xml.etree import ElementTree

    figures = all_figures(uneven)
    assert len({figure.id for figure in figures}) == 11
    for figure in figures:
        drawing = ElementTree.fromstring(figure.svg)
        assert len(drawing.attrib["aria-label"]) > 15
        _, _, width, height = map(float, drawing.attrib["viewBox"].split())
        for rect in drawing.iter("rect"):
            x, y, wide, high = (float(rect.attrib[name]) for name in ("x", "y", "width", "height"))
            assert -0.5 <= x <= x + wide <= width + 0.5, (figure.id, rect.attrib)
            assert -0.5 <= y <= y + high <= height + 0.5, (figure.id, rect.attrib)


def test_blocks_ranks_and_calls_are_counted_in_whole_numbers(uneven: Report) -> None:
    figures = {figure.id: texts(figure.svg) for figure in all_figures(uneven)}
    assert [text for text in figures["blocks-work"] if text.isdigit()][:16] == [
        str(block) for block in range(16)
    ]
    assert "rank 7" in figures["timeline"]
    assert {"0", "1"} <= set(figures["launches"])
    assert "0.5" not in figures["launches"]


def test_the_time_of_all_blocks_adds_up(uneven: Report) -> None:
    shares = {part.name: part.share for part in uneven.parts}
    assert sum(shares.values()) == pytest.approx(1.0)
    efficiency = uneven.tables["efficiency"]["parallel_efficiency"].iloc[0]
    assert shares["work: compute, send, receive"] == pytest.approx(efficiency)
    waiting = [name for name in shares if name.startswith("waiting for rank 3 (finding")]
    assert len(waiting) == 1
    # The sentence of a finding and its part of the bar are one number.
    number = int(waiting[0].rpartition(" ")[2].rstrip(")"))
    first = uneven.findings[number - 1]
    assert shares[waiting[0]] == pytest.approx(sum(wait.share for wait in first.waits))
    text = f"{percent(first.waits[0].share)} of the blocks' time"
    assert any(detail.endswith(text) for detail in first.details)
    page = to_html(uneven)
    grown = [float(share) for share in re.findall("flex-grow: ([0-9.]+)", page)]
    assert sum(grown) == pytest.approx(1.0, abs=1e-3)
    assert all(f"{name}</li>" in page for name, share in shares.items() if share >= 0.0005)


def test_each_finding_has_its_gain_its_advice_and_its_figure(uneven: Report) -> None:
    page = to_html(uneven)
    first_screen = page[page.index('id="verdict"') : page.index('id="details"')]
    assert f"<b>What to do:</b> {uneven.findings[0].advice}" in first_screen
    for number, finding in enumerate(uneven.findings, start=1):
        assert finding.share is not None
        for part in (percent(finding.share), finding.advice, f'href="#detail-{number}"'):
            assert part in first_screen
        rank, block = finding.tracks[0]
        assert f"rank {rank} block {block}" in first_screen
    targets = set(re.findall('href="#([^"]+)"', page))
    assert targets <= set(re.findall(' id="([^"]+)"', page))


def test_the_page_is_not_overwritten_unless_asked(uneven: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("mine")
    with pytest.raises(OutputExistsError, match="--force"):
        reports.write_html(uneven, path)
    assert path.read_text() == "mine"
    reports.write_html(uneven, path, force=True)
    assert path.read_text().startswith("<!doctype html>")


def test_terminal_starts_with_the_verdict_and_fits(uneven: Report) -> None:
    text = terminal_text(uneven, width=100)
    assert text.index("Rank 3 has a gap without events") < text.index("Regions")
    assert max(len(line) for line in text.splitlines()) <= 100


def test_bars_can_ask_for_gains_and_for_slow_calls(uneven: Report) -> None:
    share = uneven.findings[0].share
    assert share is not None
    lengths = uneven.tables["calls"]["length_ns"]
    bars = ["gain>10%", "gain>99%", "unexplained>90%", "p95_call>1us", "findings>0", "doubts>0"]
    missed = {bar.expression: bar.value for bar in reports.check_bars(uneven, bars)}
    assert missed == {"gain>10%": share, "p95_call>1us": max(lengths), "findings>0": 2.0}


def test_gain_is_what_the_headline_says_whether_finding_or_design(uneven: Report) -> None:
    share = uneven.findings[0].share
    assert share is not None
    limits = (Limit(LimitKind.LOCK, "lock", 0.0, 0.9), Limit(LimitKind.BARRIER, "all", 0.0, 0.05))
    rest = dataclasses.replace(uneven.found.rest, limits=limits)
    first = dataclasses.replace(uneven.found, rest=rest, design=limits[0])
    behind = dataclasses.replace(
        uneven.found, rest=dataclasses.replace(rest, limits=limits[1:]), design=None
    )
    for found, gain, cost in ((first, 0.9, 0.9), (behind, share, 0.05), (uneven.found, share, 0.0)):
        report = dataclasses.replace(uneven, found=found)
        missed = reports.check_bars(report, ["gain>=0", "design_cost>=0"])
        assert [bar.value for bar in missed] == [gain, cost]
        assert f"{100 * gain:.0f} %" in report.verdict


def test_the_percentile_of_calls_leaves_a_warm_up_out() -> None:
    build = TraceBuilder('REGION(R, "r", compute)', 1)
    for launch in range(8):
        build.launch(launch, "k")
        length = 900_000 if launch == 0 else 10_000 + launch
        build.span(0, "r", 1_000_000 * launch, length, launch=launch)
    (bar,) = reports.check_bars(reports.build(build.trace()), ["p95_call>10us"])
    assert bar.value == 10_007
    assert bar.sentence == "p95_call is 10.01 us, the limit is 10 us: --fail-on p95_call>10us"


def test_bars_that_are_missed(uneven: Report) -> None:
    missed = reports.check_bars(
        uneven, ["load_balance<0.999", "load_balance < 1%", "max_blame_share>50%"]
    )
    assert [bar.expression for bar in missed] == ["load_balance<0.999", "max_blame_share>50%"]
    assert re.fullmatch(
        r"load_balance is \d\d\.?\d? %, the limit is 99\.9 %: --fail-on load_balance<0\.999",
        missed[0].sentence,
    )
    assert reports.check_bars(uneven, ["run_time>1ns", "run_time > 5 s"])[0].metric == "run_time"


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("load_balance", "METRIC OPERATOR NUMBER"),
        ("load_balance<", "METRIC OPERATOR NUMBER"),
        ("__import__('os')<1", "METRIC OPERATOR NUMBER"),
        ("load_balance<0.8; 1", "METRIC OPERATOR NUMBER"),
        ("balance<0.8", "known: communication_efficiency"),
        ("load_balance<8us", "no unit or %"),
        ("max_skew>8%", "ns, us, ms or s"),
        ("findings>8%", "no unit, not %"),
    ],
)
def test_bars_that_cannot_be_read(uneven: Report, expression: str, words: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(words)):
        reports.check_bars(uneven, [expression])


def test_every_known_metric_has_a_value(uneven: Report) -> None:
    for name in reports.metric_names():
        assert len(reports.check_bars(uneven, [f"{name}>=0"])) == 1


def test_a_bar_on_a_refused_number_is_an_error_not_a_pass() -> None:
    report = reports.build(simulate(Plant(is_aligned=False)))
    with pytest.raises(ClockError, match="no clock calibration"):
        reports.check_bars(report, ["load_balance<0.8"])
    assert reports.check_bars(report, ["rank_load_balance<0.1"]) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (duration(120), "120 ns"),
        (duration(48_200), "48.2 us"),
        (duration(3.1e6), "3.10 ms"),
        (duration(2.5e9), "2.50 s"),
        (duration(999.6), "1.00 us"),
        (duration(999_700), "1.00 ms"),
        (duration(99_960), "100 us"),
        (duration(9996), "10.0 us"),
        (duration(-1500), "-1.50 us"),
        (duration(-0.2), "0 ns"),
        (duration(2e12), "2000 s"),
        (difference(50, 100), "<= 100 ns"),
        (difference(-50, 100), "<= 100 ns"),
        (difference(150, 100), "150 ns"),
        (difference(0, 0), "0 ns"),
        (members("rank", [3]), "rank 3"),
        (members("rank", [7, 0, 1, 2, 4, 5, 6]), "ranks 0-2, 4-7"),
        (members("block", [3, 11, 19]), "blocks 3, 11, 19"),
        (members("block", range(0, 60, 2)), "blocks 0, 2, 4 ... 58"),
        (members("block", [1, 3, 9, 11, 30, 47], at_most=3), "blocks 1, 3, 9 and 3 more"),
        (members("block", range(5)), "blocks 0-4"),
        (listed(["a"]), "a"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (counted(1, "launch", "launches"), "1 launch"),
        (counted(20_480, "launch", "launches"), "20,480 launches"),
        (percent(0.614), "61 %"),
        (percent(0.004), "0.4 %"),
        (percent(0.0001), "< 0.1 %"),
        (percent(0), "0 %"),
        (signed_percent(1.144), "+114 %"),
        (signed_percent(-0.53), "-53 %"),
        (signed_percent(97.6), "98.6x"),
    ],
)
def test_wording(text: str, expected: str) -> None:
    assert text == expected


def crowd(num_ranks: int, late: int) -> Report:
    """Every rank waits 1 us for its neighbour, but for rank `late` 40 us. Events of that rank were dropped."""
    build = TraceBuilder('REGION(W, "wait", wait, peer:16)\nREGION(C, "copy", compute)', num_ranks)
    for rank in range(num_ranks):
        peer = (rank + 1) % num_ranks
        wait_ns = 40_000 if peer == late else 1000
        build.span(rank, "wait", 0, wait_ns, peer=peer)
        build.span(rank, "copy", 40_000, 500)
    whole = build.manifest()
    infos = [
        replace(info, counts=replace(info.counts, dropped=int(info.rank == late)))
        for info in whole.ranks
    ]
    manifest = replace(whole, ranks=tuple(infos))
    return reports.build(Trace.from_table(manifest, build.table()))


def test_one_rank_of_many_is_seen_in_every_form() -> None:
    report = crowd(300, late=217)
    figures = {figure.id: figure.svg for figure in all_figures(report)}
    assert "timeline" not in figures
    assert 'aria-label="For whom the blocks of every rank wait' in figures["ribbon"]
    assert max(map(len, figures.values())) < 400_000
    for name in ("blame", "blocks-work", "blocks-wait"):
        assert "5 together: the most of any" in figures[name]
    tips = re.findall(r"<title>([^<]*)</title>", figures["blame"])
    assert "rank 215-219, waited for 215-219: 40.0 us" in tips
    page, text = to_html(report), terminal_text(report)
    assert page.count("<td>217</td>") == 2
    assert page.count("64 of 300 ranks: ") == 2
    assert re.search(r"^ *217 ", text, re.M)
    assert "16 of 300 ranks: " in text


def test_a_matrix_of_few_ranks_is_shown_as_it_is(uneven: Report) -> None:
    (figure,) = [figure for figure in all_figures(uneven) if figure.id == "blame"]
    written = texts(figure.svg)
    assert [text for text in written if text.isdigit()] == [str(rank) for rank in range(8)] * 2
    assert written[0] == "waiting rank (rows), rank waited for (columns)"
    assert len([text for text in written if text.endswith("us")]) > 8


def warmed_up() -> TraceBuilder:
    """Four calls of two kernels on one rank. The first is ten times as long and idle for most of it."""
    build = TraceBuilder('REGION(C, "copy", compute)\nREGION(W, "wait", wait)', 1)
    for call in range(4):
        for kernel in range(2):
            launch, start = 2 * call + kernel, 100_000 * call + 10_000 * kernel
            build.launch(launch, ("first", "second")[kernel])
            build.span(0, "copy", start, 900, launch=launch)
            wait_ns = 9100 if call == 0 else 100
            build.span(0, "wait", start + 900, wait_ns, launch=launch)
    return build


def test_efficiencies_are_those_of_the_calls_that_findings_speak_of() -> None:
    report = reports.build(warmed_up().trace())
    assert report.warm_up == (0,)
    assert report.tables["efficiency"]["parallel_efficiency"].iloc[0] == pytest.approx(0.9)
    assert "90 %, without call 0, a warm-up" in terminal_text(report)
    assert "Without call 0, a warm-up." in to_html(report)
    assert len(reports.check_bars(report, ["parallel_efficiency<0.8"])) == 0
    rest = reports.build(warmed_up().trace().select(launches=(2, 3, 4, 5)))
    assert rest.warm_up == ()
    assert "warm-up" not in terminal_text(rest)


def test_every_kernel_has_a_line_of_its_calls() -> None:
    figures = {figure.id: figure.svg for figure in all_figures(reports.build(warmed_up().trace()))}
    assert {"first, us", "second, us"} <= set(texts(figures["launches"]))
    solid, dashed = (
        re.findall(f'class="{kind}" d="M([^"]*)"', figures["launches"])
        for kind in ("curve", "curve dashed")
    )
    assert len(solid) == len(dashed) == 2
    # The first call is at the top, the others are ten times shorter.
    heights = [float(point.split()[1]) for point in solid[1].split("L")]
    assert len(heights) == 4
    assert heights[0] < 30 + 84
    assert len(set(heights[1:])) == 1


@pytest.mark.parametrize(
    ("waits_ns", "ticks"),
    [
        ([150, 320], ["200 ns"]),
        ([50, 40_000], ["100 ns", "1 us", "10 us"]),
    ],
)
def test_the_distribution_of_waits_has_numbers_on_its_axis(
    waits_ns: list[int], ticks: list[str]
) -> None:
    build = TraceBuilder('REGION(W, "wait", wait)', 1)
    for block, wait_ns in enumerate(waits_ns):
        build.span(0, "wait", 0, wait_ns, block=block)
    figures = {figure.id: figure.svg for figure in all_figures(reports.build(build.trace()))}
    written = texts(figures["wait-distribution"])
    assert [text for text in written if text.endswith((" ns", " us"))] == ticks


def test_imbalance_and_time_in_no_region_look_alike_in_bar_and_timeline() -> None:
    """Rank 0: work, a gap, work. Rank 1 is done after the first tenth."""
    build = TraceBuilder(PAIR_REGIONS, 2)
    for start_ns in (0, 60_000):
        build.span(0, "send", start_ns, 40_000, peer=1, slot=0)
    build.span(1, "send", 0, 10_000, peer=0, slot=0)
    report = reports.build(build.trace())
    shares = {part.kind: part.share for part in report.parts}
    assert shares["none"] == pytest.approx(20 / 200)
    assert shares["idle"] == pytest.approx(90 / 200)
    mean = report.presence.groupby("rank")["share"].mean()
    assert mean.tolist() == pytest.approx([1.0, 0.1], abs=0.01)
    timeline = next(figure for figure in all_figures(report) if figure.id == "timeline").svg
    # One lane has a gap; both have imbalance as their ground.
    assert timeline.count('<path class="none"') == 1
    assert timeline.count('<rect class="idle"') == 2 + 1
