"""What a machine, an environment or a file may hold that nobody expects: each ends in one sentence, or changes nothing."""

from __future__ import annotations

import queue
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import duckdb
import numpy as np
import pytest

import kprof
from kprof import abi
from kprof.capture.processes import Process, process_of
from kprof.devices.cache import cache_dir
from kprof.errors import ArenaError, describe_error
from kprof.recording.arenas.arena_state import Handed, read_arena
from kprof.recording.arenas.ledger import accounts_in
from kprof.recording.launches.progress import RankProgress
from kprof.recording.rank.process import ARENA_BYTES_VARIABLE, _arena_bytes
from kprof.trace.queries import reading
from kprof_cli import watching


@pytest.mark.parametrize("text", ["\u00b2", "\u0664", "-1", "1e9", "", "9" * 30])
def test_a_size_that_is_no_number_is_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ARENA_BYTES_VARIABLE, text)
    with pytest.raises(ArenaError, match="is not a number of bytes"):
        _arena_bytes()


def test_builds_are_kept_where_no_home_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("KPROF_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_dir().is_dir()


def test_what_is_too_large_for_a_query_is_no_fault_of_the_query() -> None:
    with pytest.raises(MemoryError) as raised, reading():
        duckdb.connect(config={"memory_limit": "1MB"}).sql(
            "SELECT list(range) FROM range(10000000)"
        ).fetchall()
    assert (
        describe_error(raised.value)
        == "not enough memory; select less, such as --ranks 0-3 or --launches 4"
    )


def test_a_process_number_that_no_process_can_have(tmp_path: Path) -> None:
    here = process_of(1)
    process = Process(here.host, 1 << 63, here.namespace, 0)
    assert not process.maps(tmp_path)
    assert process.condition().value == "ended"


def test_metrics_are_for_who_asks_for_this_host_by_name() -> None:
    server = watching._serve(list, 0)
    try:
        port = server.server_address[1]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Host": "other.example"}
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request)
    finally:
        server.shutdown()
        server.server_close()


def test_a_metrics_client_that_goes_away_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    has_gone, threads = threading.Event(), queue.SimpleQueue[threading.Thread]()

    def look() -> list[RankProgress]:
        assert has_gone.wait(60)
        threads.put(threading.current_thread())
        raise BrokenPipeError

    server = watching._serve(look, 0)
    try:
        with socket.create_connection(server.server_address[:2]) as client:
            client.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        has_gone.set()
        threads.get(timeout=60).join()
    finally:
        server.shutdown()
        server.server_close()
    assert "Traceback" not in capfd.readouterr().err


def test_an_account_without_a_limit_is_read_to_the_end_of_its_arena() -> None:
    """Damage that left zeros: its arena may hold as much as there is room for."""
    geometry = abi.ArenaGeometry.for_bytes(1 << 20)
    (account,) = accounts_in(np.zeros(1 << 20, np.uint8), 1)
    handed = Handed.of_account(geometry, account, bytes(abi.SWITCHES.itemsize), abi.Lines())
    assert handed.limit == geometry.num_chunks // geometry.num_cursors > 0
    memory = np.zeros(1 << 20, np.uint8)
    state, _ = read_arena(lambda begin, end: memory[begin:end], handed)
    assert state.num_used_chunks == handed.num_reserved


@pytest.mark.parametrize("limit_bytes", [400 << 20, 1 << 30, 3 << 29])
def test_a_limit_of_address_space_is_named(limit_bytes: int, tmp_path: Path) -> None:
    """DuckDB and Arrow ended the process with SIGSEGV or SIGABRT."""
    with kprof.session(tmp_path / "run.kprof", arena_bytes=1 << 20) as recorder:
        recorder.launch("kernel")
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit_bytes},) * 2); "
        "from kprof_cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "query", str(tmp_path / "run.kprof"), "SELECT 1"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("kprof: ")
    assert ended.stderr.count("\n") == 1
    assert "(ulimit -v)" in ended.stderr or "not enough memory" in ended.stderr
