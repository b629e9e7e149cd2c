"""What a capture lacks, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from kprof.capture.manifest import Manifest, RankInfo

# Of a rank of which parts cannot be read.
IN_DAMAGED_PARTS: Final = "what was in its damaged files is lost"
NO_LAUNCH_LOST: Final = "no launch is lost"
_LOSSES: Final = (
    ("damaged_heads", "arena head was overwritten", "arena heads were overwritten"),
    ("torn_chunks", "chunk of records is damaged", "chunks of records are damaged"),
    (
        "stray_chunks",
        "chunk of records names a launch that never was; pass the number that launch() returned",
        "chunks of records name launches that never were; pass the number that launch() returned",
    ),
    (
        "unsplit_launches",
        "launch in a graph has replays that kprof cannot tell apart; they count as one launch",
        "launches in graphs have replays that kprof cannot tell apart; each counts as one launch",
    ),
    (
        "overwritten_runs",
        "run had the buffer of another one, which reserves chunks, and records of one of them are "
        "lost; call launch() before each run, or once with is_replayed=True",
        "runs had the buffers of others, which reserve chunks, and records of some are lost; call "
        "launch() before each run, or once with is_replayed=True",
    ),
    (
        "left_out_calls",
        "call was left out whole, because events came faster than they were written",
        "calls were left out whole, because events came faster than they were written",
    ),
    ("torn_records", "record is damaged", "records are damaged"),
    ("unknown_region", "event has an unknown region id", "events have an unknown region id"),
    ("open", "span was begun and never ended", "spans were begun and never ended"),
    (
        "saturated",
        "span is longer than a record can hold",
        "spans are longer than a record can hold",
    ),
    ("clamped", "payload did not fit its field", "payloads did not fit their field"),
)


class GaveUp(msgspec.Struct, frozen=True, tag="gave_up"):
    """A recorder could not write its events: those of `num_lost` launches are lost (None: they
    outlive the process). `goes_on`: the rank may launch more."""

    rank: int
    reason: str
    num_lost: int | None
    goes_on: bool = False

    @property
    def sentence(self) -> str:
        """For people."""
        what = "no events are lost" if self.num_lost == 0 else "what it recorded is kept"
        if self.num_lost:
            what = f"the events of {count_launches(self.num_lost)} are lost"
        then = "; it records nothing more" if self.goes_on else ""
        return f"rank {self.rank}: {self.reason}; {what}{then}"


def sentence_of(message: str | GaveUp) -> str:
    """What a rank left for whoever finishes the capture, for people."""
    return message if isinstance(message, str) else message.sentence


def describe_losses(manifest: Manifest) -> tuple[str, ...]:
    """A sentence for everything that a capture lacks.

    Missing ranks, ranks that were cut short, messages of processes that could not record, and, by
    rank and region, events that were dropped, torn, of unknown regions, never ended, saturated or
    clamped.
    """
    lost = []
    dropped = sum(info.counts.dropped for info in manifest.ranks)
    if dropped:
        emitted = dropped + sum(info.counts.recorded for info in manifest.ranks)
        where = _where_lost(manifest, "dropped")
        until = " until a rank was cut short" if _is_cut_short(manifest) else ""
        enough = enough_arena(manifest)
        lost.append(
            f"{dropped} of {emitted} events{until} did not fit the arena{where}"
            + (f": {enough}" if enough else "")
        )
    for kind, one, many in _LOSSES:
        count = sum(getattr(info.counts, kind) for info in manifest.ranks)
        if count:
            where = _where_lost(manifest, kind)
            lost.append(f"{count} {one if count == 1 else many}{where}")
    for info in manifest.ranks:
        if info.cut_short:
            lost.append(f"rank {info.rank} is cut short: {info.cut_short}")
    if manifest.missing_ranks:
        lost.append(
            f"{name_ranks(manifest.missing_ranks)} of {manifest.world_size} left no events"
            f"{_launches_lost(manifest)}"
        )
    return (*lost, *manifest.messages)


def enough_arena(manifest: Manifest) -> str:
    """The arena that would have held what was dropped, in words; empty where none would."""
    size, what = manifest.needed_arena_size, "these" if _is_cut_short(manifest) else "all"
    return f"--arena-size {size} would have held {what}" if size else ""


def _is_cut_short(manifest: Manifest) -> bool:
    """Whether nobody knows how many events a rank would have had."""
    return any(info.cut_short for info in manifest.ranks)


def why_empty(manifest: Manifest, ranks: Sequence[RankInfo]) -> str:
    """Why these ranks have no events, in sentences; empty where one has some, or nobody knows."""
    if any(info.has_events for info in ranks):
        return ""
    return "; ".join([*dict.fromkeys((*last_notes(ranks), *manifest.messages))][:3])


def last_notes(ranks: Sequence[RankInfo]) -> list[str]:
    """What ranks without events say last is why they have none; each sentence once."""
    return [*dict.fromkeys(info.notes[-1] for info in ranks if info.notes)]


def _launches_lost(manifest: Manifest) -> str:
    """` (lost: 12 launches of rank 1, 1 launch of rank 3)`, as far as they are known."""
    known = [
        f"{count_launches(count)} of rank {rank}"
        for rank, count in zip(manifest.missing_ranks, manifest.missing_launches, strict=False)
        if count
    ]
    return f" (lost: {', '.join(known)})" if known else ""


def launches_lost(num_launches: int | None, latest: int, *, is_whole: bool) -> str:
    """Which launches are lost of so many (None: nobody knows), of which those up to number `latest`
    are saved, if that is whole."""
    if num_launches is None or num_launches <= latest:
        return "how many of its last launches are lost is not known"
    num_lost = num_launches - 1 - latest
    if not num_lost:
        return NO_LAUNCH_LOST if is_whole else IN_DAMAGED_PARTS
    last = "the last of its" if num_lost == 1 else f"the last {num_lost} of its"
    return f"{last} {count_launches(num_launches)} {'is' if num_lost == 1 else 'are'} lost"


def count_launches(number: int) -> str:
    """A number of launches as words: "1 launch" or "3 launches"."""
    return f"{number} launch{'' if number == 1 else 'es'}"


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as words: "rank 3" or "ranks 3, 5"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _where_lost(manifest: Manifest, kind: str) -> str:
    """` (ranks 0, 1; wait: 3, copy: 1)`"""
    ranks = tuple(info.rank for info in manifest.ranks if getattr(info.counts, kind))
    regions: Counter[str] = Counter()
    for info in manifest.ranks:
        for losses in info.losses:
            regions[losses.region] += getattr(losses, kind, 0)
    listed = ", ".join(f"{name}: {count}" for name, count in regions.most_common() if count)
    return f" ({name_ranks(ranks)}{'; ' + listed if listed else ''})"
