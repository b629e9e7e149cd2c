"""Small calls of variants of the collectives, one after the other in the same ranks, for `kprof
doctor --first-run`:

    python -m instrumented_kernels.small_calls ANSWERS TARGET all_reduce:ring all_to_all:fused ...

Rank 0 adds a line of JSON for each to the file ANSWERS: its name, and what it has printed. The
first one that fails ends them all.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from instrumented_kernels.all_reduce.__main__ import app as all_reduce
from instrumented_kernels.all_reduce.plan import Plan as AllReduce
from instrumented_kernels.all_to_all.__main__ import app as all_to_all
from instrumented_kernels.all_to_all.plan import Plan as AllToAll
from instrumented_kernels.kernel_library import KernelBuilds, KernelLibrary, build_options
from instrumented_kernels.workload import choose_device, joined_group

_COMMANDS: Final = {"all_reduce": all_reduce, "all_to_all": all_to_all}


def main(path: Path, target: str, names: Sequence[str]) -> None:
    """Raises SystemExit where one fails."""
    with joined_group() as group:
        _compile(choose_device(target))
        for name in names:
            kernel, _, variant = name.partition(":")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                options = ["--variant", variant, "--target", target]
                code = _COMMANDS[kernel](options, standalone_mode=False)
            if code:
                raise SystemExit(code)
            if group.rank == 0:
                with path.open("a") as answers:
                    print(json.dumps([name, printed.getvalue().strip()]), file=answers)


def _compile(device: str) -> None:
    """At the same time what plans would compile one after the other."""
    with ThreadPoolExecutor() as pool:
        for source in (AllReduce.source, AllToAll.source):
            builds = KernelBuilds(partial(KernelLibrary, source), build_options(device))
            pool.submit(getattr, builds, "plain")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
