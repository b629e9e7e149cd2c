"""A short run of the fuzzer: the same captures every time."""

from __future__ import annotations

import contextlib
import shutil

import captures
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sealing import remove_checksums

# By far more than any command takes: only what would go on for minutes counts here. The bar is in
# captures.py.
FAR_TOO_LONG_CPU_S = 60.0


def test_damaged_captures_are_read_or_refused_in_a_sentence(tmp_path):
    with captures.Fuzzer(20, tmp_path, FAR_TOO_LONG_CPU_S) as fuzzer:
        for number in range(8):
            fuzzer.capture(number)
        # One that once ended in an exception.
        fuzzer._seed = 7
        fuzzer.capture(33)
    tally = fuzzer.tally
    assert tally.failures == []
    assert sum(tally.codes.values()) == 6 * 9
    assert {"exit 0", "exit 1"} == set(tally.codes)
    assert len(tally.damages) > 3


def test_the_fuzzer_sees_what_it_looks_for(tmp_path):
    run = captures.Run(("stats", "run.kprof"), 1, "", "kprof: one line\n", 0.1)
    assert list(captures.faults(run, tmp_path, 1.0)) == []
    (tmp_path / "trace.json").write_text(captures.SECRET)
    bad = captures.Run(("stats", "run.kprof"), 5, "\x1b[2J", "Traceback\nmore\n", 2.0)
    assert len(list(captures.faults(bad, tmp_path, 1.0))) == 5


def test_the_fuzzer_sees_damage_that_no_checksum_finds(tmp_path):
    fuzzer = captures.Fuzzer(1, tmp_path, FAR_TOO_LONG_CPU_S)
    seed, run, output = fuzzer.seeds[1], fuzzer.place / "run.kprof", fuzzer.place / "output"
    output.mkdir(parents=True)
    shutil.copytree(seed, run)
    remove_checksums(run)
    path = run / "rank-00000.parquet"
    table = pq.read_table(path)
    stats = ("stats", str(run), "--json")
    with contextlib.closing(fuzzer):
        fuzzer.compare(0, "none", fuzzer.run(stats), seed)
        assert fuzzer.tally.failures == []
        durations = pc.add(table["duration_ns"], 1)
        at = table.column_names.index("duration_ns")
        pq.write_table(table.set_column(at, table.schema.field(at), durations), path)
        fuzzer.compare(1, "events", fuzzer.run(stats), seed)
    (failure,) = fuzzer.tally.failures
    assert "damage that nobody noticed" in failure
    assert pq.read_table(path)["duration_ns"] == durations


def test_a_slow_command_is_judged_beside_a_sound_capture(tmp_path, monkeypatch):
    """The load that makes both slow is no fault; what takes longer on the damaged one only is."""
    fuzzer = captures.Fuzzer(1, tmp_path, 1.0)
    sound, output = fuzzer.seeds[0], tmp_path / "output"
    output.mkdir()
    cpu_s = {"run.kprof": iter([9.0, 4.5, 6.0]), str(sound): iter([8.0, 4.0, 7.0])}

    def run(command: tuple[str, ...]) -> captures.Run:
        return captures.Run(command, 0, "", "", next(cpu_s[command[1]]))

    monkeypatch.setattr(fuzzer._worker, "run", run)
    command = ("stats", "run.kprof", "--time", "0us..1us")
    done, most_cpu_s = fuzzer._in_turns(command, sound, output)
    assert (done.command, done.cpu_s, most_cpu_s) == (command, 4.5, 5.0)
    assert list(captures.faults(done, output, most_cpu_s)) == []
    assert list(captures.faults(done, output, most_cpu_s - 1.0)) == ["4.50 s of processor time"]
