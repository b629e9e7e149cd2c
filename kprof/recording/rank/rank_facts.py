"""What a capture says about a rank besides its events: where it ran, its clock, its notes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from kprof.capture.manifest import KernelResources, Launch, RankInfo
from kprof.devices.resources import of_launches
from kprof.recording.launches.wanted import EVERYTHING, Wanted

if TYPE_CHECKING:
    from kprof.recording.decoding.decode import Decoder


class CoreTime(NamedTuple):
    """How long a thread ran, and how long it was ready to run while others had its core."""

    ran_ns: int = 0
    waited_ns: int = 0

    @staticmethod
    def of(thread_id: int) -> CoreTime:
        """Of a thread of this process so far; zeros where the system does not say."""
        try:
            words = Path(f"/proc/self/task/{thread_id}/schedstat").read_text().split()
            return CoreTime(int(words[0]), int(words[1]))
        except (OSError, ValueError, IndexError):
            return CoreTime()


@dataclass(frozen=True)
class RankFacts:
    """What is known of a rank before it records (`base`), and what comes later: sentences, and the
    core time of the thread that opened the recorder."""

    base: RankInfo
    notes: list[str] = field(default_factory=list)
    thread_id: int = field(default_factory=threading.get_native_id)
    begin: CoreTime = field(default_factory=lambda: CoreTime.of(threading.get_native_id()))

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
            nic=described.nic,
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
        base = self.base
        if base.target == "cpu":
            now = CoreTime.of(self.thread_id)
            base = msgspec.structs.replace(
                base,
                ran_ns=max(now.ran_ns - self.begin.ran_ns, 0),
                waited_for_core_ns=max(now.waited_ns - self.begin.waited_ns, 0),
            )
        names = dict.fromkeys(row.kernel for row in rows)
        found = (KernelResources(name, *each) for name in names for each in of_launches(name))
        base = msgspec.structs.replace(base, kernels=tuple(found))
        return info_of(base, decoder, rows, self.notes, cut_short)


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
