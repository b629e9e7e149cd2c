"""The commands that read a capture: what they print for people and for machines."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from msgspec.structs import replace

from kprof.capture.manifest import KernelResources
from sealing import editing_manifest
from synthetic import TraceBuilder, write_events

PAIR = {
    "a": 0, "b": 1, "offset_ns": -1200.0, "drift_ppm": 2.5, "bound_ns": 180.0, "rigorous_bound_ns": 600.0,
    "num_rounds": 1, "num_calibrations": 1, "method": "test",
}  # fmt: skip


def test_info_shows_ranks_clock_and_kernels(kprof, small):
    result = kprof("info", small)
    assert result.code == 0
    for part in (
        "2 recorded of 2",
        "all on that of rank 0, any two within 10 ns",
        "device 1",
        "kernel",
    ):
        assert part in result.out


def test_info_of_very_many_kernels_is_short(kprof, tmp_path):
    """Each kernel's launches were looked for among all, which took minutes, and printed."""
    build = TraceBuilder('REGION(A, "a", compute)', 2)
    for number in range(3000):
        build.launch(number, f"k{number // 2}", num_blocks=number + 1)
    build.span(0, "a", 1, 1)
    manifest = build.manifest()
    once = replace(manifest.ranks[1], launches=manifest.ranks[1].launches[:1])
    manifest = replace(manifest, ranks=(manifest.ranks[0], once))
    run = write_events(manifest, build.table(), tmp_path / "run.kprof").path
    out = kprof("info", run).out
    assert re.search(r"k0 +1-2 per rank +1-2 ", out)
    assert re.search(r"k1 +0-2 per rank +3-4 ", out)
    assert "k199 " in out
    assert "k200 " not in out
    assert "... 1,300 more kernels; kprof info --json names all" in out


def test_info_says_what_kernels_take_where_that_is_known(kprof, tmp_path):
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.launch(1, "other")
    manifest = build.manifest()
    kernels = tuple(KernelResources("kernel", each, 12, 4096) for each in (96, 64))
    known = replace(manifest, ranks=(replace(manifest.ranks[0], kernels=kernels),))
    run = write_events(known, build.table(), tmp_path / "known.kprof").path
    out = kprof("info", run).out
    assert re.search(r"threads per block +registers +spills, bytes +shared, bytes", out)
    assert re.search(r"kernel .* 64-96 +12 +4096", out)
    assert re.search(r"other +1 +0 +0 *$", out, re.MULTILINE)
    run = write_events(manifest, build.table(), tmp_path / "unknown.kprof").path
    assert "registers" not in kprof("info", run).out


@pytest.mark.parametrize(("duration_s", "said"), [(0.0, "kprof synthetic\n"), (8.04, ", 8.0 s\n")])
def test_info_has_no_duration_where_nobody_knows_it(kprof, tmp_path, duration_s, said):
    build = TraceBuilder("", 1)
    manifest = replace(build.manifest(), duration_s=duration_s)
    run = write_events(manifest, build.table(), tmp_path / "run.kprof").path
    line = next(line for line in kprof("info", run).out.splitlines(True) if "recorded" in line)
    assert line.endswith(said)


def test_info_as_json_is_the_manifest(kprof, small):
    info = json.loads(kprof("info", small, "--json").out)
    assert info["path"] == str(small)
    assert info["size_bytes"] > 0
    assert [rank["counts"]["recorded"] for rank in info["ranks"]] == [2, 4]
    assert info["alignment"]["ranks"][1]["bound_ns"] == 10.0
    assert info["losses"] == []


def test_info_checks_causality(kprof, small):
    assert (
        "2 checked, 0 waits ended before their send began; every send and wait has a partner"
        in kprof("info", small).out
    )
    assert json.loads(kprof("info", small, "--json").out)["causality"] == {
        "flows": 2,
        "violations": 0,
        "violations_beyond_bound": 0,
        "unmatched_sends": 0,
        "unmatched_waits": 0,
    }


def test_info_counts_sends_and_waits_without_a_partner(kprof, small):
    """Rank 1, which waits for what rank 0 sends, is missing."""
    with editing_manifest(small) as manifest:
        manifest.update(ranks=manifest["ranks"][:1], missing_ranks=[1])
    causality = json.loads(kprof("info", small, "--json").out)["causality"]
    assert causality["unmatched_sends"] + causality["unmatched_waits"] > 0
    assert "have no partner" in kprof("info", small).out


def test_info_counts_waits_that_ended_too_early_and_says_by_how_much(kprof, small):
    """Rank 1's clock is moved back by 5 us, far beyond the bound, and by less than the bound."""
    for offset_ns, beyond in ((-5000.0, 2), (-5.0, 0)):
        with editing_manifest(small) as manifest:
            _shift(manifest, offset_ns)
        causality = json.loads(kprof("info", small, "--json").out)["causality"]
        assert causality["violations_beyond_bound"] == beyond
    with editing_manifest(small) as manifest:
        _shift(manifest, -5000.0)
    out = kprof("info", small).out
    assert "2 waits ended before their send began, 2 of them by more than" in out


def test_info_refuses_causality_without_calibration(kprof, small):
    with editing_manifest(small) as manifest:
        manifest.update(alignment=None, alignment_note="nobody did")
    said = "not checked: late sender needs the ranks on one clock, and they are not: nobody did"
    assert said in kprof("info", small).out


def test_info_shows_every_pair_of_clocks(kprof, small):
    pair = PAIR | {"num_rounds": 4000, "num_calibrations": 3, "method": "test ping-pong"}
    pair |= {"round_trip_ns": 1170.0, "residue_ns": 20.0}
    with editing_manifest(small) as manifest:
        manifest["alignment"] |= {"pairs": [pair], "notes": ["a word of caution"]}
    out = kprof("info", small).out
    row = next(line for line in out.splitlines() if line.strip().startswith("0 - 1"))
    assert " ".join(row.split()) == (
        "0 - 1 -1.20 us +2.500 ppm 180 ns triangles 600 ns 1.17 us 20 ns 4,000 3 test ping-pong"
    )
    assert "a word of caution" in out
    assert "within 180 ns" in out


def test_info_shows_what_other_paths_say_of_two_clocks(kprof, small):
    pair = PAIR | {"bound_ns": 95.0, "rigorous_bound_ns": 520.0}
    pair |= {"others_ns": {"common view": 31.0, "two ways": -12.4}}
    with editing_manifest(small) as manifest:
        manifest["alignment"] |= {"pairs": [pair]}
    out = kprof("info", small).out
    corner = "0 - 1 through their host, beside the ping-pong: common view +31 ns, two ways -12 ns; "
    assert f"{corner}the farthest is 31 ns off, and the bound is that with the noise and the" in out
    assert "other paths" in out
    with editing_manifest(small) as manifest:
        manifest["alignment"]["pairs"][0]["bound_ns"] = 520.0
    said = "the farthest is 31 ns off, and the bound is half a round trip"
    assert said in kprof("info", small).out


def test_info_gives_a_rank_the_offset_that_its_pair_has(kprof, small):
    with editing_manifest(small) as manifest:
        manifest["world_size"] = 101
        pairs = [PAIR | {"b": b, "drift_ppm": -0.0001} for b in range(1, 101)]
        pairs[70]["bound_ns"] = 900.0
        manifest["alignment"]["pairs"] = pairs
        _shift(manifest, 1200.0)
    out = kprof("info", small).out
    rows = {" ".join(line.split()[:3]): line for line in out.splitlines() if line.strip()}
    assert "-1.20 us" in next(row for row in out.splitlines() if "device 1" in row)
    assert "-1.20 us +0.000 ppm" in " ".join(rows["0 - 1"].split())
    # The widest bounds are shown, and how many others there are is said.
    assert "0 - 71" in rows
    assert "0 - 99" not in rows
    assert "... 45 more pairs" in out


def _shift(manifest, offset_ns):
    manifest["alignment"]["ranks"][1]["segments"][0]["offset_ns"] = offset_ns


def test_regions_that_end_when_memory_has_arrived_are_named(kprof, small):
    sql = "SELECT name FROM regions WHERE moment = 'complete'"
    assert "wait for memory at their end" not in kprof("info", small).out
    assert "dispatch/send" not in kprof("query", small, sql).out
    with editing_manifest(small) as manifest:
        for info in manifest["ranks"]:
            for region in info["regions"]["regions"]:
                if region["name"] == "dispatch/send":
                    region["moment"] = "complete"
    assert "these regions wait for memory at their end: dispatch/send\n" in kprof("info", small).out
    assert "dispatch/send" in kprof("query", small, sql).out


def test_what_was_left_out_on_purpose_is_said(kprof, small):
    assert "chosen by" not in kprof("info", small).out
    assert kprof("stats", small).err == ""
    with editing_manifest(small) as manifest:
        for info in manifest["ranks"]:
            info |= {"recorded_launches": "--skip 5, a schedule", "recorded_part": "--sample 1/4"}
    line = "\npart     chosen by --skip 5, a schedule, --sample 1/4\n"
    assert line in kprof("info", small).out
    for command in ("stats", "waits"):
        text = "kprof: Only part of each launch was recorded (--sample 1/4): "
        assert kprof(command, small).err.startswith(text)
        assert kprof(command, small, "--blocks", 0).err == ""


def test_columns_for_people_say_what_they_are(kprof, small, monkeypatch):
    """Waits are no work events, and a block's share is of its own time."""
    monkeypatch.setenv("COLUMNS", "200")
    (row, *_) = json.loads(kprof("stats", small, "--by", "rank", "--json").out)["rows"]
    assert row["ns_per_event"] == row["work_ns"] / row["work_events"]
    result = kprof("stats", small, "--by", "rank")
    header, *_ = filter(None, result.out.splitlines())
    assert {"work_events", "ns_per_event"} <= set(header.split())
    assert "ns_per_event is work over work_events" in result.err
    (row, *_) = json.loads(kprof("waits", small, "--by", "block", "--json").out)["rows"]
    assert row["share_of_block"] > row["share"]
    header, _, first, *_ = filter(None, kprof("waits", small, "--by", "block").out.splitlines())
    assert header.split()[-1] == "share_of_block"
    assert first.split()[-2:] == [f"{100 * row['share_of_block']:.0f}", "%"]


TABLES = {
    ("stats",): [{"region": "dispatch/send", "count": 2, "total_ns": 1000, "max_ns": 950}],
    ("stats", "--by", "rank"): [{"rank": 0, "work_events": 2}, {"rank": 1, "work_events": 2}],
    ("waits",): [{"rank": 1, "wait_ns": 1020}],
    ("waits", "--by", "peer"): [{"peer": 0, "wait_ns": 1020}],
    ("waits", "--by", "sender"): [{"src": 0, "dst": 1, "flows": 2}],
    # Each row is a rank that waits.
    ("waits", "--by", "matrix"): [
        {"rank": 0, "for_rank_0_ns": 0, "for_rank_1_ns": 0},
        {"rank": 1, "for_rank_0_ns": 1020, "for_rank_1_ns": 0},
    ],
}


@pytest.mark.parametrize("line", TABLES)
def test_sums_are_those_of_the_capture(kprof, small, line):
    rows = json.loads(kprof(line[0], small, *line[1:], "--json").out)["rows"]
    key = next(iter(TABLES[line][0]))
    by_key = {row[key]: row for row in rows}
    for expected in TABLES[line]:
        assert expected.items() <= by_key[expected[key]].items()
    assert line[2:] == () or len(rows) == len(TABLES[line])


def test_times_for_people_have_units(kprof, small):
    out = kprof("waits", small).out
    assert "wait " in out
    assert "1.02 us" in out


def test_shares_for_people_are_percent_and_for_machines_numbers(kprof, small):
    share = json.loads(kprof("stats", small, "--json").out)["rows"][0]["share"]
    assert 0 < share < 1
    assert f"{100 * share:.0f} %" in kprof("stats", small).out.splitlines()[3]


@pytest.mark.parametrize("command", ["stats", "waits", "info", "report"])
def test_a_narrow_terminal_cuts_no_cell(kprof, small, monkeypatch, command):
    wide = kprof(command, small).out
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    narrow = re.sub(r"\x1b\[[0-9;]*m", "", kprof(command, small).out)
    assert "…" not in narrow
    # Long words of sentences go over several lines, cells of tables do not.
    assert ("Parallel efficiency" in wide) == (command == "report")
    if command in ("info", "report"):
        assert {word for word in wide.split() if len(word) < 16} <= set(narrow.split())
    else:
        cells = narrow.partition("not shown for")[0].split()
        assert set(cells) <= {*wide.split(), *(word for word in cells if set(word) == {"─"})}


def test_a_matrix_for_people_has_one_unit(kprof, small):
    out = kprof("waits", small, "--by", "matrix").out
    assert "for_rank_0, ns" in out
    assert "1,020.00" in out


def test_selection_narrows_every_reader(kprof, small):
    chosen = ("--regions", "dispatch/*", "--blocks", "1", "--ranks", "1", "--json")
    rows = json.loads(kprof("stats", small, *chosen).out)["rows"]
    assert [row["count"] for row in rows] == [1]
    assert len(json.loads(kprof("waits", small, *chosen).out)["rows"]) == 1
    rows = json.loads(kprof("query", small, "SELECT * FROM events", *chosen).out)["rows"]
    assert [row["region"] for row in rows] == ["dispatch/wait-token"]
    report = json.loads(kprof("report", small, *chosen).out)
    assert report


@pytest.mark.parametrize("recorded", [(0,), ()])
def test_ranks_without_events_say_why(kprof, tmp_path, recorded):
    build, run = TraceBuilder('REGION(R, "r", compute)', 2), tmp_path / "run.kprof"
    for rank in recorded:
        build.span(rank, "r", 0, 9)
    manifest = build.manifest()
    why = {rank: f"rank {rank} is not among the ranks to record" for rank in (0, 1)}
    infos = [
        info if info.rank in recorded else replace(info, launches=(), notes=(why[info.rank],))
        for info in manifest.ranks
    ]
    write_events(replace(manifest, ranks=tuple(infos)), build.table(), run)
    if recorded:
        refused = kprof("report", run, "--ranks", "1").error_line
        assert refused == f"kprof: --ranks 1 leaves no events: {why[1]}"
    else:
        exported = kprof("export", run, "-o", tmp_path / "run.pftrace")
        assert exported.err == f"kprof: {run} holds no events: {why[0]}; {why[1]}\n"
        said = f"The capture holds no events: {why[0]}; {why[1]}."
        assert said in " ".join(kprof("report", run).out.split())


def test_a_time_selection_keeps_what_overlaps(kprof, small):
    rows = json.loads(
        kprof("query", small, "SELECT region FROM events", "--time", "1us..", "--json").out
    )["rows"]
    assert sorted(row["region"] for row in rows) == [
        "<script>alert(1)</script>",
        "<script>alert(1)</script>",
    ]


def test_query_as_csv_can_be_read_back(kprof, small):
    out = kprof(
        "query", small, "SELECT block, count(*) AS n FROM events GROUP BY 1 ORDER BY 1", "--csv"
    ).out
    assert list(csv.DictReader(io.StringIO(out))) == [
        {"block": "0", "n": "3"},
        {"block": "1", "n": "3"},
    ]


def test_query_prints_a_bounded_table_and_says_so(kprof, small):
    result = kprof("query", small, "SELECT range AS i FROM range(70)", "--limit", "20")
    assert "50 more rows; --limit 0 prints all" in result.out
    assert "more rows" not in kprof("query", small, "SELECT range FROM range(70)", "--limit", 0).out


def test_query_says_that_times_of_ranks_cannot_be_compared(kprof, small):
    aligned = kprof("query", small, "SELECT send_start_ns, wait_start_ns FROM flows")
    assert aligned.err == ""
    with editing_manifest(small) as manifest:
        manifest.update(alignment=None, alignment_note="nobody did")
    result = kprof("query", small, "SELECT send_start_ns, wait_start_ns FROM flows", "--json")
    assert result.code == 0
    assert json.loads(result.out)
    assert "not on one clock (nobody did): times of different ranks" in result.err


def test_query_with_two_columns_of_one_name(kprof, small):
    assert "1" in kprof("query", small, "SELECT 1 AS a, 2 AS a").out


def test_json_of_numbers_that_json_does_not_know(kprof, small):
    query = "SELECT 'nan'::DOUBLE AS a, 1::HUGEINT AS b, 1.5::DECIMAL(4, 2) AS c, NULL AS d, "
    query += "sum(duration_ns) AS e FROM events"
    (row,) = json.loads(kprof("query", small, query, "--json").out)["rows"]
    assert row == {"a": None, "b": 1, "c": 1.5, "d": None, "e": 2040}
    assert isinstance(row["e"], int)


def test_report_as_a_page(kprof, small, tmp_path):
    page = tmp_path / "report.html"
    page.write_text("mine")
    refused = kprof("report", small, "-o", page)
    assert refused.code == 1
    assert "--force" in refused.error_line
    assert page.read_text() == "mine"
    result = kprof("report", small, "-o", page, "-f")
    assert (result.code, result.out) == (0, "")
    assert f"wrote {page}" in result.err
    assert "<script>alert(1)</script>" not in page.read_text()


@pytest.mark.parametrize(("bar", "code"), [("load_balance<2", 3), ("load_balance<0", 0)])
def test_fail_on_exits_with_3_when_the_bar_is_missed(kprof, small, bar, code):
    result = kprof("report", small, "--json", "--fail-on", bar)
    assert result.code == code
    assert ("load_balance is" in result.err) == (code == 3)
    json.loads(result.out)


@pytest.mark.parametrize(
    ("line", "bar", "said"),
    [
        (["report", "none.kprof"], "foo<1", "unknown metric 'foo'"),
        (["report", "none.kprof"], "__import__('os')", "METRIC OPERATOR NUMBER"),
        (["diff", "none.kprof", "none.kprof"], "nonsense", "nonsense"),
    ],
)
def test_a_bar_that_is_none_is_refused_before_the_run_is_read(kprof, line, bar, said):
    result = kprof(*line, "--fail-on", bar)
    assert result.code == 2
    assert said in result.error_line


def test_doctor_knows_every_target_and_extra(kprof):
    checks = {check["name"]: check for check in json.loads(kprof("doctor", "--json").out)["rows"]}
    assert {"target cpu", "target cuda", "target hip", "torch", "viztracer"} <= set(checks)
    assert {"triton", "distributed"} <= set(checks)
    assert checks["target cpu"]["is_ok"]
    assert all(check["is_ok"] or check["remedy"] for check in checks.values())
    assert "target cuda" in kprof("doctor").out


@pytest.mark.parametrize("suffix", [".pftrace", ".json", ".json.gz"])
def test_export_says_what_it_wrote(kprof, small, tmp_path, suffix):
    file = tmp_path / f"trace{suffix}"
    result = kprof("export", small, "-o", file)
    assert result.code == 0
    assert f"{file}: 6 slices, 2 flows" in result.out
    assert f"next: kprof view {file}" in result.out
    assert file.stat().st_size > 0


def test_export_as_json_names_the_numbers(kprof, small, tmp_path):
    file = tmp_path / "trace.pftrace"
    summary = json.loads(kprof("export", small, "-o", file, "--ranks", "1", "--json").out)
    assert summary["path"] == str(file)
    assert summary["num_slices"] == 4
    assert summary["size_bytes"] == file.stat().st_size


def test_export_says_what_it_cut(kprof, skewed, tmp_path):
    result = kprof("export", skewed, "-o", tmp_path / "trace.pftrace", "--max-slices", "200")
    assert result.code == 0
    assert result.err.startswith("kprof: ")


def test_export_needs_force_for_an_output_that_exists(kprof, small, tmp_path):
    file = tmp_path / "trace.pftrace"
    file.write_text("mine")
    assert "--force" in kprof("export", small, "-o", file).error_line
    assert file.read_text() == "mine"
    assert kprof("export", small, "-o", file, "-f").code == 0


def test_view_shows_an_exported_trace_too(kprof, small, tmp_path):
    file = tmp_path / "trace.pftrace"
    kprof("export", small, "-o", file)
    result = kprof("view", file, "--local", "--no-open", "--port", 0, "--timeout", 0.1)
    assert result.code == 0
    assert "127.0.0.1" in result.err


def test_explain_says_what_would_make_the_run_shorter(kprof, small):
    result = kprof("explain", small)
    assert result.code == 0
    parsed = json.loads(kprof("explain", small, "--json").out)
    assert parsed["num_calls"] >= len(parsed["calls"])
    assert parsed["rest"]["sentence"] in result.out
    for finding in parsed["findings"]:
        assert finding["gain_ns"] > 0
        assert finding["sentence"]
