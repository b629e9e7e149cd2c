"""The report as JSON, for programs.

    {
      "schema_version": 1,                 grows when a field changes its meaning or goes away
      "capture": {command, created_utc, kprof_version, world_size, exit_code, missing_ranks, num_events, num_launches,
                  window_ns: [first, last], run_time_ns, alignment: {method, reference_rank, num_rounds,
                  bound_ns: {rank: ns}} | null, alignment_note},
      "verdict": "one sentence",
      "findings": [{id, kind, severity, sentence, remedy, cost_ns, share, ranks, blocks, region, evidence,
                    explained_by, where_ns, tracks: [[rank, block], ...], view: "command that opens the trace there"}],
      "refused": {table: "why it is null"},
      "quality": [{rank, host, device, recorded, dropped, open, saturated, clamped, unknown_region, torn_chunks}],
      "losses": [{rank, region, dropped, open, saturated, clamped, unknown_region}],  regions that lost anything
      "tables": {name: [row, ...] | null}  rows are objects; columns as in the docstrings of kprof.analysis:
                  efficiency, rank_efficiency, launch_efficiency, launch_skew, regions (= stats), late_sender,
                  waits_by_rank, waits_by_region, waits_by_peer, imbalance_by_rank, imbalance_by_block, blame,
                  unmatched_flows, stragglers, ramp_and_tail, barrier_waits, bandwidth, stalls, critical_path,
                  critical_regions, what_if, delay_costs
                  (efficiency is without the first call where the finding "warm-up" says so)
      "blame_matrix": {"rows": [waiting rank], "columns": [rank waited for], "wait_ns": [[...], ...]}
    }

Times are nanoseconds, shares are 0 to 1, and a number that does not exist is null.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kprof.analysis import all_metrics

if TYPE_CHECKING:
    import pandas as pd

    from kprof.analysis import Finding
    from kprof.report.model import Report

SCHEMA_VERSION: Final = 1


def to_json(report: Report) -> bytes:
    """The report in the schema of this module's docstring, UTF-8, indented by one space."""
    matrix = report.blame_matrix
    document = {
        "schema_version": SCHEMA_VERSION,
        "capture": _capture(report),
        "verdict": report.verdict,
        "findings": [_finding(report, finding) for finding in report.findings],
        "refused": report.refused,
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


def _capture(report: Report) -> dict[str, Any]:
    manifest = report.manifest
    aligned = manifest.alignment
    alignment = aligned and {
        "method": aligned.method,
        "reference_rank": aligned.reference_rank,
        "num_rounds": aligned.num_rounds,
        "bound_ns": {str(entry.rank): entry.bound_ns for entry in aligned.ranks},
    }
    return {
        "command": manifest.command,
        "created_utc": manifest.created_utc,
        "kprof_version": manifest.kprof_version,
        "world_size": manifest.world_size,
        "exit_code": manifest.exit_code,
        "missing_ranks": manifest.missing_ranks,
        "num_events": report.num_events,
        "num_launches": report.num_launches,
        "window_ns": report.window_ns,
        "run_time_ns": report.run_time_ns,
        "alignment": alignment,
        "alignment_note": manifest.alignment_note,
    }


def _finding(report: Report, finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "kind": finding.kind,
        "severity": finding.severity.value,
        "sentence": finding.sentence,
        "remedy": finding.remedy,
        "cost_ns": finding.cost_ns,
        "share": finding.share,
        "ranks": finding.ranks,
        "blocks": finding.blocks,
        "region": finding.region,
        "evidence": dict(finding.evidence),
        "explained_by": finding.explained_by,
        "where_ns": finding.where_ns,
        "tracks": finding.tracks,
        "view": report.command_for(finding) or None,
    }


def table_rows(table: pd.DataFrame | None) -> list[dict[str, Any]] | None:
    """A table as a list of objects; None stays None."""
    if table is None:
        return None
    return [
        {str(name): plain(value) for name, value in row.items()} for row in table.to_dict("records")
    ]


def plain(value: Any) -> Any:
    """Numbers of numpy as numbers; what is not a number as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value
