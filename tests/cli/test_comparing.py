"""`kprof diff`: a planted change is found, and no change is called none."""

from __future__ import annotations

import json

import pytest

from kprof.analysis import Summary
from kprof.report import build_diff
from kprof.trace import Trace
from synthetic import TraceBuilder

REGIONS = 'REGION(R_COPY, "copy", compute)\n'


def write_run(path, duration_ns, num_launches=6):
    """One rank, two blocks, a copy per launch; lengths differ by a few ns, as they do in life."""
    build = TraceBuilder(REGIONS, 1)
    for i in range(num_launches):
        build.launch(i + 1, "all_reduce")
        for block in (0, 1):
            build.span(
                0, "copy", 100_000 * (i + 1), duration_ns + 7 * (i % 3), block=block, launch=i + 1
            )
    return build.write(path).path


@pytest.fixture
def base(tmp_path):
    return write_run(tmp_path / "base.kprof", 10_000)


@pytest.fixture
def slower(tmp_path):
    return write_run(tmp_path / "slower.kprof", 15_000)


def test_a_run_and_itself_do_not_differ(kprof, base):
    result = kprof("diff", base, base)
    assert result.code == 0
    assert "No change" in result.out
    assert "(whole launch)" not in result.out
    assert "(whole launch)" in kprof("diff", base, base, "--all").out


@pytest.mark.parametrize(
    ("order", "change"),
    [(1, "10.0 us to 15.0 us, +50 %"), (-1, "15.0 us to 10.0 us, -33 %")],
)
def test_a_change_has_a_direction(kprof, base, slower, order, change):
    result = kprof("diff", *(base, slower)[::order])
    assert f"A launch of all_reduce went from {change}" in result.out


def test_a_report_names_what_takes_longer_than_in_an_earlier_recording(kprof, base, slower):
    """Within the recording nothing does: all blocks of all calls are alike."""
    result = kprof("report", slower, "--against", base)
    assert (
        "copy of rank 0 takes 1.5x as long per block as before; undoing it would save" in result.out
    )
    assert "Within this recording, " in result.out
    assert "What to do: look at what was changed there" in result.out
    document = json.loads(kprof("report", slower, "--against", base, "--json").out)
    (row,) = document["grown"]
    assert (row["way"], row["region"], document["verdict"]) == ("slower", "copy", row["sentence"])
    assert row["share"] == pytest.approx(1 / 3, abs=0.01)
    assert json.loads(kprof("report", slower, "--json").out)["grown"] is None


def test_a_report_says_that_nothing_takes_longer(kprof, base, slower):
    result = kprof("report", base, "--against", slower)
    assert "Nothing takes longer than in the earlier recording." in result.out
    assert json.loads(kprof("report", base, "--against", slower, "--json").out)["grown"] == []


def write_two_ranks(path, duration_ns, is_aligned=True, kernel="all_reduce"):
    """Rank 1 copies for longer than rank 0."""
    build = TraceBuilder(REGIONS, 2, is_aligned=is_aligned)
    for i in range(6):
        build.launch(i + 1, kernel)
        for rank in (0, 1):
            build.span(
                rank, "copy", 100_000 * (i + 1), duration_ns if rank else 10_000, launch=i + 1
            )
    return build.write(path).path


def test_what_is_a_finding_is_not_said_again(kprof, tmp_path):
    before = write_two_ranks(tmp_path / "before.kprof", 10_000)
    now = write_two_ranks(tmp_path / "now.kprof", 30_000)
    document = json.loads(kprof("report", now, "--against", before, "--json").out)
    (found,) = document["findings"]
    assert (found["ranks"], found["region"], document["grown"]) == ([1], "copy", [])


def test_an_earlier_recording_that_cannot_be_compared_is_refused(kprof, base, tmp_path):
    apart = write_two_ranks(tmp_path / "apart.kprof", 10_000, is_aligned=False)
    assert "a comparison with an earlier recording" in kprof("report", base, "--against", apart).err
    other = write_two_ranks(tmp_path / "other.kprof", 10_000, kernel="gemm")
    build = TraceBuilder(REGIONS, 1)
    build.span(0, "copy", 0, 10)
    one = build.write(tmp_path / "one.kprof").path
    assert "has no kernel of this one" in kprof("report", one, "--against", base).err
    assert kprof("report", base, "--against", other).code == 2
    assert "does not exist" in kprof("report", one, "--against", tmp_path / "none").err


def test_repeats_of_a_side_add_launches(kprof, base, slower, tmp_path):
    more = [write_run(tmp_path / f"more{i}.kprof", 10_000 + i) for i in (1, 2)]
    line = ["diff", base, slower, "--base", more[0], "--base", more[1], "--cand", slower, "--json"]
    report = json.loads(kprof(*line).out)
    alone = json.loads(kprof("diff", base, slower, "--json").out)
    assert (len(report["base"]), len(report["candidate"])) == (3, 2)
    assert report["rows"][0]["base_launches"] == 3 * alone["rows"][0]["base_launches"]
    assert report["rows"][0]["candidate_launches"] == 2 * alone["rows"][0]["candidate_launches"]


def test_each_recording_is_summarised_once(base, slower, monkeypatch):
    traces = [Trace.open(base), Trace.open(slower)]
    summarised = []
    of = Summary.of

    def counted(trace, *arguments):
        summarised.append(trace)
        return of(trace, *arguments)

    monkeypatch.setattr(Summary, "of", counted)
    assert build_diff(traces[:1], traces[1:]).changes
    assert [sum(one is trace for one in summarised) for trace in traces] == [1, 1]


def test_a_selection_applies_to_both_sides(kprof, base, slower):
    report = json.loads(kprof("diff", base, slower, "--launches", "1-2", "--json").out)
    assert {row["verdict"] for row in report["rows"]} == {"unclear"}


def test_the_page_is_written_once(kprof, base, slower, tmp_path):
    page = tmp_path / "diff.html"
    result = kprof("diff", base, slower, "-o", page)
    assert (result.code, result.out) == (0, "")
    assert "all_reduce" in page.read_text()
    assert "--force" in kprof("diff", base, slower, "-o", page).error_line
    assert kprof("diff", base, slower, "-o", page, "-f").code == 0
