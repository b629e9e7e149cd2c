"""`kprof record`: run a workload and keep what its kernels recorded."""

from __future__ import annotations

import contextlib
import functools
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer
from typer import Argument, Option

from kprof.errors import NothingRecordedError, RecorderError, SelectionError, describe_error
from kprof.hangs import DEFAULT_HANG_AFTER_S
from kprof.on_use import metadata
from kprof.recording.finishing.outcome import describe_exit
from kprof.recording.launches.wanted import Wanted
from kprof.recording.retention.retention import Retention
from kprof.trace.selection import parse_numbers, parse_size_bytes
from kprof_cli.any_kernel import record_any_kernel
from kprof_cli.info import describe_overhead
from kprof_cli.options import CAPTURE_OUTPUT, command, defaults_of
from kprof_cli.output import note, program, say
from kprof_cli.summary import summary_lines

if TYPE_CHECKING:
    from kprof.recording.launcher.record import Recording, RecordRequest


_RING_SIZE = "64MiB"
_ARENA_SIZE = "64MiB"
# Programs that torch has compiled launch more than their users know.
_ARENA_SIZE_OF_INDUCTOR = "512MiB"
# Of the time, for writing events while such a program runs.
_SHARE_OF_INDUCTOR = 0.05


# Where the arena is.
_Place = Literal["device", "host"]

_wanted = functools.partial(Option, rich_help_panel="What is recorded")


@command(
    workload=Argument(
        metavar="CMD", help="The command to record, as you would start it without kprof."
    ),
    output=CAPTURE_OUTPUT,
    nproc=Option(help="Start CMD on this many ranks with torchrun."),
    arena_size=Option(
        help="Memory for events on each rank.",
        show_default=f"{_ARENA_SIZE}; with --inductor {_ARENA_SIZE_OF_INDUCTOR} and --drain",
    ),
    strict=Option(
        "--strict",
        help="Exit with 1 if ranks, calls or events were lost, cut short or clamped, or if filters "
        "left nothing.",
    ),
    measure_overhead=Option(
        "--measure-overhead",
        help="Run CMD four times (recording off, on, on, off) and report the cost of recording.",
    ),
    inductor=Option(
        "--inductor",
        help="Also record the Triton kernels of torch.compile, with one span per program.",
    ),
    nccl=Option("--nccl", help="Also record the collectives of NCCL or RCCL, with any framework."),
    any_kernel=Option(
        "--any-kernel",
        help="Record the lifetime of every warp of every kernel, instrumented or not, with "
        "NVIDIA's run-iket.",
    ),
    kernels=_wanted(metavar="GLOB", help="With --any-kernel: keep kernels with such names only."),
    drain=Option(
        "--drain", help="Write events to disk while CMD runs, for runs that do not fit the arena."
    ),
    ring=Option(
        metavar="SIZE",
        help="Keep only the latest events, SIZE per rank; send kprof SIGUSR1 to dump them. "
        "host or host:SIZE implies --arena host.",
    ),
    arena=Option(
        help="Where GPUs store events. Host memory is slower, but survives a process that is "
        "slower.",
    ),
    slower_than=Option(
        min=0, metavar="K", help="Dump the ring when a call takes K times the median (0: never)."
    ),
    keep_slowest=Option(metavar="N", help="Keep only the N slowest calls, however long the run."),
    hang_after=Option(
        min=0,
        metavar="SECONDS",
        help="Report who waits for whom after SECONDS without progress (0: never).",
    ),
    skip=_wanted(help="Skip the first N calls of each kernel."),
    calls=_wanted(help="Record the next N calls (0: all)."),
    every=_wanted(help="Repeat this window every N calls (0: never)."),
    times=_wanted(help="Repeat the window N times (0: forever)."),
    ranks=_wanted(help="Record only these ranks, like 0,3."),
    blocks=_wanted(help="Record only these blocks, like 0-15."),
    warps=_wanted(
        help="Record only these warps of each block, like 0. Tracks of blocks are always recorded."
    ),
    sample=_wanted(
        metavar="1/N", help="Record one track in N (a power of two), the same ones in every launch."
    ),
)
def record(
    workload: list[str],
    output: Path = Path("run.kprof"),
    nproc: int | None = None,
    arena_size: str | None = None,
    strict: bool = False,
    measure_overhead: bool = False,
    inductor: bool = False,
    nccl: bool = False,
    any_kernel: bool = False,
    kernels: str | None = None,
    force: bool = False,
    drain: bool = False,
    ring: str | None = None,
    arena: _Place = "device",
    slower_than: float = 0.0,
    keep_slowest: int | None = None,
    hang_after: float = DEFAULT_HANG_AFTER_S,
    skip: int = 0,
    calls: int = 0,
    every: int = 0,
    times: int = 0,
    ranks: str | None = None,
    blocks: str | None = None,
    warps: str | None = None,
    sample: str | None = None,
) -> None:
    """Record a command and write a capture. Exits with the command's exit code.

    Press Ctrl-C to interrupt the command and keep what it recorded. Press again to save what hung
    ranks recorded and kill them.
    """
    from kprof.recording.launcher.record import RecordRequest

    _run_any_kernel(locals())
    is_gentle = inductor and (arena_size, ring, keep_slowest, drain) == (None, None, None, False)
    request = RecordRequest(
        command=tuple(workload),
        output=output,
        num_procs=nproc,
        arena_bytes=_arena_bytes(arena_size, inductor),
        force=force,
        measure_overhead=measure_overhead,
        startup_dir=_inductor_startup_dir() if inductor else None,
        nccl_plugin=_nccl_plugin(measure_overhead) if nccl else None,
        hang_after_s=hang_after,
        retention=_retention(drain, ring, arena, slower_than, keep_slowest, is_gentle=is_gentle),
        wanted=_choose(skip, calls, every, times, sample, ranks=ranks, blocks=blocks, warps=warps),
    )
    raise typer.Exit(_run(request, strict=strict, is_foreign=(inductor or nccl) and not strict))


def _run_any_kernel(given: dict[str, Any]) -> None:
    """End the command here if it records any kernel; `given` are the parameters of `record`."""
    if given["any_kernel"] or given["kernels"]:
        defaults = defaults_of(record)
        raise typer.Exit(record_any_kernel({name: given[name] for name in defaults}, defaults))


def _run(request: RecordRequest, *, strict: bool, is_foreign: bool) -> int:
    """The exit code of `kprof record`. A foreign workload may have nothing to record."""
    try:
        recording = record_and_summarise(replace(request, is_foreign=is_foreign))
    except NothingRecordedError as error:
        if not is_foreign:
            raise
        # The workload knows nothing of kprof, and whoever runs it wants its exit code.
        note(str(error))
        return 0
    if strict and recording.losses and recording.exit_code == 0:
        return 1
    return recording.exit_code


@command(
    path=Argument(
        metavar="DIR", help="What a recording left behind, such as run.kprof.unfinished."
    ),
    output=Option("-o", "--output", help="The capture to write.", show_default="run.kprof"),
)
def recover(path: Path, output: Path | None = None, force: bool = False) -> None:
    """Make a capture from an unfinished recording.

    It holds what the ranks had written when they or kprof were killed, and says what is missing.
    """
    from kprof.capture.losses import describe_losses
    from kprof.recording.finishing.recover import recover as make_capture

    capture = make_capture(path, output, force=force)
    for loss in describe_losses(capture.manifest):
        note(loss)
    say(f"capture  {capture.path}")
    say(f"next     {program()} report {capture.path}")


def record_and_summarise(request: RecordRequest) -> Recording:
    """Record with a status line on a terminal, and print the six lines that end a recording."""
    from kprof.recording.launcher.record import record as run_recording

    began_s = time.time()
    recording = run_recording(request, on_start=lambda: _announce(request), say=note)
    if recording.exit_code:
        interrupted = "was interrupted and " if recording.was_interrupted else ""
        ending = interrupted + describe_exit(recording.exit_code)
        note(f"the workload {ending}; what it recorded is kept")
    for loss in (*recording.losses, *_by_flight_recorder(request, began_s)):
        note(loss)
    if request.measure_overhead:
        note(f"recording: {describe_overhead(recording.capture.manifest)}")
    try:
        for line in summary_lines(recording):
            say(line)
    except Exception as error:
        # The capture is written and the workload's exit code counts, whatever cannot be said about
        # it.
        note(f"wrote {recording.capture.path}, but {describe_error(error)}")
    return recording


def _by_flight_recorder(request: RecordRequest, began_s: float) -> list[str]:
    """What PyTorch says of collectives that hung, where that was recorded, too."""
    if request.nccl_plugin is None:
        return []
    from kprof.importers.formats.flight_recorder import found_since

    return found_since(began_s)


@contextlib.contextmanager
def _typed() -> Iterator[None]:
    """Options that contradict each other are what was typed wrong, not a recorder's failure."""
    try:
        yield
    except RecorderError as error:
        raise SelectionError(str(error)) from error


@_typed()
def _retention(
    drain: bool,
    ring: str | None,
    arena: _Place,
    slower_than: float,
    keep_slowest: int | None,
    *,
    is_gentle: bool,
) -> Retention:
    """What to keep; `ring` is a size, or "host" or "host:SIZE" for --arena host, too. One that
    `is_gentle` drains for a share of the time."""
    place, _, size = (ring or "").partition(":")
    is_host_ring = place == "host"
    ring = (size or _RING_SIZE) if is_host_ring else ring
    return Retention(
        drain or is_gentle,
        0 if ring is None else _ring_bytes(ring),
        slower_than,
        _slowest(keep_slowest),
        is_host_ring or arena == "host",
        _SHARE_OF_INDUCTOR if is_gentle else 1.0,
    )


@_typed()
def _choose(
    skip: int, calls: int, every: int, times: int, sample: str | None, **texts: str | None
) -> Wanted:
    """What to record; `texts` are the numbers of the options --ranks, --blocks and --warps."""
    only = {
        name: parse_numbers(text, f"--{name}") for name, text in texts.items() if text is not None
    }
    return Wanted(skip, calls, every, times, sample=_parse_sample(sample), **only)


def _arena_bytes(size: str | None, inductor: bool) -> int:
    usual = _ARENA_SIZE_OF_INDUCTOR if inductor else _ARENA_SIZE
    return parse_size_bytes(size or usual, "--arena-size")


def _ring_bytes(size: str) -> int:
    ring_bytes = parse_size_bytes(size, "--ring")
    if not ring_bytes:
        raise SelectionError(
            f"--ring {size} keeps no events; give a size like {_RING_SIZE}, or omit the option"
        )
    return ring_bytes


def _slowest(number: int | None) -> int:
    """How many of the slowest calls to keep; 0 where the option was not given."""
    if number == 0:
        raise SelectionError(
            "--keep-slowest 0 keeps no calls; give a number above 0, or omit the option"
        )
    return number or 0


def _parse_sample(text: str | None) -> int:
    """`1/64` as 64; raises SelectionError."""
    if text is None:
        return 0
    if not text.startswith("1/") or not text[2:].isdigit() or not int(text[2:]):
        raise SelectionError(f"--sample {text!r} cannot be read; write it like 1/64")
    return int(text[2:])


def _inductor_startup_dir() -> Path:
    """Raises TargetError for a Triton or a torch that --inductor was not tested with."""
    from kprof.triton.inductor import STARTUP_DIR, check_torch

    check_torch(metadata.version("torch"))
    return STARTUP_DIR


def _nccl_plugin(measure_overhead: bool) -> Path:
    """Raises SelectionError, and BuildError where the plugin cannot be compiled."""
    from kprof.nccl.plugin import build_plugin

    if measure_overhead:
        raise SelectionError("--measure-overhead times kernels of kprof; leave --nccl out")
    return build_plugin()


def _announce(request: RecordRequest) -> None:
    """One line, on a terminal only: anything that moves would garble the workload's own output."""
    if sys.stderr.isatty():
        ranks = f" in {request.num_procs} ranks" if request.num_procs else ""
        note(
            f"recording {shlex.join(request.command)}{ranks} into {request.output}; "
            "Ctrl-C stops it and keeps what was recorded"
        )
