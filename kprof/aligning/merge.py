"""Makes one capture of those that several hosts recorded of one run, in any order."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kprof.aligning.align import copy_files
from kprof.capture.directory import Capture, begin_capture, finish_capture
from kprof.capture.manifest import Manifest
from kprof.errors import CaptureError


@dataclass(frozen=True)
class Merged:
    """A capture of several parts; `missing_ranks` were in none, or in one that is damaged."""

    path: Path
    manifest: Manifest

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the run that the capture has no events of."""
        return self.manifest.missing_ranks


def merge(parts: Sequence[Path], output: Path, *, force: bool = False) -> Merged:
    """One capture of the ranks of all parts, whose files stay as they are.

    Ranks whose files are damaged are left out, and a message of the capture says so. Raises
    CaptureError where parts cannot be of one run, or one cannot be opened at all.
    """
    captures = [Capture.open(part, ranks=()) for part in parts]
    _refuse_others(captures)
    temporary = begin_capture(output, force)
    try:
        for capture in captures:
            copy_files(capture, temporary, {info.rank for info in capture.manifest.ranks})
        manifest = _joined([capture.manifest for capture in captures])
        finish_capture(temporary, output, manifest, force=force)
    except BaseException:
        # It can be repeated.
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Merged(output, manifest)


def _refuse_others(captures: Sequence[Capture]) -> None:
    of_rank: dict[int, Path] = {}
    first = captures[0]
    for capture in captures:
        size, known = capture.manifest.world_size, first.manifest.world_size
        if size != known:
            raise CaptureError(
                f"{first.path} is of a run of {known} ranks and {capture.path} of one of {size}: "
                "give parts of one run"
            )
        for info in capture.manifest.ranks:
            other = of_rank.setdefault(info.rank, capture.path)
            if other != capture.path:
                raise CaptureError(
                    f"rank {info.rank} is in {other} and in {capture.path}: ranks need numbers "
                    "that differ over all hosts, as launchers give them (RANK, SLURM_PROCID)"
                )


def _joined(parts: Sequence[Manifest]) -> Manifest:
    ranks = sorted((info for each in parts for info in each.ranks), key=lambda info: info.rank)
    numbers = {info.rank for info in ranks}
    launches = {
        rank: count
        for each in parts
        for rank, count in zip(each.missing_ranks, each.missing_launches, strict=False)
    }
    missing = sorted(set(range(parts[0].world_size)) - numbers)
    # A recording's calibration is of all hosts, and kept where rank 0 is.
    known = (each.alignment for each in parts if each.alignment)
    alignment = next((each for each in known if {of.rank for of in each.ranks} >= numbers), None)
    codes = [each.exit_code for each in parts]
    return msgspec.structs.replace(
        parts[0],
        ranks=tuple(ranks),
        missing_ranks=tuple(missing),
        missing_launches=tuple(launches.get(rank, 0) for rank in missing),
        exit_code=next(filter(None, codes), None if None in codes else 0),
        duration_s=max(each.duration_s for each in parts),
        alignment=alignment,
        alignment_note="" if alignment else "the parts were not put onto one clock",
        partial_alignment=None,
        overhead=None,
        guesses=_all(each.guesses for each in parts),
        messages=_all(each.messages for each in parts),
        hang=next((each.hang for each in parts if each.hang), None),
        files=(),
        checksum=None,
    )


def _all(texts: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for each in texts for text in each))
