"""The waits of this moment, for `kprof watch`: who waits for whom, and for how long."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from kprof.hangs.evidence import read_run
from kprof.hangs.state import OpenSpan, Track

_MOST_LINES: Final = 4


class WaitsNow:
    """Looks at the memory that ranks share: no rank is asked. Ages count from the first look that
    saw a wait."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._first_seen_s: dict[tuple[Track, str, int], float] = {}

    def look(self, now_s: float) -> list[str]:
        """A line for each rank and the rank that it waits for, the longest wait first."""
        seen: dict[tuple[Track, str, int], float] = {}

        def age_of(track: Track, region: str, payload: int) -> float:
            key = track, region, payload
            seen[key] = self._first_seen_s.get(key, now_s)
            return now_s - seen[key]

        run = read_run(self._directory, age_of=age_of, with_records=False)
        self._first_seen_s = seen
        groups: dict[tuple[int, int | None], list[OpenSpan]] = defaultdict(list)
        for wait in run.waits:
            groups[wait.rank, wait.peer].append(wait)
        ordered = sorted(groups.values(), key=lambda waits: -max(wait.age_s for wait in waits))
        lines = [_line(waits) for waits in ordered[:_MOST_LINES]]
        left = len(ordered) - _MOST_LINES
        return [*lines, f"and {left} more ranks that wait"] if left > 0 else lines


def _line(waits: list[OpenSpan]) -> str:
    """Of one rank for one other: the longest wait, and how many there are."""
    longest = max(waits, key=lambda wait: wait.age_s)
    goal = "its own blocks" if longest.peer is None else f"rank {longest.peer}"
    slot = "" if longest.slot is None else f" for slot {longest.slot}"
    age = f"for {longest.age_s:.0f} s" if longest.age_s >= 1 else "for less than 1 s"
    track = longest.track
    warp = f" warp {track.warp}" if track.warp >= 0 else ""
    more = f", and {len(waits) - 1} more" if len(waits) > 1 else ""
    return (
        f"rank {longest.rank} waits for {goal} {age}: block {track.block}{warp} in "
        f"{longest.region}{slot} ({longest.call}){more}"
    )
