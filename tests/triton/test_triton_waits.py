"""Waits of Triton kernels that last: who waits, for which slot, and what its flag holds."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from needed import require_interpreter, require_triton

require_triton()

import ptx_machine  # noqa: E402
import torch  # noqa: E402
import waiting_kernel  # noqa: E402
from code_samples import NUMBERS, a_buffer, require_nvdisasm  # noqa: E402
from compiled import compile_for  # noqa: E402
from waiting_kernel import EPOCH, HELD, NEVER, consume, regions  # noqa: E402

import kprof.triton as kp  # noqa: E402
from in_process import run_kprof  # noqa: E402
from kprof.hangs.lines import RankWaits, read_waits  # noqa: E402
from kprof.recording.launcher.record import session  # noqa: E402
from kprof.recording.rank.recorder import Recorder  # noqa: E402
from kprof.trace import Trace  # noqa: E402


def test_a_hang_in_the_interpreter_names_program_slot_and_flag(tmp_path: Path) -> None:
    """The program ends itself once that has been said."""
    require_interpreter()
    run = tmp_path / "run.kprof"
    workload = [sys.executable, waiting_kernel.__file__]
    answer = run_kprof(
        ["record", "--hang-after", "1", "-o", run, "--", *workload],
        environment=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert answer.returncode == 0, answer.stderr
    assert f"ends {[EPOCH] * 4}" in answer.stdout
    line = [line for line in answer.stderr.splitlines() if "still waiting" in line][-1]
    assert f"block {NEVER} in wait for rank 0, slot {NEVER + 5} (call 0 of consume)" in line
    assert f"its flag holds {HELD}, it waits for {EPOCH}" in line
    slots = Trace.open(run).frame("SELECT block, slot FROM events WHERE region = 'wait'")
    assert sorted(slots.itertuples(index=False, name=None)) == [(n, n + 5) for n in range(4)]


class Flags:
    """In place of memory, for the flag of program NEVER: it changes once the line has told the value before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, address: int) -> None:
        self.lines: list[tuple[int, ...]] = []
        load = ptx_machine.Thread._load

        def load_flag(thread: ptx_machine.Thread, space: str, at: int, size: int) -> int:
            if at != address:
                return load(thread, space, at, size)
            told = [_line(waits) for waits in read_waits(directory).values() if len(waits.lines)]
            if told and told[0] not in self.lines:
                self.lines += told
            return HELD + len(self.lines) if len(self.lines) < 3 else EPOCH

        monkeypatch.setattr(ptx_machine.Thread, "_load", load_flag)


def _line(waits: RankWaits) -> tuple[int, ...]:
    (line,) = waits.lines
    names = ("launch", "block", "warp", "region", "payload", "held", "wanted")
    return tuple(int(line[name]) for name in names)


@pytest.mark.parametrize("grid", [4, None])
def test_a_wait_in_compiled_code_opens_one_line_and_closes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grid: int | None
) -> None:
    """Its flag changes twice before it has what the kernel waits for; chunks are reserved or claimed."""
    code = compile_for("sm_90", consume, NUMBERS, EPOCH, a_buffer(regions)).compiled.asm["ptx"]
    flags = torch.full((4,), EPOCH, dtype=torch.int32)
    run = tmp_path / "run.kprof"
    with session(run) as directory:
        recorder = Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 20)
        buffer = kp.buffer("consume", grid, regions, recorder=recorder)
        assert buffer is not None
        watched = Flags(monkeypatch, directory, flags[NEVER].data_ptr())
        ptx_machine.run(code, (4, 1, 1), [flags.data_ptr(), EPOCH, *buffer[:4], 0, 0])
        assert not any(len(waits.lines) for waits in read_waits(directory).values())
        recorder.close()
    payload = regions.table.regions[0].fields and (NEVER + 5) << 8
    said = [(0, NEVER, 0xFFFF, 1, payload, HELD + change, EPOCH) for change in range(3)]
    assert watched.lines == said
    slots = Trace.open(run).frame("SELECT block, slot FROM events WHERE region = 'wait'")
    assert sorted(slots.itertuples(index=False, name=None)) == [(n, n + 5) for n in range(4)]


def test_short_waits_and_threads_that_do_not_write_tell_nothing() -> None:
    """In PTX: what tells of a wait is behind a branch on the writer and one on the clock, and has no barrier."""
    code = compile_for("sm_90", consume, NUMBERS, EPOCH, a_buffer(regions)).compiled.asm["ptx"]
    (told,) = (part for part in code.split("// begin inline asm") if "KPROF_TRY" in part)
    told = told.partition("// end inline asm")[0]
    assert "bar." not in told
    assert told.index("@over bra") < told.index("%globaltimer") < told.index("atom.")


@pytest.mark.parametrize("target", ["gfx942", "gfx90a"])
def test_kernels_for_amd_compile_and_tell_nothing(target: str) -> None:
    code = compile_for(target, consume, NUMBERS, EPOCH, a_buffer(regions))
    assert code.count("cmpswap") == compile_for(target, consume, NUMBERS, EPOCH, None).count(
        "cmpswap"
    )


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_a_wait_that_is_not_recorded_is_no_code(target: str) -> None:
    if target == "sm_90":
        require_nvdisasm()
    off = compile_for(target, consume, NUMBERS, EPOCH, None)
    assert off.count(r"GLOBALTIMER|globaltimer|memrealtime") == 0
