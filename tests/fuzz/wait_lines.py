"""Damaged wait lines, and the other files that a hang is read from, against whoever looks.

    python tests/fuzz/wait_lines.py --minutes 10 --seed 1 --jobs 2      (or --count 10000)

Whatever the damage: the report of the hang is made, in plain text, or refused in one sentence.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import harness
import numpy as np
from bytes_damage import damage_one
from harness import Broken

from kprof import abi
from kprof.capture.started import announce_rank
from kprof.errors import KprofError
from kprof.hangs.announced import SPAN
from kprof.hangs.diagnosis import diagnose
from kprof.hangs.evidence import read_run
from kprof.hangs.lines import NUM_LINES, WaitsWriter, write_answer
from kprof.hangs.report import lines_of, make_report, read_hang, write_hang
from kprof.regions import parse_regions
from launching import tell_launch

REGIONS: Final = parse_regions(
    """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", compute, bytes:32)
FLOW(R_SEND, R_WAIT)
"""
)
NUM_RANKS: Final = 3


def write_run(random: np.random.Generator, folder: Path) -> Path:
    """The directory of a run of three ranks that wait for each other."""
    directory = folder / "run.kprof.unfinished"
    directory.mkdir()
    for rank in range(NUM_RANKS):
        writer = WaitsWriter(directory, rank, NUM_RANKS)
        for number in range(int(random.integers(1, 6))):
            kernel, ordinal = number % 2, number // 2
            tell_launch(
                directory,
                writer,
                number,
                f"kernel{kernel}",
                REGIONS,
                rank=rank,
                kernel=kernel,
                ordinal=ordinal,
                num_blocks=8,
            )
        lines = np.zeros(NUM_LINES, abi.WAIT_LINE)
        for _ in range(int(random.integers(0, 12))):
            line = lines[int(random.integers(NUM_LINES - 1))]
            line["start_ticks"], line["region"] = random.integers(1, 1 << 40), random.integers(1, 4)
            line["payload"] = int(random.integers(NUM_RANKS)) | int(random.integers(64)) << 8
            line["launch"], line["block"] = random.integers(6), random.integers(8)
            line["warp"] = random.choice([0, 3, abi.BLOCK_TRACK_WARP])
            line["held"], line["wanted"] = random.integers(9, size=2)
        writer.write_lines(lines)
        spans = np.zeros(int(random.integers(3)), SPAN)
        spans["launch"], spans["region"] = random.integers(6), random.integers(1, 4)
        write_answer(directory, rank, [random.integers(8, size=(4, 2), dtype=np.uint32)], spans)
        announce_rank(directory, rank, NUM_RANKS)
    return directory


def case(seed: int, number: int, folder: Path) -> str:
    """Damage the files of one run and read it."""
    random = np.random.default_rng([seed, number])
    directory = write_run(random, folder)
    kind = damage_one(random, directory, folder.parent / "private" / "secret.txt")
    try:
        run = read_run(directory)
        hang = make_report(run, diagnose(run), float(random.choice([0.0, 31.5, 1e9])))
        text = "\n".join([hang.diagnosis, *lines_of(hang)])
        write_hang(directory, hang)
        if read_hang(directory) != hang:
            raise Broken("hang.json says something else than what was written")
    except KprofError:
        return f"{kind}: refused"
    if harness.SECRET in text or any(not c.isprintable() and c != "\n" for c in text):
        raise Broken(f"the report shows what nobody may print: {text!r}")
    return f"{kind}: {'a wait' if run.waits else 'no wait'}"


if __name__ == "__main__":
    sys.exit(harness.main(case, "wait lines", "tests/fuzz/wait_lines.py"))
