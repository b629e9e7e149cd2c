"""Whether processes that have the same device can write to each other's memory, for `kprof doctor
--first-run`:

    torchrun --nproc-per-node 2 -m instrumented_kernels.shared_memory cuda:0

Collectives show it as well, but only where the host has a GPU for each of their ranks.
"""

from __future__ import annotations

import sys

from instrumented_kernels.workload import joined_group
from kprof.devices.gpu import make_current
from kprof.doctor.first_run import FirstRun


def main(device: str) -> None:
    """Raises SystemExit where what the other process has written is not there."""
    if device != "cpu":
        make_current(device)
    with joined_group() as group:
        have_counted = group.all_gather(FirstRun(device).counts_for_peers(group))
        if not all(have_counted):
            raise SystemExit("a process does not see what another one wrote to its memory")
        if group.rank == 0:
            print(f"{group.world_size} processes wrote to each other's memory")


if __name__ == "__main__":
    main(sys.argv[1])
