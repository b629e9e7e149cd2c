"""Arenas of 2 GiB and more, and those that lie across a multiple of 4 GiB, in Triton's interpreter: it steps through a
chunk as the GPU does, in the low word of the address."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from needed import require_interpreter

require_interpreter()

PROGRAMS = range(8)
# One event per program in launch 0, and 71 in launch 1: they take a second chunk.
BEGUN = sorted([[0, n] for n in PROGRAMS] + [[1, n] for n in PROGRAMS] * 2)


def test_a_chunk_at_a_multiple_of_4_gib_is_like_any_other() -> None:
    """In arenas of 1 MiB to 8 GiB, with chunks that are claimed and reserved."""
    answer = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "far_arena.py")],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    cases = [json.loads(line) for line in answer.stdout.splitlines()]
    assert len({(case["size_bytes"], case["chunk"]) for case in cases}) == len(cases) == 20
    for case in cases:
        assert (case["begun"], case["has_boundary"], case["dropped"]) == (BEGUN, True, 0), case
