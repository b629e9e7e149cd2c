"""What of a run is recorded: windows of calls, ranks, blocks, warps and samples of tracks; and
schedules, which are told of each step.

    --skip 100 --calls 20 --every 1000 --times 5      calls 100..119, 1100..1119, ... 4100..4119

A call is a launch of a kernel; each kernel counts its own. Needs no numpy: a workload that records
nothing imports it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final

from kprof.errors import RecorderError
from kprof.recording.launches.launch_buffer import MAX_SIZE
from kprof.recording.launches.whole import whole

# The hash that chooses a sample has 16 bits.
MAX_SAMPLE: Final = 1 << 16
# Switches name warps in 32 bits; a block of 1024 threads has no more.
MAX_WARPS: Final = 32
# Triton's buffers have 19 bits for it.
MAX_FIRST_BLOCK: Final = (1 << 19) - 1
# The fields of Wanted with a number for each of what is recorded.
_SEVERAL: Final = ("ranks", "blocks", "warps")
Schedule = Callable[[int], bool]


@dataclass(frozen=True)
class Wanted:
    """What is recorded, by default everything; raises RecorderError for what contradicts itself.

    Of each kernel `calls` launches (0: all) after the first `skip`, again after `every` launches
    (0: once), `times` times (0: without end). Only these `ranks`, `blocks` (without gaps) and
    `warps`; empty means all. Tracks of whole blocks belong to every warp. One track in `sample` (a
    power of two; 0: all) is recorded, chosen by its block and warp, in every launch the same.
    Replays of graphs are not counted as calls: those are chosen by a schedule.
    """

    skip: int = 0
    calls: int = 0
    every: int = 0
    times: int = 0
    ranks: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    warps: tuple[int, ...] = ()
    sample: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _plain(value))
        for fault in self._faults():
            raise RecorderError(fault)

    def _faults(self) -> Sequence[str]:
        fields = asdict(self)
        faults = [
            f"{name} is {value!r}: give whole numbers, like (0, 1)"
            for name, value in fields.items()
            if name in _SEVERAL and not _are_whole(value)
        ]
        faults += [
            f"{name} is {value!r}: give a whole number"
            for name, value in fields.items()
            if name not in _SEVERAL and not isinstance(value, int)
        ]
        if faults:
            return faults
        faults = [
            f"{name} is {value}: give 0 or more"
            for name, value in fields.items()
            if (min(value, default=0) if name in _SEVERAL else value) < 0
        ]
        if self.every and not self.calls:
            faults.append(f"every {self.every} calls, but not how many of them: give calls, too")
        if self.times and not self.every:
            faults.append(f"{self.times} times, but not how far apart: give every, too")
        if self.every and self.calls > self.every:
            faults.append(
                f"windows of {self.calls} calls overlap when one begins every {self.every}; "
                "give fewer calls or a larger every"
            )
        if self.blocks and self.blocks[-1] - self.blocks[0] != len(self.blocks) - 1:
            faults.append("the blocks have gaps; give one range, like 0-15")
        if self.blocks and self.blocks[-1] >= MAX_SIZE:
            faults.append(f"block {self.blocks[-1]}: a launch has blocks 0 to {MAX_SIZE - 1}")
        if self.sample & (self.sample - 1) or self.sample > MAX_SAMPLE:
            faults.append(
                f"a sample of 1/{self.sample}: give 1/2, 1/4, 1/8 and so on to 1/{MAX_SAMPLE}"
            )
        if self.warps and max(self.warps) >= MAX_WARPS:
            faults.append(f"warp {max(self.warps)}: a block has warps 0 to {MAX_WARPS - 1}")
        return faults

    @property
    def has_window(self) -> bool:
        """Whether some calls are left out."""
        return bool(self.skip or self.calls)

    @property
    def has_filter(self) -> bool:
        """Whether tracks of a launch are left out."""
        return bool(self.blocks or self.warps or self.sample > 1)

    def of_launches(self) -> Wanted:
        """What it leaves out of the launches that are recorded: blocks, warps, samples."""
        return Wanted(blocks=self.blocks, warps=self.warps, sample=self.sample)

    def of_runs(self) -> Wanted:
        """What it leaves out of a run: ranks and launches."""
        return replace(self, blocks=(), warps=(), sample=0)

    def reserved_of(self, num_blocks: int, tracks_per_block: int) -> tuple[int, int, int] | None:
        """What to reserve so that exactly the wanted tracks of a launch have a chunk of their own:
        first block, number of blocks, and tracks of each, the first ones.

        None where reservations cannot express the filter: samples, and warps other than the first
        ones.
        """
        first_warps = tuple(range(len(self.warps)))
        first_block = self.blocks[0] if self.blocks else 0
        if self.sample > 1 or self.warps != first_warps or first_block > MAX_FIRST_BLOCK:
            return None
        end_block = min(self.blocks[-1] + 1, num_blocks) if self.blocks else num_blocks
        num_tracks = min(tracks_per_block, len(self.warps) or tracks_per_block)
        return first_block, max(0, end_block - first_block), num_tracks

    def has_rank(self, rank: int) -> bool:
        """Whether anything of this rank is recorded."""
        return not self.ranks or rank in self.ranks

    def has_call(self, ordinal: int) -> bool:
        """Whether the launch is recorded that comes after so many of its kernel."""
        after = ordinal - self.skip
        if after < 0 or not self.calls:
            return after >= 0
        window, place = divmod(after, self.every) if self.every else (0, after)
        return place < self.calls and (not self.times or window < self.times)

    def describe(self) -> str:
        """The options that were given, like `--skip 100 --blocks 0-15`."""
        given = {name: value for name, value in asdict(self).items() if value}
        texts = {
            name: _numbers(value) if name in _SEVERAL else str(value)
            for name, value in given.items()
        }
        if self.sample:
            texts["sample"] = f"1/{self.sample}"
        return " ".join(f"--{name} {text}" for name, text in texts.items())


def _plain(value: object) -> object:
    """A whole number, or several in their order and each once, as integers of Python; what is
    neither as it is."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        number = whole(value)
        return value if number is None else number
    numbers = [whole(each) for each in value]
    found = {number for number in numbers if number is not None}
    return value if None in numbers else tuple(sorted(found))


def _are_whole(numbers: object) -> bool:
    return isinstance(numbers, tuple) and all(isinstance(each, int) for each in numbers)


def _numbers(numbers: Sequence[int]) -> str:
    """`0-15` where there are no gaps, else `0,3`."""
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


EVERYTHING: Final = Wanted()


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0
) -> Schedule:
    """Which steps are recorded, as torch.profiler.schedule has it: `recorder.step()` ends each of
    them.

    After `skip_first` steps, `wait + warmup` steps are not recorded and `active` steps are,
    `repeat` times over (0: without end). Nothing needs to warm up here: `warmup` is there so that
    one schedule serves both profilers. Raises RecorderError for numbers that are negative or not
    whole, and for a schedule without an active step.
    """
    numbers = {
        "wait": wait,
        "warmup": warmup,
        "active": active,
        "repeat": repeat,
        "skip_first": skip_first,
    }
    for name, value in numbers.items():
        number = whole(value)
        if number is None or number < (name == "active"):
            least = "1 or more" if name == "active" else "0 or more"
            raise RecorderError(f"a schedule with {name}={value!r}: give a whole number, {least}")
    length = wait + warmup + active

    def is_active(step: int) -> bool:
        cycle, place = divmod(step - skip_first, length)
        return step >= skip_first and place >= wait + warmup and not (repeat and cycle >= repeat)

    return is_active


def why_nothing(
    wanted: Wanted,
    rank: int,
    num_asked: int,
    num_outside: int,
    recorded_blocks: Sequence[int],
    num_steps: int | None,
) -> str:
    """Why a rank has no events, so that nobody takes it for a quiet one; empty where its kernels
    had none.

    It launched `num_asked` times, and the window of calls left out `num_outside` of these.
    `recorded_blocks` has the blocks of each launch with a buffer, not counting graphs; 0 where that
    is unknown. `num_steps` is what a schedule has counted, None without a schedule.
    """
    if not wanted.has_rank(rank):
        return f"rank {rank} is not among the ranks to record"
    if not num_asked:
        return (
            "no kernel was launched through this recorder; a graph that was captured before "
            "the recorder was opened records nothing, so capture it afterwards"
        )
    if recorded_blocks:
        return _why_no_tracks(wanted, recorded_blocks)
    if num_outside:
        return f"nothing of this run is among what was to be recorded ({wanted.describe()})"
    if num_steps is not None:
        return _why_no_step(num_steps)
    if wanted.has_filter:
        return f"nothing of this run is among what was to be recorded ({wanted.describe()})"
    return ""


def _why_no_tracks(wanted: Wanted, recorded_blocks: Sequence[int]) -> str:
    """Which filter left nothing of the launches; empty without a filter."""
    if not wanted.has_filter:
        return ""
    most, num_launches = max(recorded_blocks), len(recorded_blocks)
    is_beyond = wanted.blocks and 0 < most <= wanted.blocks[0]
    filters = Wanted(blocks=wanted.blocks) if is_beyond else wanted.of_launches()
    several = "" if num_launches == 1 else "es"
    size = f" of up to {most} blocks" if most else ""
    return f"{filters.describe()} leaves nothing of {num_launches} launch{several}{size}"


def _why_no_step(num_steps: int) -> str:
    if num_steps:
        return f"the schedule left out everything in the {num_steps} steps of this run"
    return (
        "the schedule left out everything, because this run never ended a step; "
        "call recorder.step() after each"
    )
