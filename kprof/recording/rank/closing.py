"""What a recorder writes when it is closed, besides the events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kprof.capture.directory import write_rank_info
from kprof.capture.manifest import RankInfo
from kprof.capture.rank_summary import write_summary
from kprof.errors import CaptureError
from kprof.recording.launches.wanted import why_nothing
from kprof.recording.rank.rank_facts import RankFacts
from kprof.recording.retention.keeping import Keeper

# A summary of so many events takes ten seconds, in which the process of the workload cannot end.
MAX_SUMMARISED: Final = 1 << 24
# So does one of so many blocks, because it has rows of its own for each.
MAX_SUMMARISED_BLOCKS: Final = 1 << 21


def finish_rank(
    keeper: Keeper,
    facts: RankFacts,
    num_asked: int,
    num_steps: int | None,
    cut_short: str,
    note: Callable[[str], None],
) -> RankInfo:
    """Make one file of all parts; returns what is known of the rank. Raises CaptureError.

    The workload asked for `num_asked` launches in `num_steps` steps (None: without a schedule).
    """
    launches, counts, parts = keeper.launches, keeper.decoder.tally.counts, keeper.parts
    if not counts.recorded + counts.dropped:
        blocks = [row.num_blocks for row in parts.launches()]
        asked = num_asked, launches.num_outside
        if why := why_nothing(launches.wanted, keeper.rank, *asked, blocks, num_steps):
            note(why)
    info = facts.info(keeper.decoder, parts.launches(), cut_short)
    parts.finish(info)
    write_rank_info(keeper.directory, info)
    return info


def summarise_rank(directory: Path, info: RankInfo, world_size: int) -> None:
    """Write the summary of a rank that is finished.

    Readers make one that is missing: it is worth neither failing nor a long wait.
    """
    num_blocks = sum(row.num_blocks for row in info.launches)
    if info.counts.recorded <= MAX_SUMMARISED and num_blocks <= MAX_SUMMARISED_BLOCKS:
        with contextlib.suppress(CaptureError):
            write_summary(directory, info, world_size)
