"""Lifetimes of all warps of all kernels of a program that nobody instrumented, with NVIDIA's IKET.

`run-iket profile --warp-trace` patches the entry and exit of every kernel that is loaded. It is a
tool of its own, under NVIDIA's licence, which users install; kprof starts it once per rank and
makes a capture of its JSON. It takes the place of CUPTI and of any other injection into CUDA.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kprof.capture.directory import refuse_output
from kprof.errors import ForeignFormatError, WorkloadError
from kprof.importers.foreign import ForeignEvents, Guess, ImportSummary, ReadOptions
from kprof.importers.formats import iket
from kprof.importers.writing import write_foreign
from kprof.recording.launcher.record import launch_arguments, module_command
from kprof.recording.launcher.runs import run_once

_TOOL: Final = "run-iket"
_PACKAGE: Final = "nvidia-cutlass-dsl-libs-base"
_INJECTION: Final = "CUDA_INJECTION64_PATH"
_MODULE: Final = "iket.cli.main"
_RANK: Final = "rank-"
_FILES: Final = "iket_pid_*.trace.json"


@dataclass(frozen=True)
class Chosen:
    """Which launches are kept: of kernels with names like `pattern`, per kernel and rank.

    The first `skip` are left out, and `calls` are kept (0: all).
    """

    pattern: str = "*"
    skip: int = 0
    calls: int = 0


@dataclass(frozen=True)
class Wish:
    """What to run and where to write it. `num_procs` None starts the command once, as it is."""

    command: tuple[str, ...]
    output: Path
    num_procs: int | None = None
    chosen: Chosen = Chosen()
    force: bool = False


def record(wish: Wish) -> tuple[ImportSummary, int]:
    """Run the command under run-iket; returns the capture's summary and the exit code.

    Raises WorkloadError (no run-iket, or it refuses), OutputExistsError, and ForeignFormatError
    for traces that cannot be read, which are then kept.
    """
    refuse_output(wish.output, wish.force)
    tool = _tool(os.environ)
    folder = Path(tempfile.mkdtemp(prefix=f"{wish.output.name}.iket-", dir=_beside(wish.output)))
    exit_code = _run(_arguments(tool, folder, wish), folder)
    _write_what_is_missing(tool, folder)
    files = _files(folder, is_one_per_rank=wish.num_procs is not None)
    if not files:
        shutil.rmtree(folder, ignore_errors=True)
        raise WorkloadError(
            f"{_TOOL} ended with code {exit_code} and wrote no trace (its own words are above); it "
            "needs an NVIDIA GPU of SM90 or later, a kernel to record, and no other tool on CUPTI",
            exit_code=exit_code or 1,
        )
    try:
        summary = _import(files, folder, wish)
    except ForeignFormatError as error:
        raise ForeignFormatError(f"{error} (the files of {_TOOL} are kept in {folder})") from error
    shutil.rmtree(folder, ignore_errors=True)
    return summary, exit_code


def _tool(environment: Mapping[str, str]) -> list[str]:
    """The command that is run-iket; raises WorkloadError where it cannot run."""
    if other := environment.get(_INJECTION):
        raise WorkloadError(
            f"{_INJECTION} names {other}, and {_TOOL} needs that variable; unset it, and record "
            "one thing after the other"
        )
    if found := shutil.which(_TOOL, path=environment.get("PATH")):
        return [found]
    # Beside an interpreter that is not activated, or unpacked into PYTHONPATH.
    spec = importlib.util.find_spec(_MODULE.partition(".")[0])
    folders = spec.submodule_search_locations if spec is not None else None
    if any(Path(folder, "cli", "main.py").is_file() for folder in folders or ()):
        return module_command(_MODULE)
    raise WorkloadError(
        f"--any-kernel needs NVIDIA's {_TOOL}, which is neither in PATH nor a module of this "
        f"Python; pip install {_PACKAGE} (3 MB, under NVIDIA's licence, for GPUs of SM90 and later)"
    )


def _beside(output: Path) -> Path:
    parent = output.absolute().parent
    if not parent.is_dir():
        raise WorkloadError(f"there is no folder {parent}; make it, or choose another -o")
    return parent


def _arguments(tool: Sequence[str], folder: Path, wish: Wish) -> list[str]:
    """run-iket around the command, or around that of each rank, whose folder has its number."""
    if wish.num_procs is None:
        return _profile(tool, folder / f"{_RANK}0", wish.command)
    rank = [*module_command("kprof.importers.any_kernel"), str(folder), *wish.command]
    return launch_arguments(rank, wish.num_procs)


def _profile(tool: Sequence[str], folder: Path, command: Sequence[str]) -> list[str]:
    # run-iket takes the folder for a part of the command where it follows the word "profile".
    options = ("--output-dir", str(folder), "profile", "--warp-trace", "--postprocess", "json")
    return [*tool, *options, "--", *launch_arguments(command, None)]


def _write_what_is_missing(tool: Sequence[str], folder: Path) -> None:
    """run-iket makes no JSON of a command that fails, but it leaves the data to make it of."""
    for of_rank in sorted(folder.glob(f"{_RANK}*")):
        if (of_rank / "iket").is_dir() and not any(of_rank.glob(_FILES)):
            _run([*tool, "postprocess", "--format", "json", str(of_rank)], folder)


def _run(arguments: Sequence[str], folder: Path) -> int:
    """The exit code, 128 + n for signal n. Signals that kprof gets go to the command."""
    return run_once(arguments, dict(os.environ), folder).exit_code


def _files(folder: Path, *, is_one_per_rank: bool) -> dict[int, Path]:
    """The file of each rank: of its main process, which writes most, or of each process."""
    found = sorted(folder.rglob(_FILES), key=lambda path: (len(path.name), path.name))
    if not is_one_per_rank:
        return dict(enumerate(found))
    by_size = sorted(found, key=lambda path: path.stat().st_size)
    return {int(path.parent.name.removeprefix(_RANK)): path for path in by_size}


def _import(files: Mapping[int, Path], folder: Path, wish: Wish) -> ImportSummary:
    ranks = sorted(files)
    events = iket.FORMAT.read([files[rank] for rank in ranks], ReadOptions())
    events = replace(events, rank=np.array(ranks, dtype=np.int64)[events.rank])
    if num_others := len(list(folder.rglob(_FILES))) - len(files):
        left_out = {"files of other processes of a rank": num_others}
        events = replace(events, left_out={**events.left_out, **left_out})
    if wish.num_procs is None and len(ranks) > 1:
        rank = Guess("the order of process ids")
        events = replace(events, taken={**events.taken, "rank": rank})
    summary = write_foreign(
        _chosen(events, wish.chosen),
        wish.output,
        origin=str(folder),
        regions=None,
        bound_ns=None,
        force=wish.force,
        command=wish.command,
    )
    return replace(summary, kind="iket")


def _chosen(events: ForeignEvents, chosen: Chosen) -> ForeignEvents:
    """The launches to keep, and how many events of others are left out."""
    launch = np.broadcast_to(events.launch, len(events))
    keep = np.zeros(len(events), dtype=bool)
    for rank in np.unique(events.rank):
        seen: Counter[str] = Counter()
        for number in np.unique(launch[events.rank == rank]).tolist():
            kernel = events.kernels[number]
            place, seen[kernel] = seen[kernel] - chosen.skip, seen[kernel] + 1
            is_one = place >= 0 and (not chosen.calls or place < chosen.calls)
            if is_one and fnmatch.fnmatchcase(kernel, chosen.pattern):
                keep |= (events.rank == rank) & (launch == number)
    if len(events) and not keep.any():
        names = ", ".join(sorted({name[:40] for name in events.kernels.values()})[:8])
        raise ForeignFormatError(
            f"no launch is kept by --kernels {chosen.pattern}, --skip and --calls; kernels: {names}"
        )
    return _rows(events, keep)


def _rows(events: ForeignEvents, keep: NDArray[np.bool_]) -> ForeignEvents:
    columns = ("rank", "block", "name", "start_ns", "duration_ns", "warp", "launch", "hw_id")
    others = len(events) - int(keep.sum())
    left_out = {"events of launches that were not asked for": others} if others else {}
    return replace(
        events,
        **{  # type: ignore[arg-type]
            name: np.broadcast_to(getattr(events, name), len(events))[keep] for name in columns
        },
        left_out={**events.left_out, **left_out},
    )


def _become_rank(folder: str, *command: str) -> None:
    """Replace this process, one of torchrun's, by run-iket around the command."""
    own = Path(folder) / f"{_RANK}{int(os.environ['RANK'])}"
    arguments = _profile(_tool(os.environ), own, command)
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    _become_rank(*sys.argv[1:])
