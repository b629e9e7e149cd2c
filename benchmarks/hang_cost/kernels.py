"""What calls of still_waiting and announced regions cost kernels on a GPU: in short events, and in waits
that last long."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from benchmarks.harness import interleaved, percent_above, spread
from kprof import abi
from kprof.capture.shared_memory import make_memory, memory_of, remove_memory
from kprof.devices.build import BuildOptions, load_library
from kprof.devices.targets import target_of_device
from kprof.hangs.lines import NUM_LINES, RankWaits
from kprof.recording.arenas.arena import Arena
from kprof.recording.launches.launch_buffer import LaunchBuffer
from kprof.recording.rank.waits import Waits

NUM_TOKENS = 8192
TOKEN_BYTES = 14 * 1024
VECTOR_BYTES = 16
THREADS = 256
WARPS = THREADS // 32
TIGHT_EVENTS = 2000
LONG_WAITS = 20
ARENA_BYTES = 128 << 20
_FOLDER = Path(__file__).parent
_NONE, _SPAN, _MAY_WAIT, _ANNOUNCED = range(4)


@dataclass(frozen=True)
class Scheme:
    """A scheme of kernel.hip, and whether waits that last long have lines."""

    number: int
    has_lines: bool = False


SCHEMES = {
    "none": Scheme(_NONE),
    "span": Scheme(_SPAN),
    "still_waiting, nobody watches": Scheme(_MAY_WAIT),
    "still_waiting, watched": Scheme(_MAY_WAIT, has_lines=True),
    "announced, nobody watches": Scheme(_ANNOUNCED),
    "announced: state lines in device memory": Scheme(_ANNOUNCED, has_lines=True),
}
_UNWATCHED, _WATCHED, _, _TOLD = list(SCHEMES)[2:]
# No event of the announced scheme is a wait.
_WAITING = [name for name, scheme in SCHEMES.items() if scheme.number != _ANNOUNCED]


class Bench:
    """The kernels on one GPU, with an arena that names lines in shared memory and one that does not."""

    def __init__(self, device: str, directory: Path) -> None:
        self._library = load_library(
            _FOLDER / "kernel.hip", BuildOptions(target_of_device(device), include_dirs=(_FOLDER,))
        )
        self._directory = directory
        self._waits = Waits(directory, 0, 1, device, print)
        assert self._waits.lines.num_announced, "no lines"
        self.arenas = {
            has_lines: Arena(
                ARENA_BYTES, device, lines=self._waits.lines if has_lines else abi.NO_LINES
            )
            for has_lines in (False, True)
        }
        self.num_sms = torch.cuda.get_device_properties(device).multi_processor_count
        size = NUM_TOKENS * TOKEN_BYTES
        self.source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
        self.target = torch.zeros_like(self.source)

    def reset(self) -> None:
        """Empty the arenas."""
        for arena in self.arenas.values():
            arena.reset(arena.state())

    def copy(self, scheme: Scheme, blocks_per_sm: int) -> Callable[[], None]:
        """Prepares a launch of the token copy."""
        blocks = blocks_per_sm * self.num_sms
        buffer = self._buffer(scheme, blocks)
        return lambda: _check(
            self._library.run_token_copy(
                scheme.number, blocks, THREADS, _pointer(self.target), _pointer(self.source),
                NUM_TOKENS, TOKEN_BYTES // VECTOR_BYTES, buffer, None,
            )
        )  # fmt: skip

    def tight(self, scheme: Scheme) -> Callable[[], None]:
        """Prepares a launch of the loop of nothing but events."""
        buffer = self._buffer(scheme, self.num_sms)
        return lambda: _check(
            self._library.run_tight_loop(
                scheme.number, self.num_sms, THREADS, _pointer(self.target), TIGHT_EVENTS,
                buffer, None,
            )
        )  # fmt: skip

    def long_waits(self, scheme: Scheme) -> Callable[[], None]:
        """Prepares a launch of waits of 100 us each."""
        blocks = 2 * self.num_sms
        buffer = self._buffer(scheme, blocks)
        return lambda: _check(
            self._library.run_long_waits(scheme.number, blocks, THREADS, LONG_WAITS, buffer, None)
        )

    def num_lines_written(self) -> int:
        """How many lines were opened since they exist; all are closed again."""
        folder = memory_of(self._directory)
        assert folder is not None
        content = (folder / "rank-00000.waits").read_bytes()
        waits = RankWaits.read(folder / "rank-00000.waits")
        assert waits is not None
        assert len(waits.lines) == 0, "a wait was not closed"
        lines = torch.frombuffer(bytearray(content[-_LINES_BYTES:]), dtype=torch.int64)
        return int((lines.view(-1, abi.WAIT_LINE.itemsize // 8)[:, 0] != 0).sum())

    def _buffer(self, scheme: Scheme, blocks: int) -> bytes:
        if scheme.number == _NONE:
            return LaunchBuffer(0, 0).packed()
        return self.arenas[scheme.has_lines].launch_buffer(0, blocks, WARPS).packed()


_LINES_BYTES = NUM_LINES * abi.WAIT_LINE.itemsize


def _pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _check(error: int) -> None:
    if error:
        raise RuntimeError(f"launch failed with {error}")


def measure_kernels(device: str, repeats: int) -> dict[str, object]:
    """Quartiles of every scheme, all interleaved, and what watching adds to the same code."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_memory(directory)
        stack.callback(remove_memory, directory)
        bench = Bench(device, directory)
        tight = _table(bench, bench.tight, repeats, TIGHT_EVENTS / 1e3)
        copies = {
            f"token copy, {blocks} blocks per SM, us": _table(
                bench, partial(bench.copy, blocks_per_sm=blocks), repeats
            )
            for blocks in (2, 4)
        }
        assert torch.equal(bench.source, bench.target)
        num_before = bench.num_lines_written()
        waits = _table(bench, bench.long_waits, repeats, names=_WAITING)
        num_opened = bench.num_lines_written()
    assert num_opened == 2 * bench.num_sms * WARPS, num_opened
    return {
        "device": torch.cuda.get_device_name(device),
        "repeats": repeats,
        "tight loop, 8 warps per SM, ns per event": tight,
        **copies,
        f"{LONG_WAITS} waits of 100 us, 16 warps per SM, us": waits,
        "lines written in short events": num_before,
        "lines written in long waits": num_opened,
    }


def _table(
    bench: Bench,
    work: Callable[[Scheme], Callable[[], None]],
    repeats: int,
    events_per_ns: float = 1.0,
    names: Sequence[str] = tuple(SCHEMES),
) -> dict[str, object]:
    """Quartiles, and the differences that watching and announcing make between alternating launches."""
    works = {name: partial(work, SCHEMES[name]) for name in names}
    times = {
        name: [value / events_per_ns for value in values]
        for name, values in interleaved(works, repeats, bench.reset).items()
    }
    table: dict[str, object] = {name: spread(values) for name, values in times.items()}
    pairs = zip(times[_UNWATCHED], times[_WATCHED], strict=True)
    table["watched less nobody watches"] = spread([watched - off for off, watched in pairs])
    table["watched against span, percent"] = percent_above(times["span"], times[_WATCHED])
    if _TOLD in times:
        pairs = zip(times["span"], times[_TOLD], strict=True)
        table["announced less span"] = spread([told - span for span, told in pairs])
        table["announced against span, percent"] = percent_above(times["span"], times[_TOLD])
    return table
