"""The report of a comparison: what became slower or faster, in a terminal, as JSON and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kprof import analysis
from kprof.analysis.comparison import CALL, LAUNCH, diff_summaries
from kprof.analysis.equivalence import MARGIN_SHARE, Measure
from kprof.analysis.findings.facts import has_changed
from kprof.analysis.findings.longer_path import PathPart
from kprof.analysis.summary import Summary
from kprof.analysis.timeline import activity, focus, presence
from kprof.analysis.wording import counted, duration, listed, percent, ratio, signed_percent
from kprof.on_use import pd
from kprof.report.blocks import (
    Block,
    Cell,
    Column,
    Depth,
    Diagram,
    Headline,
    Paragraph,
    Section,
    Table,
    Tone,
)
from kprof.report.changes import Change, causes_of, changes_of, parts_of
from kprof.report.figures.over_time import Lanes
from kprof.report.figures.two_sides import MOST_RANKS, region_changes, two_timelines
from kprof.report.machine import plain, table_rows
from kprof.report.markdown import markdown_of
from kprof.report.page import page_of, write_page
from kprof.report.terminal import render_blocks

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kprof.report.figures.base import Figure
    from kprof.trace import Trace

DIFF_SCHEMA_VERSION: Final = 2
BUCKETS: Final = ("slower", "faster", "added", "removed", "unclear", "same")


@dataclass(frozen=True)
class DiffReport:
    """The table of `kprof.analysis.diff`, its summary in one sentence, and why: the places that
    changed and the parts of the critical path, also in sentences. `first` is the first run of each
    side."""

    base: tuple[str, ...]
    candidate: tuple[str, ...]
    verdict: str
    causes: tuple[str, ...]
    table: pd.DataFrame
    changes: tuple[Change, ...] = ()
    parts: tuple[PathPart, ...] = ()
    first: tuple[Summary, ...] = ()

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """A call of each side, and the regions; drawn when a page shows them."""
        return _figures(self.first, self.table, self.changes)

    @property
    def counts(self) -> dict[str, int]:
        """The number of rows with each verdict."""
        return {bucket: int((self.table["verdict"] == bucket).sum()) for bucket in BUCKETS}


def build_diff(base: Sequence[Trace], candidate: Sequence[Trace]) -> DiffReport:
    """Compare two sides of one or more runs.

    Raises SelectionError if one is empty, or if they have nothing in common.
    """
    sides = [[Summary.of(trace) for trace in side] for side in (base, candidate)]
    table = diff_summaries(*sides)
    # Of repeats the first is looked at.
    first = [side[0] for side in sides]
    changes = changes_of(*first)
    lengths = table.loc[table["level"].isin([CALL, LAUNCH]), "verdict"]
    is_known = lengths.isin(["slower", "faster"]).any() or _are_few(table)
    parts = parts_of(changes, *first) if is_known else ()
    causes = causes_of(changes, parts, *sides)
    verdict = _verdict(table)
    if causes and _are_few(table):
        verdict += " The changes below hold for these calls, and may be chance."
    names = _names(base), _names(candidate)
    return DiffReport(*names, verdict, causes, table, changes, parts, tuple(first))


def _figures(
    runs: Sequence[Summary], table: pd.DataFrame, changes: Sequence[Change]
) -> tuple[Figure, ...]:
    sides = []
    for summary in runs:
        over = focus(summary)
        sides.append(Lanes(over, activity(summary, over), presence(summary, over)))
    named = [rank for change in changes for rank in change.finding.ranks]
    ranks = sorted(list(dict.fromkeys([*named, *sides[1].ranks]))[:MOST_RANKS])
    regions = [region for summary in runs for region in summary.trace.regions.regions]
    categories = {region.name: region.category.value for region in regions}
    drawn = two_timelines(sides, ranks), region_changes(table, categories)
    return tuple(figure for figure in drawn if figure is not None)


def _names(traces: Sequence[Trace]) -> tuple[str, ...]:
    return tuple(f"{' '.join(t.manifest.command)} ({t.manifest.created_utc})" for t in traces)


def _verdict(table: pd.DataFrame) -> str:
    """What changed in calls and launches, then the region that changed most."""
    changed = table[table["verdict"].isin(["slower", "faster"])]
    if changed.empty:
        return _nothing_changed(table)
    sentences = []
    for level, at_most in ((CALL, 1), (LAUNCH, 2)):
        rows = changed[changed["level"] == level]
        for kernel in list(dict.fromkeys(rows["kernel"]))[:at_most]:
            of_kernel = rows[rows["kernel"] == kernel].set_index("measure").to_dict("index")
            sentences.append(_of_lengths(of_kernel))
    sentences = sentences or ["No launch became slower or faster as a whole"]
    regions = changed[~changed["level"].isin([CALL, LAUNCH])]
    if len(regions):
        row = regions.to_dict("records")[0]
        sentences.append(", with ".join(filter(None, (_sentence(row), _work(row)))))
    return ". ".join(sentences) + "."


def _of_lengths(rows: dict[Any, dict[Any, Any]]) -> str:
    """The median where it changed.

    Otherwise another measure that changed, which is about some of the calls only.
    """
    if "median" in rows:
        return _sentence(rows["median"])
    parts = []
    if "mean" in rows:
        parts.append(f"{_sentence(rows['mean'])} in the mean")
    elif "p95" in rows:
        parts.append(f"{_sentence(rows['p95'])} in the slowest 5 %")
    if "slow share" in rows:
        row = rows["slow share"]
        slow = "slow calls" if row["level"] == CALL else "slow launches"
        of = "" if parts else f" of {row['kernel'] or 'the kernel'}"
        shares = f"{percent(row['base_ns'])} to {percent(row['candidate_ns'])}"
        parts.append(f"{slow}{of} went from {shares}")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def _nothing_changed(table: pd.DataFrame) -> str:
    """No change, or why there is no answer."""
    both = table[~table["verdict"].isin(["added", "removed"])]
    lengths = both[both["level"].isin([CALL, LAUNCH])]
    unclear = lengths[lengths["verdict"] == "unclear"]
    gone, come = _names_of(table, "removed"), _names_of(table, "added")
    if table.empty:
        return "Nothing to compare: no span has ended on either side."
    if _is_same_data(table):
        return _same_data(table)
    if both.empty:
        return f"The sides have nothing in common to compare: {come} in place of {gone}."
    others = [f"only the base has {gone}"] if gone else []
    others += [f"only the candidate has {come}"] if come else []
    if _are_few(table):
        base, candidate = unclear[["base_launches", "candidate_launches"]].min()
        first = (
            f"{_medians(unclear)}, but {counted(int(base), 'call', 'calls')} against "
            f"{int(candidate)} cannot tell that from chance: it takes {analysis.MIN_LAUNCHES} a "
            "side, not counting a slow first one (record more calls, or give several captures a "
            "side: --base, --cand)"
        )
        return ". ".join([first, *(other[0].upper() + other[1:] for other in others)]) + "."
    typical = unclear[unclear["measure"].isin(["mean", "median"])]
    if len(typical):
        return _too_uncertain(typical.to_dict("records")[0], lengths)
    first = f"No change: launches are as long as before, within {percent(MARGIN_SHARE)}"
    return "; ".join([first, *others]) + "."


def _are_few(table: pd.DataFrame) -> bool:
    """Whether there are too few calls for an interval of their length."""
    lengths = table[table["level"].isin([CALL, LAUNCH]) & (table["verdict"] == "unclear")]
    return bool(lengths["low_ns"].isna().any())


def _is_same_data(table: pd.DataFrame) -> bool:
    """Whether both sides are equal in every sample: differences that are known to be 0."""
    return bool((table["low_ns"] == 0).all() and (table["high_ns"] == 0).all())


def _same_data(table: pd.DataFrame) -> str:
    text = "No change: every launch and region took exactly as long on both sides"
    count = int(table["base_launches"].min())
    if count >= analysis.MIN_LAUNCHES:
        return f"{text}."
    calls = counted(count, "call", "calls")
    return (
        f"{text}; {calls} a side would be too few to tell two recordings apart: that takes "
        f"{analysis.MIN_LAUNCHES}."
    )


def _too_uncertain(row: dict[Any, Any], lengths: pd.DataFrame) -> str:
    low, high = (f"{100 * row[name] / row['base_ns']:+.1f} %" for name in ("low_ns", "high_ns"))
    return (
        f"{_medians(lengths)}, which is unclear: the {row['measure']} may have changed by {low} to "
        f"{high}; to call it the same takes {percent(MARGIN_SHARE)} or less: record more calls."
    )


def _medians(lengths: pd.DataFrame) -> str:
    """A call went from 18.1 us to 38.8 us, +114 %; of launches, the one that changed most."""
    rows = lengths[lengths["measure"] == "median"].to_dict("records")
    return _sentence(max(rows, key=lambda row: (row["level"] == CALL, abs(row["change_ns"]))))


def _names_of(table: pd.DataFrame, verdict: str) -> str:
    """Kernels, or else regions, that are on one side only."""
    rows = table[table["verdict"] == verdict]
    kernels = rows.loc[rows["level"] == LAUNCH, "kernel"]
    names = kernels if len(kernels) else rows["region"]
    return listed(list(dict.fromkeys(name or "the kernel" for name in names)))


def _sentence(row: dict[Any, Any]) -> str:
    what = f"Region {row['region']} in the {row['level']}"
    if row["level"] in (CALL, LAUNCH):
        what = "A call" if row["level"] == CALL else f"A launch of {row['kernel'] or 'the kernel'}"
    sides = f"{duration(row['base_ns'])} to {duration(row['candidate_ns'])}"
    return f"{what} went from {sides}, {signed_percent(row['change_share'])}"


def _work(row: dict[Any, Any]) -> str:
    """How much more or less a block had to do, where it changed: `4.0x the bytes`."""
    for unit in ("bytes", "spans"):
        before, now = row[f"base_{unit}"], row[f"candidate_{unit}"]
        # NaN where it is not counted, or on one side only.
        if before == before and now == now and has_changed(before, now):
            return f"{ratio(now / before)} the {unit}"
    return ""


def diff_to_json(report: DiffReport) -> bytes:
    """{schema_version, base: [run], candidate: [run], verdict, causes: [sentence], changes: [place
    that changed], parts: [part of the critical path that changed], counts: {bucket: rows},
    rows: [row of `analysis.diff`]}."""
    document = {
        "schema_version": DIFF_SCHEMA_VERSION,
        "base": report.base,
        "candidate": report.candidate,
        "verdict": report.verdict,
        "causes": list(report.causes),
        "changes": [change.row() for change in report.changes],
        "parts": [asdict(part) for part in report.parts],
        "counts": report.counts,
        "rows": table_rows(report.table),
    }
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=plain), indent=1)


def render_diff_terminal(report: DiffReport, *, all_rows: bool = False) -> RenderableType:
    """A rich renderable. Rows without a change are only counted, unless `all_rows`."""
    return render_blocks(blocks_of(report, without=() if all_rows else ("same",)))


def render_diff_markdown(report: DiffReport) -> str:
    """The verdict and the changes, calls and launches first, then the largest."""
    return markdown_of(blocks_of(report, without=_NO_CHANGE), "kprof diff")


def write_diff_html(report: DiffReport, path: Path, *, force: bool = False) -> Path:
    """Write the comparison as one offline page.

    Raises OutputExistsError unless `force`, and ExportError.
    """
    return write_page(page_of(blocks_of(report, has_figures=True), "kprof diff"), path, force=force)


def blocks_of(
    report: DiffReport, without: Sequence[str] = (), *, has_figures: bool = False
) -> tuple[Block, ...]:
    """The comparison as blocks, with the rows of the table whose verdict is not in `without`."""
    counts = ", ".join(f"{count} {bucket}" for bucket, count in report.counts.items() if count)
    answer: tuple[Block, ...] = (
        Headline(report.verdict),
        *(Paragraph(cause, depth=Depth.SUMMARY) for cause in report.causes),
        Paragraph(counts, tone=Tone.FINE),
    )
    sides = (("Base:", report.base), ("Candidate:", report.candidate))
    runs = tuple(Paragraph("; ".join(names), lead, depth=Depth.PAGE) for lead, names in sides)
    rows = [row for row in report.table.to_dict("records") if row["verdict"] not in without]
    table: list[Block] = [Paragraph(_ABOUT, tone=Tone.FINE, depth=Depth.PAGE)]
    if rows:
        table.append(Table(_COLUMNS, tuple(map(_in_words, rows)), depth=Depth.SUMMARY))
    pictures = tuple(
        Section(f"in-{drawn.id}", name, (Diagram(drawn, depth=Depth.PAGE),), about, is_open=True)
        for drawn in (report.figures if has_figures else ())
        for name, about in [_PICTURES[drawn.id]]
    )
    return (
        Section("answer", "", answer, is_open=True),
        *pictures,
        Section("sides", "Sides", runs, is_open=True),
        Section("rows", "Regions and launches", tuple(table), is_open=True),
    )


_PICTURES: Final = {
    "two-timelines": (
        "A call of each side",
        f"The call of median length; share of a rank's tracks per category. At most {MOST_RANKS} "
        "ranks: those that changes name, then the first.",
    ),
    "region-changes": (
        "What changed",
        "Medians. Of a region, a block's time in a launch: the mean of all blocks or the slowest "
        "one, whichever changed more.",
    ),
}
_NO_CHANGE: Final = ("same", "added", "removed", "unclear")
_ABOUT: Final = (
    "Slower or faster: the 95 % interval of the difference excludes 0, and the difference exceeds "
    "the noise. The same: a test shows that they differ by less than 5 % of the base (slow share: "
    "10 points). Otherwise unclear. A slow launch takes 1.5 times the median of the base. For a "
    "region, the time is that of a block in a launch: the mean of all blocks that have it, and the "
    "slowest one. With: how many times the bytes the block had there, or the spans where no bytes "
    "are counted or their number is the same."
)
_COLUMNS: Final = (
    Column("", is_text=True, depth=Depth.SUMMARY),
    Column("kernel", is_text=True, depth=Depth.SUMMARY),
    Column("region", is_text=True, depth=Depth.SUMMARY),
    Column("level", is_text=True),
    Column("measure", is_text=True, depth=Depth.SUMMARY),
    *(Column(name, depth=Depth.SUMMARY) for name in ("base", "candidate", "change", "")),
    Column("95 % interval"),
    Column("with"),
)


def _in_words(row: dict[Any, Any]) -> tuple[str | Cell, ...]:
    is_share = row["measure"] == Measure.SLOW.value

    def value(number: float, sign: str = "") -> str:
        if number != number:
            return "-"
        text = percent(abs(number)) if is_share else duration(abs(number))
        return (sign if number > 0 else "") + ("-" if number < 0 else "") + text

    low, high = row["low_ns"], row["high_ns"]
    share = row["change_share"]
    return (
        Cell(row["verdict"], row["verdict"]),
        row["kernel"] or ("(all)" if row["level"] == CALL else ""),
        row["region"] or f"(whole {row['level']})",
        row["level"],
        row["measure"],
        value(row["base_ns"]),
        value(row["candidate_ns"]),
        value(row["change_ns"], "+"),
        "-" if share != share or is_share else f"{100 * share:+.1f} %",
        "-" if low != low else f"{value(low, '+')} .. {value(high, '+')}",
        _work(row),
    )
