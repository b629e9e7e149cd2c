"""The capture directory `run.kprof/`: what a recording produces, and all that the analysis reads.

    run.kprof/
      manifest.json           written last: a directory without it is an unfinished recording
      rank-00000.parquet      a file per rank: events in rank-local nanoseconds (event_schema)
      rank-00001.parquet
      summary-00000.parquet   sums over a rank's events (rank_summary.py); made again if missing
      torch-rank-00000.json.gz       what the PyTorch profiler saw, if the workload kept it

While recording, it also holds the sources of the manifest (journal.py, claims.py and parts.py).

The manifest is data: JSON is decoded into the structs of kprof.capture.manifest with types checked.
Nothing is evaluated.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kprof.capture.checks import EVENT_COLUMNS, check_events, check_manifest
from kprof.capture.checksums import (
    TO_READ_OTHERS,
    Checksums,
    check_manifest_checksum,
    checksum_of_manifest,
    checksums_in,
)
from kprof.capture.files import (
    check_own_file,
    decode_bytes,
    read_own_file,
)
from kprof.capture.footers import Footers, read_footers
from kprof.capture.journal import Aligned, Begun, Ended, last_said, said, say
from kprof.capture.manifest import (
    FORMAT_VERSION,
    Alignment,
    Manifest,
    RankInfo,
)
from kprof.capture.names import (
    MANIFEST_NAME,
    SAID_NAME,
    UNFINISHED_SUFFIX,
    events_file_name,
    finished_of,
    summary_file_name,
    unfinished_of,
)
from kprof.capture.output import completing, write_json, writing
from kprof.capture.printable import utf8
from kprof.capture.shared_memory import COPY_NAME, discard, folders_of, remove_memory
from kprof.capture.torch_traces import rank_of_torch_trace
from kprof.errors import (
    CaptureError,
    CorruptCaptureError,
    NewerFormatError,
    NotACaptureError,
    OutputExistsError,
)
from kprof.on_use import pa, pq
from kprof.private import remove_files, share

_MAX_READ_AHEAD_BYTES: Final = 1 << 30

T = TypeVar("T")

# `finish_capture` removes these: of a rank, all but its .parquet stays behind. claims.py and
# parts.py describe the files.
_MADE_OF: Final = (
    "rank-*.[!p]*",
    "part-*.parquet",
    SAID_NAME,
    "nccl-*",
    "kept-nccl-*",
    COPY_NAME,
    "*.tmp",
)

# Of ranks that were killed: events that are in no part yet.
_HELD: Final = ("rank-*.arena", "nccl-*")

# Bits of the `flags` column.
EVENT_OPEN: Final = 1
EVENT_SATURATED: Final = 2
EVENT_CLAMPED: Final = 4


class Capture:
    """A finished capture on disk, its manifest read and its files present.

    Opening checks the manifest, and the footers and sizes of the Parquet files (checks.py).
    `checksums` checks the events themselves; a trace asks it when it first reads them. `left_out`
    says by rank why a damaged one is not in it. `footers` are those of the Parquet files, None
    where they were not read here.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        checksums: Checksums,
        left_out: Mapping[int, str],
        footers: Footers | None = None,
    ) -> None:
        self.path, self.manifest = path, manifest
        self.checksums, self.left_out, self.footers = checksums, left_out, footers

    @staticmethod
    def open(path: str | Path, ranks: Collection[int] | None = None) -> Capture:
        """Open `run.kprof/`; raises NotACaptureError, CorruptCaptureError or NewerFormatError.

        Where `ranks` are given, the capture is without other ranks whose files are damaged.
        """
        directory = Path(path)
        manifest = read_manifest(directory)
        return _opened(directory, manifest, Checksums(manifest.files), ranks)

    def events_path(self, rank: int) -> Path:
        """The Parquet file of one rank."""
        return self.path / events_file_name(rank)

    def torch_traces(self) -> tuple[Path, ...]:
        """The files of the PyTorch profiler that the workload kept beside its events, by rank.

        Raises CorruptCaptureError where one is a link out of the capture, no file, missing, or was
        changed.
        """
        recorded = (self.path / Path(entry.name).name for entry in self.manifest.files)
        present = self.path.iterdir()
        found = sorted({p for p in (*present, *recorded) if rank_of_torch_trace(p) is not None})
        for path in found:
            check_own_file(path)
        self.checksums.check(found)
        return tuple(found)

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of all files."""
        return sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())


def _opened(
    directory: Path,
    manifest: Manifest,
    checksums: Checksums,
    ranks: Collection[int] | None = None,
) -> Capture:
    num_events: dict[int, int] = {}
    damaged: dict[int, str] = {}
    ahead: dict[Path, int] = {}
    paths = {info.rank: directory / events_file_name(info.rank) for info in manifest.ranks}
    # Those of summaries, too: a second look takes almost as long as the first.
    summaries = [directory / summary_file_name(rank) for rank in paths]
    footers = read_footers([*paths.values(), *summaries])
    for rank, path in paths.items():
        is_wanted = ranks is None or rank in ranks
        try:
            num_events[rank] = check_events(path, rank, footers)
            checksums.check_size(path)
            if not is_wanted and path.stat().st_size <= _MAX_READ_AHEAD_BYTES:
                ahead[path] = rank
        except CorruptCaptureError as error:
            if is_wanted:
                raise CorruptCaptureError(f"{error}{TO_READ_OTHERS}") from error
            damaged[rank] = str(error)
    damaged |= {ahead[path]: why for path, why in checksums.faults(ahead).items()}
    manifest = manifest.without_ranks(damaged).with_events_found(num_events)
    return Capture(directory, manifest, checksums, damaged, footers)


@functools.cache
def event_schema() -> pa.Schema:
    """Columns of a rank's Parquet file, see EVENT_COLUMNS."""
    return pa.schema([(name, kind) for name, (kind, _) in EVENT_COLUMNS.items()])


def output_of(directory: Path) -> Path:
    """The capture that an unfinished directory becomes; relative to where this process is, if it
    lies there."""
    output, here = finished_of(directory), Path.cwd()
    return output.relative_to(here) if output.is_relative_to(here) else output


@contextlib.contextmanager
def writing_events(path: Path) -> Iterator[pq.ParquetWriter]:
    """A writer for tables of event_schema(); the file gets its name when the block succeeds.

    Raises CaptureError.
    """
    with completing(path) as new, pa.OSFile(str(new), "wb") as file:
        # The file is open for long where a thread writes: it is not for processes of the workload.
        os.set_inheritable(file.fileno(), False)
        with pq.ParquetWriter(file, event_schema(), compression="zstd", compression_level=1) as it:
            yield it


def write_rank_events(directory: Path, rank: int, events: pa.Table) -> None:
    """Write all events of a rank, a table of event_schema(); raises CaptureError."""
    with writing_events(directory / events_file_name(rank)) as writer:
        writer.write_table(events)


def write_rank_info(directory: Path, info: RankInfo) -> None:
    """Say what is known of a rank at its end; raises CaptureError."""
    say(directory, info.rank, Ended(info))


def read_rank_infos(directory: Path) -> tuple[RankInfo, ...]:
    """All ranks that have ended well in an unfinished capture directory, by rank."""
    ended = last_said(directory, Ended)
    return tuple(
        each.info
        for rank, each in ended.items()
        if each.info.rank == rank and (directory / events_file_name(rank)).exists()
    )


def read_alignment(directory: Path) -> Alignment | None:
    """The alignment of an unfinished capture, or None when no calibration ran."""
    calibrations = said(directory, 0, Aligned)
    return calibrations[-1].alignment if calibrations else None


def write_manifest(directory: Path, manifest: Manifest) -> int:
    """Write `manifest.json` with its checksum, atomically; the last step of a recording."""
    crc = checksum_of_manifest(msgspec.json.encode(manifest))
    write_json(directory / MANIFEST_NAME, msgspec.structs.replace(manifest, checksum=crc))
    return crc


def begin_capture(output: Path, force: bool) -> Path:
    """Create the temporary directory that becomes `output`.

    Raises OutputExistsError unless `force`.
    """
    refuse_output(output, force)
    temporary = unfinished_of(output)
    _refuse_strange(temporary)
    is_held = any(any(folder.glob(each)) for folder in folders_of(temporary) for each in _HELD)
    if (has_events(temporary) or is_held) and not force:
        raise OutputExistsError(
            f"{temporary} holds events of a recording that was cut off; "
            f"kprof recover {temporary} makes a capture "
            "of them, --force (in Python force=True) discards them"
        )
    if temporary.exists() and not _is_recording(temporary):
        raise OutputExistsError(
            f"{temporary} exists and is not a kprof recording; kprof will not delete it, choose "
            "another output"
        )
    with writing(temporary):
        discard(temporary)
        # Others can neither change nor lock it.
        temporary.mkdir(mode=0o700, parents=True)
    return temporary


def _refuse_strange(temporary: Path) -> None:
    """Raises OutputExistsError for what another user has put where kprof works, and for a link."""
    with writing(temporary), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = temporary.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise OutputExistsError(
                f"{temporary} is not a directory of yours; kprof will not use or delete it, choose "
                "another output"
            )


def has_events(directory: Path) -> bool:
    """Whether ranks have written events into a directory, readable or not."""
    return any(directory.glob("*.parquet"))


def _is_recording(directory: Path) -> bool:
    """Whether it is an unfinished recording by what is in it, or empty."""
    if not directory.is_dir():
        return False

    has_ranks = any(directory.glob("rank-[0-9][0-9][0-9][0-9][0-9].*"))
    return has_ranks or bool(said(directory, None, Begun)) or not any(directory.iterdir())


def _is_capture(directory: Path) -> bool:
    """Whether it is a capture of kprof by what is in it, also of a later version."""
    try:
        read_manifest(directory)
    except NewerFormatError:
        return True
    except CaptureError:
        return False
    return True


def refuse_output(output: Path, force: bool) -> None:
    """Raises OutputExistsError when there is something at `output` that must not be replaced, and
    CaptureError for a path that is not UTF-8."""
    _refuse_name(output.absolute())
    if not output.exists():
        return
    if not _is_capture(output):
        raise OutputExistsError(
            f"{output} exists and is not a capture that kprof can read; kprof will not delete it, "
            "choose another output"
        )
    if not force:
        raise OutputExistsError(
            f"{output} exists; pass --force (in Python force=True) to replace it, or choose "
            "another output"
        )
    if _replaced_by(output).exists():
        raise OutputExistsError(
            f"{_replaced_by(output)} is in the way: a kprof that was killed while it replaced "
            f"{output} leaves the earlier capture there; remove it or rename it"
        )


def _replaced_by(output: Path) -> Path:
    """Where the earlier capture is until the new one has its name."""
    return output.with_name(output.name + ".replaced")


def finish_capture(
    temporary: Path, output: Path, manifest: Manifest, *, force: bool = False
) -> Capture:
    """Write the manifest, give the directory its final name, and remove what it was made of.

    Every capture is finished here, so here its files get their checksums, unless an earlier attempt
    gave them theirs. Raises OutputExistsError where something has come to `output` meanwhile that
    must not be replaced.
    """
    if is_new := not manifest.files:
        manifest = msgspec.structs.replace(manifest, files=checksums_in(temporary))
    found = _readable(temporary, manifest)
    checksum = write_manifest(temporary, manifest)
    refuse_output(output, force)
    with writing(output):
        share(temporary)
        replaces = output.exists()
        if replaces:
            output.rename(_replaced_by(output))
        temporary.rename(output)
        if replaces:
            shutil.rmtree(_replaced_by(output), ignore_errors=True)
        # What stays hinders nobody: the capture is complete.
        remove_memory(output)
        remove_files(output, *_MADE_OF)
    checksums = Checksums(manifest.files)
    if is_new:
        checksums.trust(output / entry.name for entry in manifest.files)
    manifest = msgspec.structs.replace(found.manifest, checksum=checksum)
    return Capture(output, manifest, checksums, found.left_out)


def _readable(directory: Path, manifest: Manifest) -> Capture:
    """What a reader would open, while all that it is made of is still there.

    Raises CorruptCaptureError.
    """
    path = directory / MANIFEST_NAME
    try:
        checked = decode_bytes(path, msgspec.json.encode(manifest), Manifest)
        check_manifest(path, checked)
        return _opened(directory, checked.without_partial_alignment(), Checksums(checked.files))
    except CorruptCaptureError as error:
        raise CorruptCaptureError(
            f"a file in {directory} is damaged, so there is no capture yet: {error}"
        ) from error


def _refuse_name(path: Path) -> None:
    if utf8(str(path)) != str(path):
        raise CaptureError(f"{path} is not UTF-8, and Parquet files need that: rename it")


def read_manifest(directory: Path) -> Manifest:
    """A directory's manifest; raises NotACaptureError, CorruptCaptureError or NewerFormatError."""
    _refuse_name(directory)
    unfinished = unfinished_of(directory)
    if not directory.exists() and unfinished.is_dir():
        raise NotACaptureError(
            f"the recording of {directory} is not finished; when its ranks have ended, "
            f"kprof recover {unfinished} makes a capture of it"
        )
    if not directory.exists():
        raise NotACaptureError(
            f"{directory} does not exist; `kprof record -o {directory} -- CMD` makes one"
        )
    if not directory.is_dir():
        raise NotACaptureError(f"{directory} is a file, not a capture directory such as run.kprof/")
    path = directory / MANIFEST_NAME
    if not os.path.lexists(path):
        if directory.name.endswith(UNFINISHED_SUFFIX):
            raise NotACaptureError(
                f"{directory} is an unfinished recording; when its ranks have ended, "
                f"kprof recover {directory} makes a capture of it"
            )
        raise NotACaptureError(f"{directory} is not a capture: it has no {MANIFEST_NAME}")
    data = read_own_file(path)
    version = decode_bytes(path, data, _VersionOnly).format_version
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"{directory} has format version {version}, this kprof reads up to {FORMAT_VERSION}; "
            "upgrade kprof to open it"
        )
    manifest: Manifest = decode_bytes(path, data, Manifest)
    check_manifest(path, manifest)
    check_manifest_checksum(path, data, manifest.checksum)
    return manifest.without_partial_alignment()


class _VersionOnly(msgspec.Struct):
    format_version: int
