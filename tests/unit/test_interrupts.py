"""Signals that come while a recorder writes do not tear what it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from kprof.capture.directory import read_rank_infos
from kprof.recording.endings.signals import deferring_signals


@pytest.mark.parametrize("error", [None, ValueError])
def test_a_signal_waits_for_the_end_of_the_outer_block_also_when_that_fails(error):
    steps = []

    def interrupted() -> None:
        with deferring_signals():
            with deferring_signals():
                signal.raise_signal(signal.SIGINT)
                steps.append("inner")
            steps.append("outer")
            if error:
                raise error

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps == ["inner", "outer"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferring_signals():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        (signal.SIGINT, "sys.exit(3)"),
        (signal.SIGTERM, "raise RuntimeError('lost the other rank')"),
    ],
)
def test_a_rank_that_is_told_to_stop_while_it_writes_still_finishes(tmp_path, number, end):
    program = textwrap.dedent(f"""
        import os, signal, sys
        import kprof
        from kprof.capture.parts import PartWriter

        recorder = kprof.recorder(["a"])
        recorder.launch("kernel")
        finish = PartWriter.finish
        def finish_under_fire(writer, info):
            print("under fire", flush=True)
            for _ in range(3):
                os.kill(os.getpid(), {int(number)})
            finish(writer, info)
        PartWriter.finish = finish_under_fire
        {end}
    """)
    environment = os.environ | {"KPROF_RECORD_DIR": str(tmp_path), "KPROF_ARENA_BYTES": "1048576"}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.returncode in (1, 3)
    assert "under fire" in run.stdout
    (info,) = read_rank_infos(tmp_path)
    assert info.launches[0].kernel == "kernel"
