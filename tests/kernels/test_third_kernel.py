"""A kernel with a plan of its own in a few lines: what the base of plans and the layouts must give to any."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import KERNELS
from third_kernel.plan import Plan
from thread_ranks import ThreadGroup, run_threads

from instrumented_kernels.call_ledger import PeerTimeoutError
from kprof.devices.build import BuildOptions
from kprof.devices.targets import Target
from kprof.recording.launcher.record import session
from kprof.recording.rank.recorder import Recorder
from kprof.trace import Trace

FOLDER = Path(__file__).parent / "third_kernel"


@pytest.fixture
def options() -> BuildOptions:
    return BuildOptions(Target.CPU, include_dirs=(KERNELS / "device",), warp_width=32)


def test_it_gathers_and_is_recorded(options: BuildOptions, tmp_path: Path) -> None:
    def work(group: ThreadGroup) -> list[list[int]]:
        recorder = Recorder(directory, rank=group.rank, world_size=3, arena_bytes=1 << 20)
        plan = Plan(group, options)
        gathered = [plan(10 * call + group.rank, recorder) for call in range(5)]
        recorder.close()
        plan.close()
        return gathered

    with session(tmp_path / "run.kprof") as directory:
        expected = [[10 * call, 10 * call + 1, 10 * call + 2] for call in range(5)]
        assert run_threads(3, work) == [expected] * 3
    flows = Trace.open(tmp_path / "run.kprof").frame("SELECT count(*) AS n FROM flows")
    assert flows["n"][0] == 3 * 3 * 5


def test_a_peer_that_never_comes_is_named(options: BuildOptions) -> None:
    def work(group: ThreadGroup) -> str:
        plan = Plan(group, options, timeout_s=0.3)
        message = ""
        if group.rank == 0:
            with pytest.raises(PeerTimeoutError) as error:
                plan(1)
            message = str(error.value)
        group.barrier()
        return message

    message = run_threads(2, work)[0]
    assert message.startswith("rank 0 waited ")
    assert "rank 1 has not made call 1, all_gather" in message


def test_it_is_small() -> None:
    """As docs/extending.md says."""
    files = [path for path in FOLDER.iterdir() if path.suffix in (".py", ".h", ".hip")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 150
