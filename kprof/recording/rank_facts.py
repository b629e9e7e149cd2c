"""What a capture says about a rank besides its events: where it ran, its clock, its notes."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kprof.capture.manifest import Ceilings, ClockInfo, Launch, ProbeCost, RankInfo

if TYPE_CHECKING:
    from kprof.devices.targets import DeviceDescription
    from kprof.recording.decode import Decoder


@dataclass(frozen=True)
class RankFacts:
    """What is known of a rank before it records; `notes` are sentences that come later."""

    rank: int
    device: DeviceDescription
    clock: ClockInfo
    probe: ProbeCost
    ceilings: Ceilings | None
    recorded_part: str = ""
    notes: list[str] = field(default_factory=list)

    @classmethod
    def measure(cls, rank: int, device: str, recorded_part: str = "") -> RankFacts:
        """Look at the device; takes some milliseconds. Raises TargetError and ClockError."""
        from kprof.clocks.calibration import measure_clock
        from kprof.devices.targets import describe_device
        from kprof.recording.ceilings import kept_ceilings
        from kprof.recording.probe_cost import measure_probe_cost

        described = describe_device(device)
        clock = measure_clock(device)
        probe = measure_probe_cost(device, clock)
        return cls(rank, described, clock, probe, kept_ceilings(device), recorded_part)

    def info(self, decoder: Decoder, rows: Sequence[Launch] = (), cut_short: str = "") -> RankInfo:
        """What is known of the rank now, with these launches."""
        from kprof.devices.targets import count_cores

        return RankInfo(
            rank=self.rank,
            host=socket.gethostname(),
            pid=os.getpid(),
            target=self.device.target.value,
            device=self.device.name,
            arch=self.device.arch,
            num_cores=count_cores(),
            num_processors=self.device.num_processors,
            clock=self.clock,
            arena=decoder.tally.arena_use(),
            counts=decoder.tally.counts,
            regions=decoder.region_ids.merged(),
            launches=tuple(rows),
            notes=tuple(self.notes),
            probe=self.probe,
            cycle_clock=decoder.cycle_clock,
            ceilings=self.ceilings,
            losses=decoder.tally.losses(),
            cut_short=cut_short,
            recorded_part=self.recorded_part,
        )
