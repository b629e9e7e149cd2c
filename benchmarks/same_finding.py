"""Does the first finding stay the same, and is it the planted cause?

    python -m benchmarks.same_finding [--load 2] [--output FILE]       four kernels in two ranks, on the CPU
    python -m benchmarks.same_finding FOLDER --target cuda             four kernels for one GPU; FILE is in FOLDER

Every kernel is recorded `--recordings` times with each of five causes: a rank or a block is slow in a region, or in one
call; a rank is late; it passes on slowly, or has more to do. `--load N` programs keep cores busy meanwhile. A recording is

    right      the first finding is the cause
    too noisy  no finding, and the report says that others had the cores of ranks, so that times say nothing
    nothing    no finding without that
    different  the first finding is something else

Exits with 1 after any that is `nothing` or `different`.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import BUSY, beside, context, options, show_and_write, write
from kprof.analysis import Finding, Summary, find
from kprof.analysis.findings.doubt import DoubtKind
from kprof.errors import KprofError
from kprof.recording.launcher.record import RecordRequest, record
from kprof.recording.launches.delays import Delays
from kprof.trace import Trace

CALLS: Final = 8
SLOW: Final = ("slow", "slow_call", "slow_events")
LATE: Final = ("late_start", "idle_gap")
ALL_BLOCKS: Final = (0, 1024)


@dataclass(frozen=True)
class Cause:
    """What is planted at `rank`: delays, or `more` arguments of the workload.

    `blocks` is a range [first, end). With `every`, launches 0, `every`, ... have it: `calls`, of
    which the first may be left out as a warm-up.
    """

    kinds: tuple[str, ...]
    region: str = ""
    delay_us: float = 0.0
    blocks: tuple[int, int] = ALL_BLOCKS
    every: int = 1
    calls: tuple[int, ...] = ()
    more: str = ""
    rank: int = 1

    @property
    def delays(self) -> Delays | None:
        """What recordings of it delay."""
        if not self.delay_us:
            return None
        return Delays(self.region, self.delay_us * 1e3, {self.rank: (self.blocks,)}, self.every)

    def is_named_by(self, found: Finding) -> bool:
        """Whether a finding is about it, and about no other place or call."""
        blocks = {*found.blocks, *(block for _, block in found.places)}
        planted = set(range(*self.blocks)) if self.blocks != ALL_BLOCKS else set()
        ranks = {*found.ranks, *(rank for rank, _ in found.places), *(a for a, _ in found.links)}
        return (
            found.kind.name in self.kinds
            and ranks <= {self.rank}
            and (not self.region or found.region in (self.region, None))
            and blocks <= planted
            and (bool(blocks) or not planted)
            and (not self.calls or set(found.calls) <= set(self.calls))
        )


def in_ranks(
    work: str, part: str, send: str, launches: int = 1, late: str = ""
) -> dict[str, Cause]:
    """Causes at rank 1: regions for work as a whole, for that of one block, and for one call."""
    return {
        "slow rank": Cause(SLOW, work, 4000),
        "slow block": Cause(SLOW, part, 4000, (1, 2)),
        "slow call": Cause(SLOW, send, 30000, ALL_BLOCKS, 5 * launches, (0, 5)),
        "late rank": Cause(LATE, more=late or "--delay-ms 20 --delay-rank 1"),
    }


def slow_link(send: str) -> dict[str, Cause]:
    """Rank 1 is slow to send."""
    return {"slow link": Cause((*SLOW, "slow_transfer"), send, 4000)}


def in_blocks(first: str, second: str, every: tuple[int, int] = (5, 5)) -> dict[str, Cause]:
    """Causes in a kernel for one GPU. Every so many launches one of call 5 has the first region, or the second."""
    once = partial(Cause, SLOW, calls=(0, 5), rank=0)
    always = partial(Cause, (*SLOW, "uneven_blocks"), rank=0)
    return {
        "slow block": always(first, 40, (3, 4)),
        "slow block, second region": always(second, 40, (3, 4)),
        "slow blocks": always(first, 40, (4, 8)),
        "slow block in a call": once(second, 80, (3, 4), every[1]),
        "slow call": once(first, 80, ALL_BLOCKS, every[0]),
    }


TRITON: Final = {
    "slow rank": Cause(SLOW, more="--slow rank"),
    "slow block": Cause(SLOW, blocks=(2, 3), more="--slow program"),
    "slow call": Cause(SLOW, calls=(5,), more="--slow call"),
    "late rank": Cause(LATE, more="--slow late"),
    "uneven work": Cause(("uneven_work",), more="--slow items"),
}
RING: Final = str(Path(__file__).parent / "ring_all_gather" / "workload.py")
# By target, by kernel: its workload, and what is planted.
KERNELS: Final = {
    "cpu": {
        "all_to_all": (
            "-m instrumented_kernels.all_to_all",
            in_ranks("expert", "combine/send", "dispatch/send", launches=5)
            | {"uneven work": Cause(("uneven_work",), more="--skew 4 --skew-rank 1")},
        ),
        "all_reduce": (
            "-m instrumented_kernels.all_reduce --variant oneshot",
            in_ranks("reduce", "reduce", "put") | slow_link("put"),
        ),
        "ring_all_gather": (
            RING,
            in_ranks("fill", "fill", "pass", late="--delay-ms 20") | slow_link("pass"),
        ),
        "triton": ("-m benchmarks.planted_triton", TRITON),
    },
    "cuda": {
        "rms_norm_fp8": ("-m instrumented_kernels.rms_norm_fp8", in_blocks("add", "normalise")),
        "swiglu_fp8": ("-m instrumented_kernels.swiglu_fp8", in_blocks("load", "activate")),
        "skinny_gemm": (
            "-m instrumented_kernels.skinny_gemm --variant split_k",
            in_blocks("multiply", "reduce"),
        ),
        # A call is three launches: the second one counts, the third one places.
        "moe_align_sort": (
            "-m instrumented_kernels.moe_align_sort",
            in_blocks("count", "place", every=(16, 17)),
        ),
    },
}


def judged(cause: Cause, capture: Path) -> dict[str, str]:
    """What the report of a recording says, and what that is worth."""
    found = find(Summary.of(Trace.open(capture)))
    first = found.findings[0] if found.findings else None
    noisy = [doubt for doubt in found.doubts if doubt.kind is DoubtKind.SHARED_CORES]
    if first is not None:
        verdict = "right" if cause.is_named_by(first) else "different"
        return {"verdict": verdict, "kind": first.kind.name, "said": first.fact}
    said = noisy[0].sentence if noisy else found.headline
    return {"verdict": "too noisy" if noisy else "nothing", "kind": "", "said": said}


def recorded(workload: str, cause: Cause, target: str, output: Path) -> dict[str, str]:
    """One recording, judged."""
    device = f"--target {target}" if "instrumented_kernels" in workload else ""
    command = f"{workload} --repeats {CALLS} {device} {cause.more}"
    request = RecordRequest(
        (sys.executable, *shlex.split(command)),
        output,
        force=True,
        num_procs=2 if cause.rank else None,
        delays=cause.delays,
        is_quiet=True,
    )
    try:
        recording = record(request)
        if recording.exit_code:
            return {"verdict": "failed", "kind": "", "said": f"exit code {recording.exit_code}"}
        return judged(cause, output)
    except KprofError as error:
        return {"verdict": "failed", "kind": "", "said": str(error)}


def figures_of(rows: Sequence[dict[str, Any]]) -> dict[str, object]:
    """How many recordings came out how, in all and by kernel."""
    by_kernel = {row["kernel"]: Counter[str]() for row in rows}
    for row in rows:
        by_kernel[row["kernel"]][row["verdict"]] += 1
    return {
        "recordings": len(rows),
        "verdicts": Counter(row["verdict"] for row in rows),
        "by_kernel": by_kernel,
        "rows": rows,
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where captures and figures are left")
    parser.add_argument("--target", choices=tuple(KERNELS), default="cpu")
    parser.add_argument("--kernels", help="of the target's, a,b; all unless given")
    parser.add_argument("--causes", help="by name, a,b; all unless given")
    parser.add_argument("--recordings", type=int, default=6, help="of each cause")
    parser.add_argument("--load", type=int, default=0, help="busy programs beside it")
    parser.add_argument("--at-a-time", type=int, default=1, help="recordings side by side")
    arguments = parser.parse_args()
    if arguments.target == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    kernels = KERNELS[arguments.target]
    wanted = arguments.kernels.split(",") if arguments.kernels else kernels
    head = context(shlex.join(["python", "-m", "benchmarks.same_finding", *sys.argv[1:]]))
    tasks = [
        (kernel, name, number)
        for number in range(arguments.recordings)
        for kernel in wanted
        for name in kernels[kernel][1]
        if not arguments.causes or name in arguments.causes.split(",")
    ]
    with tempfile.TemporaryDirectory() as scratch, beside([BUSY] * arguments.load):
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)

        def row_of(task: tuple[str, str, int]) -> dict[str, Any]:
            kernel, name, number = task
            workload, causes = kernels[kernel]
            capture = folder / f"{kernel}-{name.replace(' ', '_')}-{number}.kprof"
            row = recorded(workload, causes[name], arguments.target, capture)
            print(kernel, name, number, *row.values(), sep=" | ", file=sys.stderr, flush=True)
            return {"kernel": kernel, "cause": name, **row}

        output = arguments.output or folder / "same_finding.json"
        rows: list[dict[str, Any]] = []
        with ThreadPoolExecutor(arguments.at_a_time) as pool:
            for row in pool.map(row_of, tasks):
                rows.append(row)
                # What is there stays if somebody ends this.
                result = head | {"load_1_min": os.getloadavg()[0]} | figures_of(rows)
                write(result, output)
        show_and_write(result, output)
    return int(any(row["verdict"] not in ("right", "too noisy") for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
