"""What an event costs on a GPU: no profiling, null buffer, kprof per block and per warp, and the classic scheme.

    python -m benchmarks.probe_overhead [--repeats 100] [--output FILE]

All schemes are interleaved within every repeat, timed by events on the GPU; medians and spreads over the repeats.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import torch

from kprof.arena import Arena
from kprof.build import BuildOptions, load_library
from kprof.decode import ArenaState
from kprof.recording import LaunchBuffer
from kprof.targets import target_of_device

NUM_TOKENS = 8192
TOKEN_BYTES = 14 * 1024
THREADS = 256
BLOCKS_PER_SM = (2, 4)
TIGHT_WARPS_PER_SM = 8
TIGHT_EVENTS = 2000
ARENA_BYTES = 256 << 20
SLEEP_CYCLES = 200_000
NUM_WARMUPS = 5
# name: (scheme number of kernel.hip, whether the buffer is null)
SCHEMES = {
    "none": (0, True),
    "null buffer, per warp": (1, True),
    "kprof per block": (2, False),
    "kprof per warp": (1, False),
    "classic": (3, True),
}


@dataclass
class Bench:
    """Everything on the device that the kernels need."""

    library: ctypes.CDLL
    arena: Arena
    classic: torch.Tensor
    source: torch.Tensor
    target: torch.Tensor
    num_sms: int

    def reset(self) -> ArenaState:
        state, _ = self.arena.read()
        self.arena.reset(state)
        self.classic[:1].zero_()
        return state

    def copy(self, name: str, blocks_per_sm: int) -> Callable[[], None]:
        scheme, is_null = SCHEMES[name]
        return lambda: self.check(
            self.library.probe_token_copy(
                scheme, blocks_per_sm * self.num_sms, THREADS, self.target.data_ptr(), self.source.data_ptr(),
                NUM_TOKENS, TOKEN_BYTES // 16, self.classic.data_ptr(),
                self.buffer(is_null, blocks_per_sm * self.num_sms, THREADS // 32 if scheme == 1 else 1), 0,
            )
        )  # fmt: skip

    def tight(self, name: str) -> Callable[[], None]:
        scheme, is_null = SCHEMES[name]
        return lambda: self.check(
            self.library.probe_tight_loop(
                scheme, self.num_sms, 32 * TIGHT_WARPS_PER_SM, self.target.data_ptr(), TIGHT_EVENTS,
                self.classic.data_ptr(),
                self.buffer(is_null, self.num_sms, TIGHT_WARPS_PER_SM if scheme == 1 else 1), 0,
            )
        )  # fmt: skip

    def buffer(self, is_null: bool, num_blocks: int, tracks_per_block: int) -> bytes:
        """What Recorder.launch would hand out: the first chunk of every track reserved."""
        if is_null:
            return LaunchBuffer(0, 0).packed()
        num_tracks = num_blocks * tracks_per_block
        first = self.arena.reserve(num_tracks)
        return LaunchBuffer(self.arena.address, 0, first, tracks_per_block, num_tracks).packed()

    def check(self, error: int) -> None:
        if error:
            raise RuntimeError(f"launch failed with {error}")


def make_bench(device: str) -> Bench:
    options = BuildOptions(target_of_device(device), include_dirs=(Path(__file__).parent,))
    library = load_library(Path(__file__).parent / "kernel.hip", options)
    number, pointer = ctypes.c_uint32, ctypes.c_void_p
    library.probe_token_copy.argtypes = [ctypes.c_int] * 3 + [
        pointer,
        pointer,
        number,
        number,
        pointer,
        ctypes.c_char_p,
        pointer,
    ]
    library.probe_tight_loop.argtypes = [ctypes.c_int] * 3 + [
        pointer,
        number,
        pointer,
        ctypes.c_char_p,
        pointer,
    ]
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    num_events = num_sms * TIGHT_WARPS_PER_SM * TIGHT_EVENTS
    source = torch.randint(0, 255, (NUM_TOKENS * TOKEN_BYTES,), dtype=torch.uint8, device=device)
    classic = torch.zeros(1 + 4 * num_events, dtype=torch.int64, device=device)
    return Bench(
        library, Arena(ARENA_BYTES, device), classic, source, torch.zeros_like(source), num_sms
    )


def time_us(work: Callable[[], None]) -> float:
    """GPU time of what `work` launches. A sleeping kernel goes first: the launches are queued before it ends."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda._sleep(SLEEP_CYCLES)
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def interleaved(
    bench: Bench, works: dict[str, Callable[[], None]], repeats: int
) -> dict[str, list[float]]:
    """Times by scheme; the order rotates from repeat to repeat, so that no scheme always follows the same other one."""
    times: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for repeat in range(repeats + NUM_WARMUPS):
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            bench.reset()
            torch.cuda.synchronize()
            elapsed = time_us(works[name])
            if repeat >= NUM_WARMUPS:
                times[name].append(elapsed)
    return times


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"p25": round(low, 3), "median": round(middle, 3), "p75": round(high, 3)}


def copy_table(bench: Bench, blocks_per_sm: int, repeats: int) -> dict[str, object]:
    times = interleaved(bench, {name: bench.copy(name, blocks_per_sm) for name in SCHEMES}, repeats)
    base = statistics.median(times["none"])
    assert torch.equal(bench.source, bench.target)
    return {
        name: {
            "us": spread(values),
            "slowdown_percent": round(100 * (statistics.median(values) / base - 1), 2),
        }
        for name, values in times.items()
    }


def tight_table(bench: Bench, repeats: int) -> dict[str, object]:
    times = interleaved(bench, {name: bench.tight(name) for name in SCHEMES}, repeats)
    return {
        name: {"ns_per_event": spread([1e3 * us / TIGHT_EVENTS for us in values])}
        for name, values in times.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    bench = make_bench("cuda:0")
    result: dict[str, object] = {
        "device": torch.cuda.get_device_name(0),
        "date_utc": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "command": f"python -m benchmarks.probe_overhead --repeats {arguments.repeats}",
        "tight loop, 8 warps per SM": tight_table(bench, arguments.repeats),
    }
    for blocks_per_sm in BLOCKS_PER_SM:
        result[f"token copy, {blocks_per_sm} blocks per SM"] = copy_table(
            bench, blocks_per_sm, arguments.repeats
        )
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
