"""A short run of the fuzzer: the same captures every time."""

from __future__ import annotations

import captures
import pytest

# By far more than any command takes: only what would go on for minutes counts here. The bar is in
# captures.py.
FAR_TOO_LONG_CPU_S = 60.0


@pytest.mark.timeout(1200)
def test_damaged_captures_are_read_or_refused_in_a_sentence():
    tally = captures.fuzz(seed=20, captures=8, cpu_s=FAR_TOO_LONG_CPU_S)
    assert tally.failures == []
    assert sum(tally.codes.values()) == 6 * 8
    assert {"exit 0", "exit 1"} == set(tally.codes)
    assert len(tally.damages) > 3


def test_the_fuzzer_sees_what_it_looks_for(tmp_path):
    run = captures.Run(("stats", "run.kprof"), 1, "", "kprof: one line\n", 0.1)
    assert list(captures.faults(run, tmp_path, 1.0)) == []
    (tmp_path / "trace.json").write_text(captures.SECRET)
    bad = captures.Run(("stats", "run.kprof"), 5, "\x1b[2J", "Traceback\nmore\n", 2.0)
    assert len(list(captures.faults(bad, tmp_path, 1.0))) == 5
