"""Are NCCL's collectives recorded rightly, and what does it cost? On one GPU, with ranks that share it.

    python -m benchmarks.nccl FOLDER --nccl NCCL

NCCL is a source tree of 2.30 or later, which is built here if it was not built before (68 s on 16 cores). Ranks are threads of one
program (host.cu), so that their kernels run beside each other, or processes of torchrun, which take turns of milliseconds on the GPU.

    right    10,000 all-reduces of 64 KiB, each tenth followed by a send and a receive: all in the capture or counted, the
             clocks of all ranks 0 apart within their bound
    late     40 plants: a rank is late by 200 us to 20 ms, by a sleep, a busy kernel before, or a slow host. Right where that
             rank is named for that call
    cost     us per all-reduce off, with the plugin loaded (event mask 0), with an empty plugin, and recorded, in turns
    story    a Triton kernel, one of ours in C++ and NCCL's in one capture

Parts come in order of their value and share `--seconds`: the last ones make fewer calls (`calls` says how many) or say that no
time was left. What is measured is in FOLDER/nccl.json after each part, with a log and the capture of each run.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.nccl import parts
from benchmarks.nccl.bench import Bench

Part = tuple[Callable[[Bench, str, int, float], dict[str, Any]], str, int, float]
# Part, how ranks share the GPU, how many there are, and how many seconds they may spend with calls.
PARTS: list[Part] = [
    (parts.right, "threads", 2, 10),
    (parts.late, "threads", 2, 10),
    (parts.cost, "threads", 2, 120),
    (parts.late, "threads", 4, 10),
    (parts.right, "threads", 4, 10),
    (parts.story, "processes", 2, 40),
    (parts.late, "processes", 2, 10),
    (parts.right, "processes", 2, 10),
    (parts.late, "processes", 4, 20),
    (parts.right, "processes", 4, 10),
]


def main() -> None:
    parser = harness.options(__doc__, has_folder=True)
    parser.add_argument("--nccl", type=Path, required=True, help="the source tree of NCCL")
    parser.add_argument("--seconds", type=float, default=230.0, help="for all of it")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[""],
        help="parts with one of these in their name, such as late-threads",
    )
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    bench = Bench(folder, arguments.nccl.absolute(), arguments.seconds)
    result: dict[str, Any] = {}
    if not _kept(result, "build", folder, bench.build):
        return
    _kept(result, "context", folder, lambda: harness.context("python -m benchmarks.nccl", "cuda:0"))
    for measure, shape, num_ranks, seconds in PARTS:
        name = f"{measure.__name__}-{shape}-{num_ranks}"
        if any(part in name for part in arguments.only):
            _kept(result, name, folder, partial(measure, bench, shape, num_ranks, seconds))


def _kept(
    result: dict[str, Any], name: str, folder: Path, measure: Callable[[], dict[str, Any]]
) -> bool:
    """Whether it was measured. What is known so far is in the folder."""
    try:
        result[name] = measure()
    except Exception as error:
        result[name] = {"failed": str(error)}
        (folder / f"{name}-failed.log").write_text(traceback.format_exc())
    print(name, flush=True)
    shown = {key: value for key, value in result[name].items() if not isinstance(value, list)}
    harness.show_and_write(shown, None)
    harness.write(result, folder / "nccl.json")
    return "failed" not in result[name]


if __name__ == "__main__":
    main()
