"""What `kprof info` shows."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from kprof.errors import CorruptCaptureError, KprofError
from kprof.trace.limits import MAX_EVENTS_TO_CHECK_FLOWS
from kprof_cli.output import format_bytes, format_ns, print_rows, say

if TYPE_CHECKING:
    from kprof.capture.directory import Capture
    from kprof.capture.manifest import KernelResources, Launch, Manifest, PairClock, RankInfo

_MOST_KERNELS: Final = 200


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
    head = _head(capture) | {"flows": _describe_causality(causality)}
    for name, value in head.items():
        say(f"{name:<9}{value}")
    for loss in describe_losses(manifest):
        say(f"{'lost':<9}{loss}")
    for text in manifest.alignment.notes if manifest.alignment else ():
        say(f"{'note':<9}{text}")
    for info in manifest.ranks:
        for note in info.notes:
            say(f"{'note':<9}rank {info.rank}: {note}")
    _print_table([_rank_row(manifest, info) for info in manifest.ranks])
    if manifest.alignment and manifest.alignment.pairs:
        _print_pairs(manifest.alignment.pairs)
    if losses := _loss_rows(manifest.ranks):
        _print_table(losses)
    _print_kernels(manifest.ranks)


def _head(capture: Capture) -> dict[str, str]:
    manifest = capture.manifest
    return {
        "capture": f"{capture.path} ({format_bytes(capture.size_bytes)}, format "
        f"{manifest.format_version})",
        "command": shlex.join(manifest.command),
        "recorded": f"{manifest.created_utc} by kprof {manifest.kprof_version}"
        # Nobody saw the end of a recovered run; an import says nothing of it.
        + (f", {manifest.duration_s:.1f} s" if manifest.duration_s else ""),
        "exit": "unknown" if manifest.exit_code is None else str(manifest.exit_code),
        **_part_lines(manifest),
        "ranks": f"{len(manifest.ranks)} recorded of {manifest.world_size}",
        "clock": _describe_clock(manifest),
        **_moment_lines(manifest),
        **_probe_lines(manifest),
    }


def _part_lines(manifest: Manifest) -> dict[str, str]:
    """What the recording left out when it was asked to; empty where it left out nothing."""
    parts = {(info.recorded_launches, info.recorded_part) for info in manifest.ranks}
    text = "; ".join(sorted(", ".join(filter(None, part)) for part in parts if any(part)))
    return {"part": f"chosen by {text}"} if text else {}


def _causality(capture: Capture) -> dict[str, int] | str:
    """Numbers of flows, of waits that ended before their send began, and of sends and waits without
    a partner; or a sentence if that is unknown. Raises CorruptCaptureError."""
    from kprof.analysis import Summary, late_sender, unmatched_flows
    from kprof.trace import Trace

    if sum(info.counts.recorded for info in capture.manifest.ranks) > MAX_EVENTS_TO_CHECK_FLOWS:
        return (
            f"not checked: more than {MAX_EVENTS_TO_CHECK_FLOWS:,} events; kprof report checks them"
        )
    try:
        summary = Summary.of(Trace.open(capture))
        if not summary.trace.regions.flows:
            return "not checked: no FLOW joins sends with waits"
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
    sends, waits = counts["unmatched_sends"], counts["unmatched_waits"]
    if not sends and not waits:
        return f"{text}; every send and wait has a partner"
    return f"{text}; {sends:,} sends and {waits:,} waits have no partner"


def _moment_lines(manifest: Manifest) -> dict[str, str]:
    """The regions that end when memory operations have completed.

    All others end when the call is issued.
    """
    from kprof.regions import Moment

    regions = [region for info in manifest.ranks for region in info.regions.regions]
    names = dict.fromkeys(region.name for region in regions if region.moment is Moment.COMPLETE)
    text = f"these regions wait for memory at their end: {', '.join(names)}"
    return {"complete": text} if names else {}


def _probe_lines(manifest: Manifest) -> dict[str, str]:
    """What recording costs, if the capture says so; captures of older versions do not."""
    lines = {}
    probes = [info.probe for info in manifest.ranks if info.probe is not None]
    if probes:
        pair_ns = _range_ns([probe.pair_ns for probe in probes])
        empty_ns = _range_ns([probe.empty_span_ns for probe in probes])
        lines["probe"] = f"{pair_ns} per start/stop pair; an empty span lasts {empty_ns}"
    cycles = [info.cycle_clock for info in manifest.ranks if info.cycle_clock is not None]
    if cycles:
        error_ns = max(clock.error_ns for clock in cycles)
        lines["cycles"] = f"cycle counters match the rank's clock within {format_ns(error_ns)}"
    if manifest.overhead is not None or manifest.overhead_note:
        lines["overhead"] = describe_overhead(manifest)
    return lines


def _range_ns(values: Sequence[float]) -> str:
    """ "58.5 ns" or "57.9 to 58.5 ns"."""
    first, last = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{first} ns" if first == last else f"{first} to {last} ns"


def describe_overhead(manifest: Manifest) -> str:
    """What recording cost, in one sentence, compared to the noise between equal runs."""
    overhead = manifest.overhead
    if overhead is None:
        return f"cost not measured: {manifest.overhead_note}"
    spread = overhead.spread_percent
    noise = f"two runs of the same kind differ by {spread:.1f} %"
    is_noise = abs(overhead.percent) <= spread
    measured = ", within the noise: " if is_noise else " from launch to launch; "
    sentence = f"{overhead.percent:+.1f} %{measured}{noise}"
    if any(info.counts.dropped for info in manifest.ranks):
        sentence += "; some events did not fit the arena: measure again with a larger one"
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


def _print_table(rows: Sequence[Mapping[str, object]]) -> None:
    """Print rows of cells by header; there must be one."""
    print_rows(list(rows[0]), [list(row.values()) for row in rows])


def _rank_row(manifest: Manifest, info: RankInfo) -> dict[str, object]:
    counts, arena = info.counts, info.arena
    offset, bound = _alignment_cells(manifest, info.rank)
    return {
        "rank": info.rank,
        "host": info.host,
        "target": info.target,
        "device": info.device,
        "arch": info.arch,
        "clock": info.clock.source,
        "step": format_ns(info.clock.step_ns),
        "offset": offset,
        "bound": bound,
        "events": f"{counts.recorded:,}",
        "dropped": f"{counts.dropped:,}",
        "open": f"{counts.open:,}",
        "clamped": f"{counts.clamped + counts.saturated:,}",
        "unknown": f"{counts.unknown_region:,}",
        "torn": f"{counts.torn_chunks:,}",
        "arena used": f"{format_bytes(arena.used_bytes)} of {format_bytes(arena.size_bytes)}",
    }


def _alignment_cells(manifest: Manifest, rank: int) -> tuple[str, str]:
    """The rank's clock minus the reference's at the first calibration, and the bound."""
    entries = manifest.alignment.ranks if manifest.alignment else ()
    entry = next((entry for entry in entries if entry.rank == rank), None)
    if entry is None:
        return "-", "-"
    # The manifest has what to add to the rank's clock, so the clock is behind by that much.
    offset = format_ns(-entry.segments[0].offset_ns) if entry.segments else "-"
    return offset, format_ns(entry.bound_ns)


# All pairs of up to 11 ranks, else the widest: a thousand ranks have half a million pairs.
_MAX_PAIRS = 55


def _print_pairs(pairs: Sequence[PairClock]) -> None:
    shown = sorted(
        sorted(pairs, key=lambda pair: -pair.bound_ns)[:_MAX_PAIRS],
        key=lambda pair: (pair.a, pair.b),
    )
    _print_table([_pair_row(pair) for pair in shown])
    for pair in shown:
        if pair.others_ns:
            say(f"{'corner':<9}{_describe_corner(pair)}")
    if len(shown) < len(pairs):
        say(f"... {len(pairs) - len(shown):,} more pairs with narrower bounds; --json has them all")


def _pair_row(pair: PairClock) -> dict[str, object]:
    """The clock of the second rank minus that of the first, and its error bound."""
    return {
        "pair": f"{pair.a} - {pair.b}",
        "offset": format_ns(pair.offset_ns),
        # Adding 0.0 turns -0.000 into 0.000.
        "drift": f"{round(pair.drift_ppm, 3) + 0.0:+.3f} ppm",
        "bound": format_ns(pair.bound_ns),
        "bound from": _bound_from(pair),
        "worst-case bound": format_ns(pair.rigorous_bound_ns),
        "round trip": format_ns(pair.round_trip_ns) if pair.round_trip_ns else "-",
        "residue": "-" if pair.residue_ns is None else format_ns(pair.residue_ns),
        "rounds": f"{pair.num_rounds:,}",
        "calibrations": pair.num_calibrations,
        "method": pair.method,
    }


def _describe_corner(pair: PairClock) -> str:
    """What other paths say of a pair, and what follows."""
    others = ", ".join(
        f"{name} {'+' * (ns > 0)}{format_ns(ns)}" for name, ns in pair.others_ns.items()
    )
    is_checked = pair.bound_ns < pair.rigorous_bound_ns
    return (
        f"{pair.a} - {pair.b} through their host, beside the ping-pong: {others}; the farthest is "
        f"{format_ns(pair.disagreement_ns)} off, and the bound is "
        + ("that with the noise and the drift" if is_checked else "half a round trip")
    )


def _bound_from(pair: PairClock) -> str:
    """What the bound of a pair rests on."""
    if pair.bound_ns == pair.rigorous_bound_ns:
        return "causality"
    return "triangles" if pair.residue_ns is not None else "other paths" if pair.others_ns else "-"


def _loss_rows(ranks: Sequence[RankInfo]) -> list[dict[str, object]]:
    """Dropped and incomplete records, by rank and region."""
    counts = ("dropped", "open", "saturated", "clamped")
    return [
        {"rank": info.rank, "region": losses.region}
        | {name: f"{getattr(losses, name):,}" for name in counts}
        | {"unknown": f"{losses.unknown_region:,}"}
        for info in ranks
        for losses in info.losses
    ]


def _print_kernels(ranks: Sequence[RankInfo]) -> None:
    of_kernel: dict[str, list[list[Launch]]] = {}
    for idx, info in enumerate(ranks):
        for launch in info.launches:
            of_kernel.setdefault(launch.kernel, [[] for _ in ranks])[idx].append(launch)
    takes: dict[object, list[KernelResources]] = {}
    for kernel in {kernel for info in ranks for kernel in info.kernels}:
        takes.setdefault(kernel.kernel, []).append(kernel)
    head: tuple[str, ...] = ("kernel", "launches", "blocks", "threads per block")
    rows = [_kernel_row(*named) for named in itertools.islice(of_kernel.items(), _MOST_KERNELS)]
    if takes:
        head += ("registers", "spills, bytes", "shared, bytes")
        rows = [(*row, *_taken(takes.get(row[0], ()))) for row in rows]
    print_rows(head, rows)
    if len(rows) < len(of_kernel):
        say(f"... {len(of_kernel) - len(rows):,} more kernels; kprof info --json names all")


def _taken(versions: Sequence[KernelResources]) -> tuple[str, ...]:
    """Registers of a thread, bytes that it spills, and bytes of shared memory of a block."""
    taken = [(each.registers, each.spill_bytes, each.shared_bytes) for each in versions]
    return tuple(map(_span, zip(*taken, strict=True))) or ("", "", "")


def _kernel_row(name: str, by_rank: Sequence[Sequence[Launch]]) -> tuple[object, ...]:
    launches = [launch for of_rank in by_rank for launch in of_rank]
    return (
        name,
        _span([len(of_rank) for of_rank in by_rank]) + (" per rank" if len(by_rank) > 1 else ""),
        _span([launch.num_blocks for launch in launches]),
        _span([launch.threads_per_block for launch in launches]),
    )


def _span(values: Sequence[int]) -> str:
    """ "4" or "4-16"."""
    first, last = min(values), max(values)
    return str(first) if first == last else f"{first}-{last}"
