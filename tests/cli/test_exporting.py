"""Findings on the command line of `kprof export`, `kprof view` and `kprof report`."""

# Fixtures of conftest.py need no annotations here.
# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import json
import shlex
from urllib.parse import parse_qs, urlsplit

from kprof.analysis import Summary, find
from kprof.trace import Trace

SLICES = "SELECT count(*) FROM slice WHERE category = 'finding'"


def view(kprof, *arguments):
    return kprof("view", *arguments, "--no-open", "--port", 0, "--timeout", 0.1)


def link_of(result):
    """What follows the # of the announced address."""
    (line,) = [line for line in result.err.splitlines() if line.startswith("kprof: open ")]
    return parse_qs(urlsplit(line).fragment.partition("?")[2])


def test_export_draws_the_findings_unless_told_not_to(kprof, skewed, tmp_path, processor):
    drawn, plain = tmp_path / "drawn.pftrace", tmp_path / "plain.pftrace"
    assert kprof("export", skewed, "-o", drawn).code == 0
    assert kprof("export", skewed, "-o", plain, "--no-findings").code == 0
    assert processor(drawn).value(SLICES) > 0
    assert processor(plain).value(SLICES) == 0


def test_export_leaves_findings_out_of_what_takes_long(
    kprof, skewed, tmp_path, processor, monkeypatch
):
    monkeypatch.setattr("kprof_cli.exporting.MAX_EVENTS_TO_DRAW_FINDINGS", 100)
    file = tmp_path / "trace.pftrace"
    result = kprof("export", skewed, "-o", file)
    assert "--findings draws them anyway" in result.err
    assert processor(file).value(SLICES) == 0
    result = kprof("export", skewed, "-o", file, "-f", "--findings")
    assert "--findings" not in result.err
    assert processor(file).value(SLICES) > 0


def test_view_opens_on_a_finding_by_id_and_by_number(kprof, skewed):
    first = find(Summary.of(Trace.open(skewed))).findings[0]
    by_id, by_number = (
        view(kprof, skewed, "--finding", first.id),
        view(kprof, skewed, "--finding", 1),
    )
    assert first.sentence in by_id.err
    link = link_of(by_id)
    assert link["visStart"] == link_of(by_number)["visStart"]
    rank, block = first.tracks[0]
    patterns = [command["args"][-1] for command in json.loads(link["startupCommands"][0])]
    assert f"^Rank {rank} block {block}$" in patterns


def test_view_of_a_finding_in_a_large_capture_shows_its_stretch_only(kprof, skewed, monkeypatch):
    monkeypatch.setattr("kprof.report.opening.MAX_SLICES", 100)
    seen = {}

    def keep(file, **options):
        seen["size_bytes"] = file.stat().st_size
        seen["link"] = options["deep_link"]

    monkeypatch.setattr("kprof.export.viewer.serve", keep)
    assert kprof("view", skewed, "--finding", 1).code == 0
    narrow = dict(seen)
    monkeypatch.setattr("kprof.report.opening.MAX_SLICES", 2_000_000)
    assert kprof("view", skewed, "--finding", 1).code == 0
    assert narrow["size_bytes"] < 0.7 * seen["size_bytes"]
    length = narrow["link"].to_ns - narrow["link"].from_ns
    # The whole file has room around the slice, which the UI puts into the middle.
    assert 0.4 < length / (seen["link"].to_ns - seen["link"].from_ns) <= 1


def test_view_opens_on_the_first_finding_with_a_slice_selected(kprof, skewed):
    """Without a number it may be the end of an arrow; with one it is a slice of the finding's own."""
    link = link_of(view(kprof, skewed))
    first = link_of(view(kprof, skewed, "--finding", 1))
    assert {"visStart", "visEnd", "ts", "dur", "startupCommands"} <= set(link)
    own = ("url", "ts", "dur", "visStart", "visEnd")
    assert set(link) == set(first)
    assert [link[key] for key in link if key not in own] == [
        first[key] for key in link if key not in own
    ]


def test_view_without_findings_opens_on_the_busiest_call(kprof, skewed):
    link = link_of(view(kprof, skewed, "--no-findings"))
    commands = json.loads(link["startupCommands"][0])
    assert [command["id"].rpartition(".")[2] for command in commands] == [
        "ExpandTracksByRegex",
        "PinTracksByRegex",
        "PinTracksByRegex",
        "RunQueryAndShowTab",
    ]
    assert {"visStart", "ts"} <= set(link)


def test_view_names_the_findings_when_one_is_unknown(kprof, skewed):
    result = view(kprof, skewed, "--finding", "nonsense")
    assert result.code == 2
    assert "unknown finding 'nonsense'; known: " in result.error_line


def test_view_of_an_exported_file_has_no_findings_to_look_up(kprof, small, tmp_path):
    file = tmp_path / "trace.pftrace"
    kprof("export", small, "-o", file)
    assert "needs a capture" in view(kprof, file, "--finding", 1).error_line


def test_the_report_gives_commands_that_view_understands(kprof, skewed):
    result = kprof("report", skewed, "--launches", "0-1", "--json")
    commands = [finding["view"] for finding in json.loads(result.out)["findings"]]
    program, *arguments = shlex.split(next(command for command in commands if command))
    assert program == "kprof"
    assert arguments[:3] == ["view", str(skewed), "--launches=0-1"]
    assert "visStart" in link_of(kprof(*arguments, "--no-open", "--port", 0, "--timeout", 0.1))


def test_the_page_holds_the_trace_unless_told_not_to(kprof, skewed, tmp_path):
    with_trace, without = tmp_path / "with.html", tmp_path / "without.html"
    assert kprof("report", skewed, "-o", with_trace).code == 0
    assert kprof("report", skewed, "-o", without, "--no-trace").code == 0
    assert "data-finding=" in with_trace.read_text()
    assert "data-finding=" not in without.read_text()
    assert "--finding" in without.read_text()
