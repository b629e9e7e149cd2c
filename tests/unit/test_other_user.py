"""Another user of the machine plants files as himself, in a folder where all can write: what root does then harms nobody."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import kprof_cli.main
from kprof import private
from kprof.capture.directory import begin_capture
from kprof.devices import cache
from kprof.devices.cache import CACHE_VARIABLE, cache_dir
from kprof.errors import CaptureError, ForeignFormatError, OutputExistsError
from kprof.hangs.look import look_at
from kprof.importers import import_events
from kprof.recording.finishing.recover import recover

MALLORY = 12345
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be attacked as root")

RECORDING = """mkdir {0}
echo '{{"type": "begun", "command": [], "created_utc": "", "num_procs": 1}}' > {0}/said
echo '{{"type": "memory"}}' >> {0}/said
echo '{{"type": "started", "rank": 0, "pid": {1}, "host": ""}}' > {0}/rank-00000.said
echo '{{"version": 1, "save_signal": 9, "ranks": [{{"rank": 0, "pid": {1}}}]}}' > {0}/hang.json
head -c 4096 /dev/zero > {0}/rank-00000.live
echo x > {0}/rank-00000.waits; chmod -R a+rwX {0}"""
PLANTS = {
    "pipe": "mkfifo {0}",
    "zeros": "ln -s /dev/zero {0}",
    "link": "ln -s {2} {0}",
    "nowhere": "ln -s {2}/new {0}",
    "folder": "mkdir {0}; touch {0}/x",
    "open folder": "mkdir {0}; chmod 777 {0}",
    "set-uid shell": "cp /bin/sh {0}; chmod 4755 {0}",
    "recording": RECORDING,
    "linked recording": RECORDING + "; ln -sf {2}/rank-00000.waits {0}",
}


def mallory(command: str) -> subprocess.CompletedProcess[str]:
    """Run a shell as another user."""
    return subprocess.run(
        ["sh", "-c", command],
        user=MALLORY,
        group=MALLORY,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like /tmp, which also takes the place of /dev/shm; `tmp_path` has its place before that."""
    # The folders of pytest let nobody else in.
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setattr(private, "_MEMORY_DIR", folder)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)
    # It may have chosen a place for builds there.
    cache._of_this_process.cache_clear()


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "rank-00000.waits").write_text("years of work")
    return folder


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root that ends when it gets a signal."""
    process = subprocess.Popen(["sleep", "1000000"])
    yield process
    assert process.poll() is None, "somebody has signalled it"
    process.kill()
    process.wait()


def plant(name: str, path: Path, victim: int, thesis: Path) -> None:
    done = mallory(PLANTS[name].format(path, victim, thesis))
    assert done.returncode == 0, done.stderr


def state_of(*folders: Path) -> dict[str, tuple[int, int, bytes]]:
    """Modes, owners and contents; of a link, itself."""
    found = {}
    for path in (each for folder in folders for each in (folder, *folder.rglob("*"))):
        status = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        found[str(path)] = (status.st_mode, status.st_uid, path.read_bytes() if is_file else b"")
    return found


@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("suffix", [".unfinished", "", ".replaced", ".rank-0.attempt-1.unfinished"])
def test_nothing_planted_beside_the_output_is_used_or_removed(
    shared: Path, thesis: Path, victim: subprocess.Popen[bytes], name: str, suffix: str
) -> None:
    output = shared / "run.kprof"
    place = Path(f"{output}{suffix}")
    plant(name, place, victim.pid, thesis)
    before = state_of(thesis, shared)
    for is_forced in (False, True):
        try:
            directory = begin_capture(output, force=is_forced)
        except OutputExistsError:
            continue
        # It is a new one, which only we can use.
        assert suffix != ".unfinished"
        assert (directory.stat().st_uid, directory.stat().st_mode & 0o777) == (0, 0o700)
        shutil.rmtree(directory)
    for use in (recover, look_at):
        with pytest.raises(CaptureError):
            use(place)
    assert state_of(thesis, shared) == before


@pytest.mark.parametrize("name", [name for name in PLANTS if name != "set-uid shell"])
def test_what_is_planted_is_no_file_to_import(
    shared: Path, thesis: Path, victim: subprocess.Popen[bytes], tmp_path: Path, name: str
) -> None:
    plant(name, shared / "trace.json", victim.pid, thesis)
    for kind in (None, "chrome", "nsys", "flight_recorder"):
        with pytest.raises(ForeignFormatError):
            import_events(kind, [shared / "trace.json"], tmp_path / "run.kprof")
    assert not (tmp_path / "run.kprof").exists()


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_cache_in_the_folder_for_temporary_files_is_not_used(
    shared: Path,
    thesis: Path,
    victim: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    cache._of_this_process.cache_clear()
    monkeypatch.setenv(CACHE_VARIABLE, str(shared / "cache"))
    mallory(f"mkdir {shared}/cache; chmod 777 {shared}/cache")
    plant(name, shared / "kprof-cache-0", victim.pid, thesis)
    found = cache_dir()
    assert (found.stat().st_uid, found.stat().st_mode & 0o777) == (0, 0o700)
    assert found == cache_dir(), "one for all builds of a process"
    assert found != shared / "kprof-cache-0"


def test_his_recording_signals_nobody(
    shared: Path, thesis: Path, victim: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    plant("recording", shared / "his.kprof.unfinished", victim.pid, thesis)
    for command in ("hang", "watch", "recover"):
        assert kprof_cli.main.run([command, str(shared / "his.kprof.unfinished")]) == 1
        said = capfd.readouterr().err
        assert f"belongs to user {MALLORY}" in said
        assert "cp -r" in said
