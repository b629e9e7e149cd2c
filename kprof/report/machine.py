"""The report as JSON, for programs. docs/findings.md describes kinds and fields.

    {
      "schema_version": 3,                 grows when a field changes its meaning or goes away
      "capture": {command, created_utc, kprof_version, world_size, exit_code, missing_ranks,
                  num_events, num_launches, window_ns: [first, last], run_time_ns,
                  alignment: {method, reference_rank, num_rounds, bound_ns: {rank: ns}} | null,
                  alignment_note},
      "verdict": "one sentence", "advice": "what to do about it, or empty",
      "doubts": [{kind, sentence, remedy, takes_out: [kind], is_grave, ranks, evidence}],
      "findings": [{id, kind, sentence, details, advice, ranks, blocks, places: [[rank, block]],
                    links: [[from, to]], hosts: [name], rail: n | null,
                    host_links: [[from, to]], region, processors, position,
                    calls, costly_calls, when, period,
                    gain_ns, alone_ns, interval_ns: [low, high], share,
                    together: [n, share], factor,
                    waits: [{region, ranks, peers, wait_ns, share}], evidence: [row],
                    where_ns: [from, to] | null, tracks: [[rank, block]],
                    verified: {region, is_at_others, delays_ns, call_ns, promised_call_ns, shown,
                               low, high, promised_shown, verdict, ...} | null,
                    view: "command that opens the trace there" | null}],
      "grown": [row as in `changes` of `kprof diff`, slower than in the earlier recording] | null,
      "rest": {sentence, explained, useful, unexplained, made_of: [[region, share]],
               ingredients: [{region, share, gb_s, of_ceiling, rate, speed, advice}], limits, below,
               differences: [{region, is_gap, by, slow, best, factor, gain_ns, share, sentence}],
               refused: how many findings contradicted the recording, and are not shown},
      "calls": {"replayed": [ordinal], "of": n, "total_ns": ns},
      "refused": {table: "why it is null"},
      "quality": [{rank, host, device, recorded, dropped, open, saturated, clamped,
                   unknown_region, torn_chunks, left_out_calls}],
      "losses": [{rank, region, dropped, open, saturated, clamped, unknown_region}],
                  regions that lost anything
      "tables": {name: [row, ...] | null}  rows are objects; every metric of kprof.analysis
                  (all_metrics) by its name, columns as in its docstring; "efficiency" is without
                  the calls of the doubt "warm_up"
      "blame_matrix": {"rows": [waiting rank], "columns": [rank waited for],
                  "wait_ns": [[...], ...]}
    }

Times are nanoseconds, shares are 0 to 1, and a number that does not exist or is not known is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, Final

import msgspec
import pandas as pd

from kprof.analysis import Doubt, Finding, all_metrics
from kprof.analysis.findings import Rest
from kprof.report.model import Report

SCHEMA_VERSION: Final = 3


def to_json(report: Report) -> bytes:
    """The report in the schema of this module's docstring, UTF-8, indented by one space."""
    matrix = report.blame_matrix
    document = {
        "schema_version": SCHEMA_VERSION,
        "capture": _capture(report),
        "verdict": report.verdict,
        "advice": report.advice,
        "doubts": [doubt_row(doubt) for doubt in report.found.doubts],
        "findings": [
            finding_row(finding) | {"view": report.command_for(finding) or None}
            for finding in report.findings
        ],
        "grown": None if report.grown is None else [change.row() for change in report.grown],
        "rest": rest_row(report.found.rest),
        "calls": {
            "replayed": report.found.calls,
            "of": report.found.num_calls,
            "total_ns": report.found.total_ns,
        },
        "refused": {name: str(error) for name, error in report.refused.items()},
        "quality": quality_rows(report),
        "losses": loss_rows(report),
        "tables": {name: table_rows(report.tables.get(name)) for name in all_metrics()},
        "blame_matrix": {
            "rows": matrix.index.tolist(),
            "columns": matrix.columns.tolist(),
            "wait_ns": matrix.to_numpy().tolist(),
        },
    }
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=plain), indent=1)


def quality_rows(report: Report) -> list[dict[str, Any]]:
    """What was recorded and lost, a row per rank."""
    return [
        {"rank": info.rank, "host": info.host, "device": info.device}
        | msgspec.structs.asdict(info.counts)
        for info in report.manifest.ranks
    ]


def loss_rows(report: Report) -> list[dict[str, Any]]:
    """What was lost, a row per rank and region that lost anything."""
    return [
        {"rank": info.rank} | msgspec.structs.asdict(losses)
        for info in report.manifest.ranks
        for losses in info.losses
    ]


def _capture(report: Report) -> dict[str, object]:
    manifest = report.manifest
    aligned = manifest.alignment
    alignment = aligned and {
        "method": aligned.method,
        "reference_rank": aligned.reference_rank,
        "num_rounds": aligned.num_rounds,
        "bound_ns": {str(entry.rank): entry.bound_ns for entry in aligned.ranks},
    }
    of_run = ("command", "created_utc", "kprof_version", "world_size", "exit_code", "missing_ranks")
    of_report = ("num_events", "num_launches", "window_ns", "run_time_ns")
    return (
        _fields(manifest, of_run)
        | _fields(report, of_report)
        | {"alignment": alignment, "alignment_note": manifest.alignment_note}
    )


def doubt_row(doubt: Doubt) -> dict[str, object]:
    """The fields of a doubt."""
    names = ("kind", "sentence", "remedy", "takes_out", "is_grave", "ranks", "evidence")
    return _fields(doubt, names) | {"takes_out": sorted(doubt.takes_out)}


_OF_FINDING: Final = (
    *("id", "kind", "sentence", "details", "advice"),
    *("ranks", "blocks", "places", "links", "hosts", "rail", "host_links"),
    *("region", "processors", "position", "calls", "costly_calls", "when", "period"),
    *("gain_ns", "alone_ns", "interval_ns", "share", "together", "factor", "is_by_design"),
    *("waits", "evidence", "where_ns", "tracks"),
)
_TIMES_OF_FINDING: Final = ("gain_ns", "alone_ns", "interval_ns", "share")


def finding_row(finding: Finding) -> dict[str, object]:
    """The fields of a finding. Its gain is null if only counts are known."""
    plain_ones = {"kind": finding.kind.name, "when": finding.when.value}
    waits = [asdict(wait) for wait in finding.waits]
    tried = finding.verified and msgspec.to_builtins(finding.verified)
    row = _fields(finding, _OF_FINDING) | plain_ones | {"waits": waits, "verified": tried}
    return row if finding.is_timed else row | dict.fromkeys(_TIMES_OF_FINDING)


def _fields(of: object, names: Iterable[str]) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def rest_row(rest: Rest) -> dict[str, object]:
    """The fields of the rest."""
    of_limit = ("kind", "region", "gain_ns", "share", "blocks", "ranks")
    of_part = ("region", "share", "gb_s", "of_ceiling", "rate", "speed", "advice")
    return asdict(rest) | {
        "limits": [_fields(limit, of_limit) for limit in rest.limits],
        "differences": [asdict(one) | {"sentence": one.sentence} for one in rest.differences],
        "ingredients": [_fields(part, of_part) for part in rest.ingredients],
    }


def table_rows(table: pd.DataFrame | None) -> list[dict[str, object]] | None:
    """A table as a list of objects; None stays None."""
    if table is None:
        return None
    return [
        {str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")
    ]


def plain(value: Any) -> Any:
    """Numpy numbers as Python numbers, NaN as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value
