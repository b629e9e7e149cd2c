"""Files of the PyTorch profiler inside a capture: what they are called, and how they get there."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any, Final

from kprof.errors import RecorderError
from kprof.private import move, remove

_NAME: Final = re.compile(r"(?:torch|host)-rank-(\d+)(?:-\d+)?\.json\.gz", re.ASCII)
# Slices of NCCL on the host.
HOST_CATEGORY: Final = "nccl"
HOST_PREFIX: Final = "host-rank-"


def torch_trace_name(rank: int, number: int = 0) -> str:
    """`torch-rank-00003.json.gz` for the rank's first trace, `torch-rank-00003-1.json.gz` then."""
    return f"torch-rank-{rank:05d}{f'-{number}' if number else ''}.json.gz"


def host_trace_name(rank: int) -> str:
    """`host-rank-00003.json.gz`: what NCCL did on the rank's host, in the same layout."""
    return f"{HOST_PREFIX}{rank:05d}.json.gz"


def rank_of_torch_trace(path: Path) -> int | None:
    """The rank in a name that one of these made, None for any other."""
    match = _NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def store_torch_trace(profile: Any, directory: Path, rank: int, number: int) -> Path:
    """Write a stopped torch.profiler.profile, or copy a file of its export_chrome_trace, gzipped.

    The file gets its name when it is complete. Raises RecorderError.
    """
    final = directory / torch_trace_name(rank, number)
    temporary = final.with_name(f"tmp-{final.name}")
    try:
        if isinstance(profile, str | Path):
            _copy(Path(profile), temporary)
        else:
            profile.export_chrome_trace(str(temporary))
        move(temporary, final)
        return final
    except (OSError, AttributeError, RuntimeError, AssertionError) as error:
        with contextlib.suppress(OSError):
            remove(temporary)
        raise RecorderError(
            f"rank {rank}: cannot keep the PyTorch profiler's trace: {error}; "
            "pass a profile that has stopped, or the path of a file that export_chrome_trace wrote"
        ) from error


def _copy(source: Path, target: Path) -> None:
    import gzip

    data = source.read_bytes()
    target.write_bytes(data if data[:2] == b"\x1f\x8b" else gzip.compress(data, 1))
