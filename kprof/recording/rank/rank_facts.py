"""What a capture says about a rank besides its events: where it ran, its clock, its notes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from kprof.capture.manifest import Launch, RankInfo
from kprof.recording.launches.wanted import EVERYTHING, Wanted

if TYPE_CHECKING:
    from kprof.recording.decoding.decode import Decoder


@dataclass(frozen=True)
class RankFacts:
    """What is known of a rank before it records (`base`), and sentences that come later."""

    base: RankInfo
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def measure(
        rank: int, device: str, wanted: Wanted = EVERYTHING, has_schedule: bool = False
    ) -> RankFacts:
        """Look at the device; takes some milliseconds. Raises TargetError and ClockError."""
        from kprof.clocks.calibration import measure_clock
        from kprof.devices.targets import count_cores, describe_device
        from kprof.recording.rank.ceilings import kept_ceilings
        from kprof.recording.rank.probe_cost import measure_probe_cost

        described = describe_device(device)
        chosen_by = (wanted.of_runs().describe(), "a schedule" if has_schedule else "")
        clock = measure_clock(device)
        base = RankInfo(
            rank=rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            target=described.target.value,
            device=described.name,
            arch=described.arch,
            num_cores=count_cores(),
            num_processors=described.num_processors,
            clock=clock,
            probe=measure_probe_cost(device, clock),
            ceilings=kept_ceilings(device),
            recorded_part=wanted.of_launches().describe(),
            recorded_launches=", ".join(filter(None, chosen_by)),
        )
        return RankFacts(base)

    @property
    def ticks_per_cycle(self) -> float:
        """Ticks of the real-time clock in one of the clock that chunks hold."""
        return self.base.clock.ticks_per_second / self.base.cycles_per_second

    def info(self, decoder: Decoder, rows: Sequence[Launch] = (), cut_short: str = "") -> RankInfo:
        """What is known of the rank now, with these launches."""
        return info_of(self.base, decoder, rows, self.notes, cut_short)


def info_of(
    base: RankInfo,
    decoder: Decoder,
    rows: Sequence[Launch],
    notes: Sequence[str],
    cut_short: str,
) -> RankInfo:
    """`base` with what was decoded of the rank, these launches and these notes."""
    return msgspec.structs.replace(
        base,
        arena=decoder.tally.arena_use(),
        counts=decoder.tally.counts,
        regions=decoder.region_ids.merged(),
        launches=tuple(rows),
        notes=tuple(notes),
        cycle_clock=decoder.cycle_clock,
        losses=decoder.tally.losses(),
        cut_short=cut_short,
    )
