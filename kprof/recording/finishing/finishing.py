"""Makes a capture from what the ranks wrote, however they and the recording ended."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import kprof
from kprof.capture import directory as capture
from kprof.capture.claims import (
    events_written,
    launch_counts,
    leave_message,
    ranks_in_use,
    ranks_that_told,
    read_messages,
    unrecorded_launches,
)
from kprof.capture.files import reading
from kprof.capture.journal import Begun, journal_path, read_journal
from kprof.capture.losses import (
    NO_LAUNCH_LOST,
    GaveUp,
    count_launches,
    launches_lost,
    name_ranks,
    sentence_of,
)
from kprof.capture.manifest import FORMAT_VERSION, Alignment, Manifest, RankInfo
from kprof.capture.names import rank_files
from kprof.capture.parts import (
    SAVED,
    damaged_parts,
    num_kept_events,
    ranks_with_parts,
    recover_rank,
)
from kprof.capture.set_aside import set_aside
from kprof.capture.started import read_ranks_started
from kprof.errors import (
    CaptureError,
    KprofError,
    NothingRecordedError,
    OutputExistsError,
    UnfinishedError,
    WorkloadError,
    describe_error,
)
from kprof.nccl.capture import collect
from kprof.recording.finishing.numbering import number_replays
from kprof.recording.finishing.open_spans import keep_hang, unseen_waits
from kprof.recording.finishing.outcome import Outcome, describe_exit
from kprof.recording.finishing.salvage import leave_to_another, salvage
from kprof.recording.retention.keeping import NEVER_CLOSED

HOW_TO_RECORD: Final = "call kprof.recorder() in every rank and pass its buffer to the kernels"


def make_manifest(
    directory: Path, begun: Begun, outcome: Outcome | None, advice: str = HOW_TO_RECORD
) -> Manifest:
    """The manifest of an unfinished directory. Raises WorkloadError if no rank left anything to
    keep; with `advice` where none had a recorder.

    Ranks that wrote events but never finished are recovered. `outcome` is None if it is unknown how
    the workload ended.
    """
    _check_is_there(directory, outcome)
    started = read_ranks_started(directory)
    counts, told = launch_counts(directory), ranks_that_told(directory)
    infos, aside = _all_infos(directory, counts, told, is_under_way=outcome is not None)
    told |= aside
    messages = tuple(map(sentence_of, read_messages(directory)))
    stopped = _describe_stops(directory, counts)
    left = {info.rank for info in infos}
    messages += tuple(f"rank {rank}: {why}" for rank, why in stopped.items() if rank not in left)
    messages += (*_missing_events(directory, infos), *_uncounted(directory, {*left, *counts}))
    infos = tuple(_with_stop(info, stopped.get(info.rank, "")) for info in infos)
    found = collect(directory, infos, *_alignment(directory, infos))
    infos = found.infos
    messages += found.messages
    if not infos:
        why = _nothing_recorded(len(started), messages, sum(counts.values()), outcome, advice)
        raise _kind_of(outcome)(why, exit_code=_exit_code(outcome))
    messages += (*_damaged_lines(directory),)
    num_ranks = [entry.world_size for entry in started] + [info.rank + 1 for info in infos]
    world_size = max([begun.num_procs, found.world_size, *num_ranks])
    infos, hang = keep_hang(directory, infos, world_size)
    missing = tuple(sorted(set(range(world_size)) - {info.rank for info in infos}))
    return Manifest(
        format_version=FORMAT_VERSION,
        kprof_version=kprof.__version__,
        command=begun.command,
        created_utc=begun.created_utc,
        world_size=world_size,
        exit_code=outcome.exit_code if outcome else None,
        duration_s=outcome.duration_s if outcome else 0.0,
        ranks=number_replays(infos),
        missing_ranks=missing,
        alignment=found.alignment,
        alignment_note=found.note,
        missing_launches=tuple(0 if rank in told else counts.get(rank, 0) for rank in missing),
        messages=(*messages, *unseen_waits(directory, infos)),
        hang=hang,
    )


def _kind_of(outcome: Outcome | None) -> type[WorkloadError]:
    has_ended_well = outcome is not None and not outcome.exit_code
    return NothingRecordedError if has_ended_well else WorkloadError


def _check_is_there(directory: Path, outcome: Outcome | None) -> None:
    if not directory.is_dir():
        raise _kind_of(outcome)(
            f"{directory} was removed while the workload ran, so what it recorded is lost "
            f"({_describe_end(outcome)}); record again into a directory that nobody cleans up",
            exit_code=_exit_code(outcome),
        )


@contextlib.contextmanager
def keeping(directory: Path, output: Path) -> Iterator[None]:
    """Let a CaptureError say which folder keeps the ranks' files, and how to go on."""
    try:
        yield
    except CaptureError as error:
        kept = directory if directory.exists() else output
        how = ""
        if type(error) is CaptureError:
            # The others are about a file, not about a disk that refuses.
            how = " once there is space, or with -o on another disk"
        elif isinstance(error, OutputExistsError):
            how = " -o NAME makes a capture of them"
        error.args = (f"{error}; the ranks' files are kept in {kept}: kprof recover {kept}{how}",)
        raise


@contextlib.contextmanager
def ending_with(exit_code: int) -> Iterator[None]:
    """Whatever ends the making of a capture, kprof exits with this code."""
    try:
        yield
    except CaptureError as error:
        error.exit_code = exit_code
        raise
    except KprofError:
        raise
    except Exception as error:
        unfinished = UnfinishedError(describe_error(error))
        unfinished.exit_code = exit_code
        raise unfinished from error


def _all_infos(
    directory: Path, counts: Mapping[int, int], told: Collection[int], *, is_under_way: bool
) -> tuple[tuple[RankInfo, ...], frozenset[int]]:
    """The infos of ranks that finished, and of unfinished ranks that left something; and the ranks
    whose arenas were set aside.

    `counts` are the launches of ranks, `told` those that have said what they lost. While it
    `is_under_way`, a disk that refuses again what a rank could not write ends nothing.
    """
    infos = {info.rank: info for info in capture.read_rank_infos(directory)}
    ended = rank_files(directory, "said").keys() - {*infos, *ranks_in_use(directory)}
    gave_up = {each.rank for each in read_messages(directory) if isinstance(each, GaveUp)}
    aside = set()
    for rank in sorted(ended):
        try:
            _salvage(directory, rank)
            if rank in gave_up:
                recover_rank(directory, rank)
        except CaptureError as error:
            # `kprof recover` fails instead: its user chooses another disk.
            if not (is_under_way and rank in gave_up and type(error) is CaptureError):
                raise
            _set_aside(directory, rank, counts.get(rank, 0), error)
            aside.add(rank)
    named = rank_files(directory, "parquet").keys() | ranks_with_parts(directory).keys()
    for rank in sorted(named - infos.keys()):
        info = recover_rank(directory, rank)
        if info is not None:
            num_damaged = len(damaged_parts(directory, rank))
            is_told = rank in told or rank in aside
            infos[rank] = info if is_told else _with_losses(info, counts.get(rank), num_damaged)
    return tuple(infos[rank] for rank in sorted(infos)), frozenset(aside)


def _set_aside(directory: Path, rank: int, num_launches: int, refused: CaptureError) -> None:
    """Keep what the disk refuses for a capture of its own, and leave a message; raises
    CaptureError."""
    try:
        place = set_aside(directory, rank, saved=leave_to_another(directory, rank))
    except OSError as error:
        raise refused from error
    if place is None:
        raise refused
    info = recover_rank(directory, rank)
    launches = info.launches if info else ()
    num_left = num_launches - 1 - max((each.launch for each in launches), default=-1)
    what = f"the last {num_left} of its {count_launches(num_launches)} are not in this capture"
    how = f"kprof recover {place}, with -o on another disk, makes a capture of them"
    leave_message(directory, f"rank {rank}: {what}, because the disk refused them; {how}")


def _salvage(directory: Path, rank: int) -> None:
    try:
        salvage(directory, rank)
    except KprofError as error:
        if type(error) is CaptureError:
            # A disk that refuses: `kprof recover` tries again.
            raise
        text = f"rank {rank}: what it held when it ended cannot be read: {error}"
        leave_message(directory, text)


def _missing_events(directory: Path, infos: Sequence[RankInfo]) -> Iterator[str]:
    """A sentence for each rank that wrote events of which none of its files is left."""
    written = events_written(directory)
    for rank in [info.rank for info in infos if info.cut_short]:
        num_missing = written.get(rank, 0) - num_kept_events(directory, rank)
        if num_missing > 0:
            yield (
                f"rank {rank}: {num_missing:,} of {written[rank]:,} events that it wrote are lost: "
                "files part-* of it are missing or damaged"
            )


def _damaged_lines(directory: Path) -> Iterator[str]:
    """A sentence for each journal of which lines cannot be read."""
    for rank in (None, *sorted(rank_files(directory, "said"))):
        with reading(directory):
            lines, num_damaged = read_journal(directory, rank)
        if num_damaged:
            where = f"{num_damaged + len(lines)} lines of {journal_path(directory, rank).name}"
            yield (
                f"{num_damaged} of {where} cannot be read, so names of kernels or regions, clocks, "
                "losses and how many ranks the run had may be wrong"
            )


def _uncounted(directory: Path, known: Collection[int]) -> Iterator[str]:
    """A sentence for each other rank that had a recorder."""
    for rank, path in rank_files(directory, "live").items():
        if rank not in known:
            yield f"rank {rank}: {path.name} is damaged, so how many launches it made is not known"


def _with_losses(info: RankInfo, num_launches: int | None, num_damaged: int) -> RankInfo:
    """Note how many launches came after what the rank saved; None: their count is gone.

    So many parts of the rank are damaged.
    """
    # Otherwise it was salvaged, or an earlier `kprof recover` has said it.
    if info.cut_short not in (NEVER_CLOSED, SAVED):
        return info
    # A ring has lost earlier ones, too, and replays are not among those that were counted.
    latest = max((each.launch for each in info.launches if each.captured < 0), default=-1)
    lost = launches_lost(num_launches, latest, is_whole=not num_damaged)
    if info.target != "cpu" and num_launches != latest + 1:
        lost += ", because only the GPU's memory had what was not written"
    return msgspec.structs.replace(info, cut_short=f"{info.cut_short}; {lost}")


def _describe_stops(directory: Path, counts: Mapping[int, int]) -> dict[int, str]:
    """What is not recorded of ranks whose recording stopped before they ended, by rank."""
    first = {rank: f" after its first {count_launches(number)}" for rank, number in counts.items()}
    return {
        rank: f"recording stopped{first.get(rank, '')}; "
        f"{count_launches(num_later)} after that {'is' if num_later == 1 else 'are'} not recorded"
        for rank, num_later in unrecorded_launches(directory).items()
    }


def _with_stop(info: RankInfo, stop: str) -> RankInfo:
    """Say why a rank's recording stopped, rather than that its recorder was not closed."""
    if not stop:
        return info
    # Its launches had ended when it stopped.
    is_whole = info.cut_short.startswith(NEVER_CLOSED) and info.cut_short.endswith(NO_LAUNCH_LOST)
    others = [info.cut_short] if info.cut_short not in ("", NEVER_CLOSED) and not is_whole else []
    return msgspec.structs.replace(info, cut_short="; ".join([*others, stop]))


def _describe_end(outcome: Outcome | None) -> str:
    if outcome is None:
        return "how the workload ended is not known"
    return f"the workload {describe_exit(outcome.exit_code)}"


def _exit_code(outcome: Outcome | None) -> int:
    return (outcome.exit_code if outcome else 0) or 1


def _nothing_recorded(
    num_ranks: int,
    messages: Sequence[str],
    num_launches: int,
    outcome: Outcome | None,
    advice: str,
) -> str:
    """Why there is no capture of so many ranks that had a recorder, with their launches."""
    end = _describe_end(outcome)
    if messages:
        return f"{end}, and there is no capture: {'; '.join(messages)}"
    if num_ranks:
        be = "is" if num_launches == 1 else "are"
        lost = f" and {count_launches(num_launches)} {be} lost" if num_launches else ""
        nobody = "its rank never" if num_ranks == 1 else f"none of its {num_ranks} ranks"
        return (
            f"{end} and {nobody} finished writing its events, "
            f"so there is no capture{lost}; "
            "their own messages say why, unless SIGKILL or os._exit ended them"
        )
    if outcome is None:
        return "no rank has recorded anything here"
    if outcome.exit_code:
        return (
            f"{end} before a kprof recorder had started, so there is no capture; "
            "its own messages say why; if there are none, make it run without kprof first"
        )
    said = f"{end} without creating a kprof recorder, so there is no capture"
    return f"{said}; {advice}" if advice else said


def _alignment(directory: Path, infos: Sequence[RankInfo]) -> tuple[Alignment | None, str]:
    """The alignment if it covers every rank, else a sentence that says why not."""
    alignment = capture.read_alignment(directory)
    if alignment is None:
        if len(infos) == 1:
            return None, ""
        return None, "the workload ran no clock calibration: call Recorder.align(...) in every rank"
    without = sorted({info.rank for info in infos} - {entry.rank for entry in alignment.ranks})
    if without:
        return None, f"{name_ranks(without)} took no part in the clock calibration"
    return alignment, ""
