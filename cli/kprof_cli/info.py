"""What `kprof info` shows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from kprof.trace.limits import MAX_EVENTS_TO_CHECK_FLOWS
from kprof_cli.output import format_bytes, format_ns, print_rows, say

if TYPE_CHECKING:
    from kprof.capture.directory import Capture
    from kprof.capture.manifest import Manifest, PairClock, RankInfo


def info_json(capture: Capture) -> dict[str, object]:
    """The manifest, with the path and size of the capture, and its losses in sentences."""
    from kprof.capture.losses import describe_losses

    manifest: dict[str, object] = msgspec.to_builtins(capture.manifest)
    place = {"path": str(capture.path), "size_bytes": capture.size_bytes}
    return (
        place
        | manifest
        | {"losses": list(describe_losses(capture.manifest)), "causality": _causality(capture)}
    )


def print_info(capture: Capture) -> None:
    """Print the head, a table of ranks and a table of kernels."""
    from kprof.capture.losses import describe_losses

    manifest = capture.manifest
    # Reads events, and refuses changed ones before anything is printed.
    causality = _causality(capture)
    for name, value in _head(capture):
        say(f"{name:<9}{value}")
    say(f"{'flows':<9}{_describe_causality(causality)}")
    for loss in describe_losses(manifest):
        say(f"{'lost':<9}{loss}")
    for text in manifest.alignment.notes if manifest.alignment else ():
        say(f"{'note':<9}{text}")
    for info in manifest.ranks:
        for note in info.notes:
            say(f"{'note':<9}rank {info.rank}: {note}")
    print_rows(_RANK_HEADERS, [_rank_row(manifest, info) for info in manifest.ranks])
    if manifest.alignment and manifest.alignment.pairs:
        _print_pairs(manifest.alignment.pairs)
    if losses := _loss_rows(manifest.ranks):
        print_rows(_LOSS_HEADERS, losses)
    print_rows(("kernel", "launches", "blocks", "threads per block"), _kernel_rows(manifest.ranks))


def _head(capture: Capture) -> list[tuple[str, str]]:
    manifest = capture.manifest
    return [
        (
            "capture",
            f"{capture.path} ({format_bytes(capture.size_bytes)}, format "
            f"{manifest.format_version})",
        ),
        ("command", shlex.join(manifest.command)),
        (
            "recorded",
            f"{manifest.created_utc} by kprof {manifest.kprof_version}, {manifest.duration_s:.1f} "
            "s",
        ),
        ("exit", "unknown" if manifest.exit_code is None else str(manifest.exit_code)),
        ("ranks", f"{len(manifest.ranks)} recorded of {manifest.world_size}"),
        ("clock", _describe_clock(manifest)),
        *_moment_lines(manifest),
        *_probe_lines(manifest),
    ]


def _causality(capture: Capture) -> dict[str, int] | str:
    """Numbers of flows, of waits that ended before their send began, and of sends and waits without
    a partner; or a sentence if that is unknown. Raises CorruptCaptureError."""
    from kprof.analysis import Summary, late_sender, unmatched_flows
    from kprof.errors import CorruptCaptureError, KprofError
    from kprof.trace import Trace

    if sum(info.counts.recorded for info in capture.manifest.ranks) > MAX_EVENTS_TO_CHECK_FLOWS:
        return (
            f"not checked, more than {MAX_EVENTS_TO_CHECK_FLOWS:,} events; kprof report checks them"
        )
    try:
        summary = Summary.of(Trace.open(capture))
        table, ends = late_sender(summary), unmatched_flows(summary)
    except CorruptCaptureError:
        raise
    except KprofError as error:
        return f"not checked: {error}"
    flows = {
        name: int(table[name].sum()) for name in ("flows", "violations", "violations_beyond_bound")
    }
    return flows | {name: int(ends[name].sum()) for name in ("unmatched_sends", "unmatched_waits")}


def _describe_causality(counts: dict[str, int] | str) -> str:
    if isinstance(counts, str):
        return counts
    early, beyond = counts["violations"], counts["violations_beyond_bound"]
    text = f"{counts['flows']:,} checked, {early:,} waits ended before their send began"
    text += f", {beyond:,} of them by more than the clock error bound" if early else ""
    return f"{text}; {_describe_unmatched(counts)}"


def _describe_unmatched(counts: dict[str, int]) -> str:
    sends, waits = counts["unmatched_sends"], counts["unmatched_waits"]
    if not sends and not waits:
        return "every send and wait has a partner"
    return f"{sends:,} sends and {waits:,} waits have no partner"


def _moment_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """The regions that end when memory operations have completed.

    All others end when the call is issued.
    """
    from kprof.regions import Moment

    regions = [region for info in manifest.ranks for region in info.regions.regions]
    names = dict.fromkeys(region.name for region in regions if region.moment is Moment.COMPLETE)
    return [("complete", f"ends wait for memory: {', '.join(names)}")] if names else []


def _probe_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """What recording costs, if the capture says so; captures of older versions do not."""
    lines = []
    probes = [info.probe for info in manifest.ranks if info.probe is not None]
    if probes:
        pair_ns = _range_ns([probe.pair_ns for probe in probes])
        empty_ns = _range_ns([probe.empty_span_ns for probe in probes])
        lines.append(("probe", f"{pair_ns} per start/stop pair; an empty span lasts {empty_ns}"))
    cycles = [info.cycle_clock for info in manifest.ranks if info.cycle_clock is not None]
    if cycles:
        error_ns = max(clock.error_ns for clock in cycles)
        lines.append(("cycles", f"cycle counters on the rank's clock within {format_ns(error_ns)}"))
    if manifest.overhead is not None or manifest.overhead_note:
        lines.append(("overhead", describe_overhead(manifest).removeprefix("recording: ")))
    return lines


def _range_ns(values: Sequence[float]) -> str:
    """ "58.5 ns" or "57.9 to 58.5 ns"."""
    first, last = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{first} ns" if first == last else f"{first} to {last} ns"


def describe_overhead(manifest: Manifest) -> str:
    """What recording cost the workload, compared to the noise between equal runs, in one
    sentence."""
    overhead = manifest.overhead
    if overhead is None:
        return f"recording: its cost was not measured: {manifest.overhead_note}"
    spread = overhead.spread_percent
    noise = f"two runs of the same kind differ by {spread:.1f} %"
    is_noise = abs(overhead.percent) <= spread
    measured = ", within the noise: " if is_noise else " from launch to launch; "
    sentence = f"recording: {overhead.percent:+.1f} %{measured}{noise}"
    if any(info.counts.dropped for info in manifest.ranks):
        sentence += "; but not all events fitted the arena: measure again with a larger one"
    return sentence


def _describe_clock(manifest: Manifest) -> str:
    alignment = manifest.alignment
    if alignment is not None:
        rounds = f", {alignment.num_rounds} rounds" if alignment.num_rounds else ""
        return (
            f"all on that of rank {alignment.reference_rank}, any two within "
            f"{format_ns(alignment.widest_bound_ns)} ({alignment.method}{rounds})"
        )
    if len(manifest.ranks) == 1:
        return "one rank, nothing to align"
    return f"not aligned: {manifest.alignment_note}"


_RANK_HEADERS = (
    "rank",
    "host",
    "target",
    "device",
    "arch",
    "clock",
    "step",
    "offset",
    "bound",
    "events",
    "dropped",
    "open",
    "clamped",
    "unknown",
    "torn",
    "arena used",
)


def _rank_row(manifest: Manifest, info: RankInfo) -> tuple[object, ...]:
    counts = info.counts
    return (
        info.rank,
        info.host,
        info.target,
        info.device,
        info.arch,
        info.clock.source,
        format_ns(info.clock.step_ns),
        *_alignment_cells(manifest, info.rank),
        f"{counts.recorded:,}",
        f"{counts.dropped:,}",
        f"{counts.open:,}",
        f"{counts.clamped + counts.saturated:,}",
        f"{counts.unknown_region:,}",
        f"{counts.torn_chunks:,}",
        f"{format_bytes(info.arena.used_bytes)} of {format_bytes(info.arena.size_bytes)}",
    )


def _alignment_cells(manifest: Manifest, rank: int) -> tuple[str, str]:
    """The rank's clock minus the reference's at the first calibration, and the bound."""
    entries = manifest.alignment.ranks if manifest.alignment else ()
    entry = next((entry for entry in entries if entry.rank == rank), None)
    if entry is None:
        return "-", "-"
    # The manifest has what to add to the rank's clock, so the clock is behind by that much.
    offset = format_ns(-entry.segments[0].offset_ns) if entry.segments else "-"
    return offset, format_ns(entry.bound_ns)


_PAIR_HEADERS = (
    "pair",
    "offset",
    "drift",
    "bound",
    "whatever the link does",
    "round trip",
    "residue",
    "rounds",
    "calibrations",
    "method",
)


# All pairs of up to 11 ranks, else the widest: a thousand ranks have half a million pairs.
_MAX_PAIRS = 55


def _print_pairs(pairs: Sequence[PairClock]) -> None:
    shown = sorted(sorted(pairs, key=lambda pair: -pair.bound_ns)[:_MAX_PAIRS], key=_pair_place)
    print_rows(_PAIR_HEADERS, [_pair_row(pair) for pair in shown])
    if len(shown) < len(pairs):
        say(f"... {len(pairs) - len(shown):,} more pairs with narrower bounds; --json has them all")


def _pair_place(pair: PairClock) -> tuple[int, int]:
    return pair.a, pair.b


def _pair_row(pair: PairClock) -> tuple[object, ...]:
    """The clock of the second rank minus that of the first, and its error bound."""
    return (
        f"{pair.a} - {pair.b}",
        format_ns(pair.offset_ns),
        # Adding 0.0 turns -0.000 into 0.000.
        f"{round(pair.drift_ppm, 3) + 0.0:+.3f} ppm",
        format_ns(pair.bound_ns),
        format_ns(pair.rigorous_bound_ns),
        format_ns(pair.round_trip_ns) if pair.round_trip_ns else "-",
        "-" if pair.residue_ns is None else format_ns(pair.residue_ns),
        f"{pair.num_rounds:,}",
        pair.num_calibrations,
        pair.method,
    )


_LOSS_HEADERS = ("rank", "region", "dropped", "open", "saturated", "clamped", "unknown")


def _loss_rows(ranks: Sequence[RankInfo]) -> list[tuple[object, ...]]:
    """Dropped and incomplete records, by rank and region."""
    return [
        (
            info.rank,
            losses.region,
            f"{losses.dropped:,}",
            f"{losses.open:,}",
            f"{losses.saturated:,}",
            f"{losses.clamped:,}",
            f"{losses.unknown_region:,}",
        )
        for info in ranks
        for losses in info.losses
    ]


def _kernel_rows(ranks: Sequence[RankInfo]) -> list[tuple[object, ...]]:
    """One row per kernel: its launches per rank, and its grids."""
    names = dict.fromkeys(launch.kernel for info in ranks for launch in info.launches)
    return [_kernel_row(name, ranks) for name in names]


def _kernel_row(name: str, ranks: Sequence[RankInfo]) -> tuple[object, ...]:
    launches = [launch for info in ranks for launch in info.launches if launch.kernel == name]
    per_rank = [sum(launch.kernel == name for launch in info.launches) for info in ranks]
    return (
        name,
        _span(per_rank) + (" per rank" if len(ranks) > 1 else ""),
        _span([launch.num_blocks for launch in launches]),
        _span([launch.threads_per_block for launch in launches]),
    )


def _span(values: Sequence[int]) -> str:
    """ "4" or "4-16"."""
    first, last = min(values), max(values)
    return str(first) if first == last else f"{first}-{last}"
