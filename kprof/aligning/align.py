"""Puts the ranks of a capture onto one clock by its own messages: only the manifest changes, since
events stay on the clock of their rank."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from kprof.aligning.messages import COLLECTIVES, Messages
from kprof.capture.directory import Capture, begin_capture, finish_capture, write_manifest
from kprof.capture.files import check_own_file
from kprof.capture.losses import name_ranks
from kprof.capture.manifest import Alignment, Manifest
from kprof.capture.names import MANIFEST_NAME
from kprof.capture.output import writing
from kprof.capture.torch_traces import rank_of_torch_trace
from kprof.clocks.causality import align_by_limits
from kprof.clocks.limits import ContradictionError, RankClock
from kprof.errors import ClockError

_RANK_OF_TABLE: Final = re.compile(r"(?:rank|summary)-(\d+)\.")
# Recordings of one run last about as long on all ranks.
_SAME_LENGTH: Final = 1.5
_HINT: Final = (
    "FLOW in regions.h joins sends and waits, and --collective NAME names events that no rank ends "
    "before all have begun"
)


@dataclass(frozen=True)
class Aligned:
    """A capture with its alignment. `left_out` are ranks that nothing bounds."""

    path: Path
    alignment: Alignment
    left_out: tuple[int, ...]
    notes: tuple[str, ...]


def align(
    path: Path, output: Path | None = None, collectives: Sequence[str] = (), *, force: bool = False
) -> Aligned:
    """Align the ranks of a capture by its messages and collectives, in place or as `output`.

    `collectives` are names, with wildcards, of events and kernels that no rank ends before all have
    begun. Where the capture is on one clock already, `force` replaces that. Raises ClockError where
    no two ranks bound each other or what bounds them contradicts itself, and CaptureError; then the
    capture is as it was.
    """
    capture = Capture.open(path)
    _refuse_aligned(capture, is_replaced=force or output is not None)
    alignment, notes = _found(capture, collectives)
    aligned = {entry.rank for entry in alignment.ranks}
    left_out = tuple(each.rank for each in capture.manifest.ranks if each.rank not in aligned)
    manifest = _with_alignment(capture.manifest, alignment, left_out)
    if output is None:
        write_manifest(path, manifest)
    else:
        temporary = begin_capture(output, force)
        copy_files(capture, temporary, [info.rank for info in manifest.ranks])
        finish_capture(temporary, output, manifest, force=force)
    return Aligned(output or path, alignment, left_out, notes)


def _refuse_aligned(capture: Capture, *, is_replaced: bool) -> None:
    known = capture.manifest.alignment
    if len(capture.manifest.ranks) < 2:
        raise ClockError(f"{capture.path} has one rank: there is nothing to align")
    if known is not None and not is_replaced:
        raise ClockError(
            f"{capture.path} is on one clock already ({known.method}, within "
            f"{known.widest_bound_ns:,.0f} ns); --force replaces that, -o writes another capture"
        )


def _found(capture: Capture, collectives: Sequence[str]) -> tuple[Alignment, tuple[str, ...]]:
    messages = Messages(capture)
    clocks = messages.clocks()
    flows = messages.of_flows()
    calls = messages.of_collectives([*COLLECTIVES, *collectives])
    said = [name for name, each in (("messages", flows), ("collectives", calls)) if each]
    try:
        alignment = align_by_limits([*flows, *calls], clocks, " and ".join(said))
    except ContradictionError as error:
        named = messages.names_of([number for number in error.numbers if number >= 0])
        raise ClockError(f"{error} ({'; '.join(named)}){_units(clocks)}") from error
    except ClockError as error:
        raise ClockError("; ".join([f"{capture.path}: {error}", *messages.notes, _HINT])) from error
    return msgspec.structs.replace(alignment, notes=tuple(messages.notes)), tuple(messages.notes)


def _units(clocks: Mapping[int, RankClock]) -> str:
    """A hint at files that were imported with another unit."""
    length_ns = {rank: max(1, each.last_ns - each.first_ns) for rank, each in clocks.items()}
    least, most = (
        min(length_ns, key=length_ns.__getitem__),
        max(length_ns, key=length_ns.__getitem__),
    )
    ratio = length_ns[most] / length_ns[least]
    if ratio < _SAME_LENGTH:
        return ""
    return (
        f"; the events of rank {most} last {ratio:.3g} times as long as those of rank {least}: if "
        "their times are in different units, import them with the --tick-ns of each"
    )


def _with_alignment(manifest: Manifest, alignment: Alignment, left_out: Sequence[int]) -> Manifest:
    note = f"nothing bounds the clock of {name_ranks(left_out)}; --ranks leaves ranks out"
    return msgspec.structs.replace(
        manifest,
        alignment=None if left_out else alignment,
        partial_alignment=alignment if left_out else None,
        alignment_note=note if left_out else "",
    )


def copy_files(capture: Capture, folder: Path, ranks: Collection[int]) -> None:
    """All files of a capture but its manifest and those of other ranks; raises CaptureError, also
    where one is not as it was written."""
    chosen = []
    for path in sorted(capture.path.iterdir()):
        table = _RANK_OF_TABLE.match(path.name)
        rank = int(table[1]) if table else rank_of_torch_trace(path)
        is_of_others = rank is not None and rank not in ranks
        if path.name != MANIFEST_NAME and path.is_file() and not is_of_others:
            check_own_file(path)
            chosen.append(path)
    capture.checksums.check(chosen)
    with writing(folder):
        for path in chosen:
            shutil.copyfile(path, folder / path.name)
