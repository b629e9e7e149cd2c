"""What the files of a recording are called: of a finished capture, and of one that is not.

directory.py says what is in a capture, docs/format.md has them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

MANIFEST_NAME: Final = "manifest.json"
UNFINISHED_SUFFIX: Final = ".unfinished"
# See journal.py.
SAID_NAME: Final = "said"
VERIFIED_NAME: Final = "verified.json"


def events_file_name(rank: int) -> str:
    """`rank-00003.parquet` for rank 3."""
    return f"rank-{rank:05d}.parquet"


def rank_file(directory: Path, rank: int, kind: str) -> Path:
    """`rank-00003.KIND` for rank 3."""
    return directory / f"rank-{rank:05d}.{kind}"


def rank_files(directory: Path, kind: str) -> dict[int, Path]:
    """The files of that kind, by rank."""
    paths = sorted(directory.glob(f"rank-*.{kind}"))
    found = {path: path.stem.removeprefix("rank-") for path in paths}
    return {int(number): path for path, number in found.items() if number.isdecimal()}


def summary_file_name(rank: int) -> str:
    """`summary-00003.parquet` for rank 3; not `rank-*`, which is how events are found."""
    return f"summary-{rank:05d}.parquet"


def finished_of(directory: Path) -> Path:
    """The directory without the suffix of unfinished ones."""
    return directory.with_name(directory.name.removesuffix(UNFINISHED_SUFFIX))


def unfinished_of(output: Path) -> Path:
    """The directory that becomes `output` when the recording is finished. The empty path is that of
    the current directory."""
    named = output if output.name else output.absolute()
    return named.parent / (named.name + UNFINISHED_SUFFIX)
