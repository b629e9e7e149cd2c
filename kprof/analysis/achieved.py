"""Achieved rates compared to what the device can do: GB/s and FLOP/s by region, link and processor.

Regions count bytes and operations in the payload fields `bytes` and `flops`. Rates are over the
time in which the region (link, processor) was in use: from the first start to the last end in each
launch, summed over launches. Launches of a warm-up are left out. Ceilings are those of `kprof
doctor --measure` at the time of the recording, else those of the device's data sheet, else NaN. A
byte that is copied is read and written, so a copy within a device reaches at most half of what its
memory does; measured copies reach 85 to 95 % of that. GB are 10^9 bytes, GFLOP 10^9 operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kprof.analysis.metric import metric
from kprof.analysis.summary import CLOSED_SPANS, Column, Summary, Table
from kprof.analysis.warmup import steady_part
from kprof.capture.manifest import Ceilings

_NAN: Final = float("nan")
# Ceilings: of a copy within a device, and to its best peer.
_COPY: Final = "copy_gb_s"
_PEER: Final = "peer_gb_s"


@metric()
def achieved_by_region(summary: Summary) -> Table:
    """Rates of every region that counts bytes or operations, per rank.

    Columns: rank, region, category, bytes, flops, busy_ns, gb_s, gflop_s, ceiling_gb_s,
    ceiling_share. The ceiling is that of a copy within the device, or to one peer if the region
    sends or receives and names its peer. If each pair has its own link, data for several peers may
    exceed it.
    """
    summary = steady_part(summary)[0]
    table = _rates(summary, "rank, region, category", _counted_sql(summary))
    is_far = table.pop("has_peer") & table["category"].isin(["send", "recv"])
    near, far = (table["rank"].map(_ceilings_gb_s(summary, name)) for name in (_COPY, _PEER))
    return _compared(table, near.where(~is_far, far))


@metric()
def achieved_by_link(summary: Summary) -> Table:
    """Rates of every pair of ranks, from regions that send or receive and name their peer.

    Columns: rank (whose kernel moves the data), peer, bytes, flops, busy_ns, gb_s, gflop_s,
    ceiling_gb_s, ceiling_share.
    """
    summary = steady_part(summary)[0]
    crosses = "category IN ('send', 'recv') AND peer >= 0 AND peer <> rank"
    table = _rates(summary, "rank, peer", _counted_sql(summary), crosses)
    return _compared(table, table["rank"].map(_ceilings_gb_s(summary, _PEER)))


@metric()
def achieved_by_processor(summary: Summary) -> Table:
    """Rates of every SM or CU. Raises SelectionError for more than five million events.

    Columns: rank, hw_id, bytes, flops, busy_ns, gb_s, gflop_s, ceiling_gb_s (the device's, divided
    by its processors), ceiling_share.
    """
    summary = steady_part(summary)[0]
    table = _rates(summary, "rank, hw_id", _counted_events_sql(summary))
    # Ceilings of the CPU target are for one core.
    num_processors = {info.rank: max(1, info.num_processors) for info in summary.trace.ranks}
    rates = _ceilings_gb_s(summary, _COPY)
    shares = {rank: rate / num_processors[rank] for rank, rate in rates.items()}
    return _compared(table, table["rank"].map(shares))


def _rates(summary: Summary, keys: str, counted: str, where: str = "true") -> Table:
    """Rates by keys, and whether any of what was counted names a peer; `counted` is a query."""
    return summary.frame(
        f"""WITH used AS (
            SELECT {keys}, launch, sum(bytes) AS bytes, sum(flops) AS flops,
                max(last_ns) - min(first_ns) AS busy_ns, bool_or(peer >= 0) AS has_peer
            FROM ({counted}) WHERE {where} GROUP BY {keys}, launch)
        SELECT {keys}, total(bytes) AS bytes, total(flops) AS flops, total(busy_ns) AS busy_ns,
            coalesce(sum(bytes) / nullif(sum(busy_ns), 0), 0.0) AS gb_s,
            coalesce(sum(flops) / nullif(sum(busy_ns), 0), 0.0) AS gflop_s,
            bool_or(has_peer) AS has_peer
        FROM used GROUP BY {keys} ORDER BY {keys}"""
    )


def _counted_sql(summary: Summary) -> str:
    """SQL for counted bytes, from the summaries.

    Operations are not in them and are read from the events.
    """
    if _counts_flops(summary):
        return _counted_events_sql(summary)
    return """
        SELECT rank, region, category, launch, peer, bytes, 0 AS flops, first_ns, last_ns
        FROM named_cells WHERE bytes > 0"""


def _counted_events_sql(summary: Summary) -> str:
    summary.require_few_events("rates of processors and of operations read")
    flops = "coalesce(flops, 0)" if _counts_flops(summary) else "0"
    return f"""
        SELECT rank, region, category, launch, hw_id, coalesce(peer, -1) AS peer,
            coalesce(bytes, 0) AS bytes, {flops} AS flops, start_ns AS first_ns, end_ns AS last_ns
        FROM events WHERE {CLOSED_SPANS} AND (bytes > 0 OR {flops} > 0)"""


def _counts_flops(summary: Summary) -> bool:
    return any(region.field("flops") for region in summary.trace.regions.regions)


def _ceilings_gb_s(summary: Summary, name: str) -> dict[int, float]:
    """The rate of a copy within each rank's device, or to its best peer; NaN where unknown."""
    return {
        info.rank: getattr(info.ceilings or ceilings_of(info.device), name, 0.0) or _NAN
        for info in summary.trace.ranks
    }


def _compared(table: Table, ceiling_gb_s: Column) -> Table:
    table = table.drop(columns="has_peer", errors="ignore")
    table["ceiling_gb_s"] = ceiling_gb_s.astype("float64")
    table["ceiling_share"] = table["gb_s"] / table["ceiling_gb_s"]
    return table


@dataclass(frozen=True)
class _Sheet:
    """GB/s of the memory, and of all links to other GPUs in one direction; 0 where it has none."""

    memory_gb_s: float
    links_gb_s: float = 0.0


# By how the name of the device begins; the longest that fits counts.
_SHEETS: Final = {
    "NVIDIA A100-SXM4-40GB": _Sheet(1555, 300),
    "NVIDIA A100-SXM4-80GB": _Sheet(2039, 300),
    "NVIDIA A100 80GB PCIe": _Sheet(1935),
    "NVIDIA A100-PCIE-40GB": _Sheet(1555),
    "NVIDIA H100 80GB HBM3": _Sheet(3350, 450),
    "NVIDIA H100 PCIe": _Sheet(2000),
    "NVIDIA H100 NVL": _Sheet(3900, 300),
    "NVIDIA H200": _Sheet(4800, 450),
    "NVIDIA B200": _Sheet(8000, 900),
    "NVIDIA L4": _Sheet(300),
    "NVIDIA L40S": _Sheet(864),
    "NVIDIA A10": _Sheet(600),
    "NVIDIA GeForce RTX 3090": _Sheet(936),
    "NVIDIA GeForce RTX 4090": _Sheet(1008),
    # To one peer goes one link of seven.
    "AMD Instinct MI300X": _Sheet(5300, 64),
    "AMD Instinct MI325X": _Sheet(6000, 64),
    "AMD Instinct MI355X": _Sheet(8000, 76.8),
}


def ceilings_of(device: str) -> Ceilings | None:
    """The ceilings of a device by its name; None where nothing is known of it.

    A part of a GPU (MIG) has a part of its bandwidth, which its name does not tell.
    """
    known = [name for name in _SHEETS if f"{device} ".startswith(f"{name} ")]
    if not known or " MIG " in device:
        return None
    sheet = _SHEETS[max(known, key=len)]
    return Ceilings(copy_gb_s=sheet.memory_gb_s / 2, peer_gb_s=sheet.links_gb_s)
