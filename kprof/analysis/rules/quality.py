"""Can the numbers be trusted? Lost events, missing ranks, clocks, and flows that do not add up."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final

from kprof.analysis.flow_sums import calls_paired
from kprof.analysis.rules.finding import Finding, Severity
from kprof.analysis.waiting import late_sender, unmatched_flows
from kprof.analysis.wording import counted, duration, members, percent
from kprof.errors import ClockError

if TYPE_CHECKING:
    from kprof.analysis.summary import Summary
    from kprof.capture.manifest import RankInfo


# A rank that lost this share of its events looks idle where it was busy: nothing else may be said before that.
TOO_LOSSY: Final = 0.2


def lossy_capture(summary: Summary) -> list[Finding]:
    """Events that were dropped, torn, never ended or unreadable, and ranks that are missing."""
    findings = [_dropped(summary), _missing(summary), _open_spans(summary), _unreadable(summary)]
    return [finding for finding in findings if finding is not None]


def guessed_metadata(summary: Summary) -> list[Finding]:
    """What an import had to guess, and everything below rests on."""
    guesses = summary.trace.manifest.guesses
    if not guesses:
        return []
    return [
        Finding(
            id="guessed-metadata",
            kind="guessed_metadata",
            severity=Severity.NOTE,
            sentence=f"guessed at import: {'; '.join(guesses)}",
            remedy="import again with a regions file (--regions) that says what the names are",
            evidence={"guesses": list(guesses)},
        )
    ]


def _dropped(summary: Summary) -> Finding | None:
    lost = {info.rank: info.counts.dropped for info in summary.trace.ranks if info.counts.dropped}
    if not lost:
        return None
    recorded = sum(info.counts.recorded for info in summary.trace.ranks)
    share = sum(lost.values()) / (recorded + sum(lost.values()))
    worst = max(
        info.counts.dropped / (info.counts.recorded + info.counts.dropped)
        for info in summary.trace.ranks
        if info.counts.dropped
    )
    is_beyond_use = worst >= TOO_LOSSY
    severity = Severity.MAJOR if share >= 0.01 else Severity.MINOR
    result = "counts and sums are too small"
    if is_beyond_use:
        severity = Severity.CRITICAL
        result = "what is said below holds for what is left only"
    needed = summary.trace.manifest.needed_arena_size
    size = (
        f"--arena-size {needed}, which would have held all" if needed else "a larger --arena-size"
    )
    return Finding(
        id="lossy-capture/dropped",
        kind="lossy_capture",
        severity=severity,
        sentence=f"{members('rank', lost)} dropped {counted(sum(lost.values()), 'event', 'events')} "
        f"({percent(share)} of all): {result}",
        remedy=f"record again with {size}, or with fewer regions",
        ranks=tuple(lost),
        evidence={"dropped": lost, "share": share, "needed_arena_size": needed},
    )


def _missing(summary: Summary) -> Finding | None:
    missing = summary.trace.manifest.missing_ranks
    if not missing:
        return None
    return Finding(
        id="lossy-capture/missing-ranks",
        kind="lossy_capture",
        severity=Severity.MAJOR,
        sentence=f"{members('rank', missing)} of {summary.trace.manifest.world_size} left no events: "
        f"nothing is known of what {'it' if len(missing) == 1 else 'they'} did, "
        f"waits for {'it' if len(missing) == 1 else 'them'} are counted",
        remedy="look at the workload's own output for why a rank ended early, and record again",
        ranks=tuple(missing),
        evidence={"missing_ranks": list(missing), "world_size": summary.trace.manifest.world_size},
    )


def _open_spans(summary: Summary) -> Finding | None:
    opened = {info.rank: info.counts.open for info in summary.trace.ranks if info.counts.open}
    if not opened:
        return None
    return Finding(
        id="lossy-capture/open-spans",
        kind="lossy_capture",
        severity=Severity.MINOR,
        sentence=f"{counted(sum(opened.values()), 'span', 'spans')} on {members('rank', opened)} begun and "
        "never ended, in no sum of times",
        remedy="look at the open spans in the trace: they are what the blocks were doing when the recording stopped",
        ranks=tuple(opened),
        evidence={"open": opened},
    )


def _unreadable(summary: Summary) -> Finding | None:
    kinds = ("saturated", "clamped", "unknown_region", "torn_chunks")
    sums = {kind: sum(getattr(info.counts, kind) for info in summary.trace.ranks) for kind in kinds}
    present = {kind: count for kind, count in sums.items() if count}
    if not present:
        return None
    words = {
        "saturated": "spans longer than a record can say",
        "clamped": "payload values that did not fit their field",
        "unknown_region": "events of undeclared regions",
        "torn_chunks": "chunks that were being written when the arena was read",
    }
    listed = ", ".join(f"{count} {words[kind]}" for kind, count in present.items())
    return Finding(
        id="lossy-capture/unreadable",
        kind="lossy_capture",
        severity=Severity.MINOR,
        sentence=f"the capture holds {listed}",
        remedy="widen the payload field, declare the region, or flush after the kernel has ended",
        evidence=present,
    )


def uncalibrated_clocks(summary: Summary) -> list[Finding]:
    """The ranks were not put on one clock, or the one clock does not hold."""
    try:
        summary.trace.require_alignment("comparing ranks in time")
    except ClockError as error:
        return [
            Finding(
                id="uncalibrated-clocks",
                kind="uncalibrated_clocks",
                severity=Severity.NOTE,
                sentence=str(error),
                remedy="record with clock calibration to get late senders, launch skew and the critical path",
            )
        ]
    return [*_weak_calibration(summary), *_violated_causality(summary)]


def _weak_calibration(summary: Summary) -> list[Finding]:
    """Clocks that were calibrated once, or not around all launches."""
    notes = summary.trace.alignment.notes if summary.trace.alignment else ()
    return [
        Finding(
            id=f"uncalibrated-clocks/weak-{idx}",
            kind="uncalibrated_clocks",
            severity=Severity.NOTE,
            sentence=note.partition("; ")[0],
            remedy=note.partition("; ")[2] or "calibrate before and after the launches",
        )
        for idx, note in enumerate(notes)
    ]


def _violated_causality(summary: Summary) -> list[Finding]:
    table = late_sender(summary)
    bad = table[table["violations"] > 0]
    if bad.empty:
        return []
    count, beyond = int(bad["violations"].sum()), int(bad["violations_beyond_bound"].sum())
    bound = duration(float(bad["bound_ns"].max()))
    return [
        Finding(
            id="uncalibrated-clocks/causality",
            kind="uncalibrated_clocks",
            severity=Severity.MAJOR if beyond else Severity.NOTE,
            sentence=f"{count:,} of {int(table['flows'].sum()):,} waits ended before their send began, "
            f"{beyond:,} of them by more than the clock error bound of {bound}: clocks or slots are wrong there",
            remedy="calibrate again close to the run; if it stays, check that a slot is not used twice in one launch",
            ranks=tuple(sorted({*bad["src"].astype(int), *bad["dst"].astype(int)})),
            evidence={"violations": count, "violations_beyond_bound": beyond},
        )
    ]


def oversubscribed(summary: Summary) -> list[Finding]:
    """CPU ranks that share cores: while one runs another does not, which looks like waiting and like lateness."""
    hosts: dict[str, list[RankInfo]] = defaultdict(list)
    for info in summary.trace.manifest.ranks:
        if info.target == "cpu" and info.num_cores:
            hosts[info.host].append(info)
    crowded = {host: ranks for host, ranks in hosts.items() if len(ranks) > ranks[0].num_cores}
    if not crowded:
        return []
    host, ranks = max(crowded.items(), key=lambda item: len(item[1]) / item[1][0].num_cores)
    cores = counted(ranks[0].num_cores, "core", "cores")
    return [
        Finding(
            id="oversubscribed",
            kind="oversubscribed",
            severity=Severity.NOTE,
            sentence=f"{len(ranks)} ranks share {cores} of {host or 'one host'}: times are the operating system "
            "scheduler's, only counts and the order of events are the kernel's",
            remedy="trust what is said about uneven work; run as many ranks as there are cores, or on GPUs, "
            "for times that mean something",
            ranks=tuple(info.rank for info in ranks),
            evidence={"ranks": len(ranks), "cores": ranks[0].num_cores},
        )
    ]


def sampled_flows(summary: Summary) -> list[Finding]:
    """Captures with more events than are paired: which part the sums over flows are of."""
    try:
        summary.trace.require_alignment("pairing sends with waits")
    except ClockError:
        return []
    paired = calls_paired(summary)
    if paired.is_all or not summary.trace.regions.flows:
        return []
    return [
        Finding(
            id="sampled-flows",
            kind="sampled_flows",
            severity=Severity.NOTE,
            sentence=f"sends and waits were paired in {len(paired.ordinals)} of {paired.of_calls} calls, evenly "
            "spread: late senders and transfers are sums over those",
            remedy="select launches (--launches) to look at others; all other numbers are of the whole run",
            evidence={"calls": list(paired.ordinals), "of_calls": paired.of_calls},
        )
    ]


def unmatched(summary: Summary) -> list[Finding]:
    """Sends and waits that found no partner."""
    if not calls_paired(summary).is_all:
        return []
    table = unmatched_flows(summary)
    findings = []
    for row in table.to_dict("records"):
        sends, waits = int(row["unmatched_sends"]), int(row["unmatched_waits"])
        if sends == 0 and waits == 0:
            continue
        findings.append(
            Finding(
                id=f"lossy-capture/unmatched/{row['send_region']}/{row['wait_region']}",
                kind="lossy_capture",
                severity=Severity.NOTE,
                sentence=f"{sends:,} of {row['sends']:,} {row['send_region']} released no recorded "
                f"{row['wait_region']}, and {waits:,} of {row['waits']:,} waits have no recorded send; "
                "they are in no flow",
                remedy="expected where one span stands for several sends or waits; else check that both sides record "
                "the same slot, that no rank is missing and nothing was dropped",
                region=str(row["wait_region"]),
                evidence={
                    "unmatched_sends": sends,
                    "unmatched_waits": waits,
                    "flows": int(row["flows"]),
                },
            )
        )
    return findings
