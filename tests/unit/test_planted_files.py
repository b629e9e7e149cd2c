"""What other users plant where kprof works, and what strangers put into a recording that they send."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kprof
import kprof_cli.main
from kprof import private
from kprof.capture.directory import begin_capture
from kprof.capture.journal import Begun, Memory, begin_journal, say
from kprof.capture.output import replacing
from kprof.capture.shared_memory import make_memory, memory_of, remove_garbage, remove_memory
from kprof.devices import cache
from kprof.devices.cache import CACHE_VARIABLE, cache_dir
from kprof.errors import (
    CaptureError,
    CorruptCaptureError,
    ForeignFormatError,
    KprofError,
    NotACaptureError,
    OutputExistsError,
)
from kprof.hangs.look import look_at
from kprof.importers import import_events
from kprof.recording.finishing.recover import locked as run_lock
from kprof.recording.finishing.recover import recover
from kprof.recording.launcher.record import RecordRequest, record

OTHER_USER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's files")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /dev/shm of the test's own."""
    folder = tmp_path / "shm"
    folder.mkdir()
    folder.chmod(0o1777)
    monkeypatch.setattr(private, "_MEMORY_DIR", folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    return directory


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """What must never be touched."""
    folder = tmp_path / "thesis"
    folder.mkdir()
    for name in ("chapter-1", "rank-00000.waits"):
        (folder / name).write_text("years of work")
    return folder


RECORDING = """mkdir {0}
echo '{{"type": "begun", "command": [], "created_utc": "", "num_procs": 1}}' > {0}/said
echo '{{"type": "memory"}}' >> {0}/said
echo '{{"type": "started", "rank": 0, "pid": {1}, "host": ""}}' > {0}/rank-00000.said
echo '{{"version": 1, "save_signal": 9, "ranks": [{{"rank": 0, "pid": {1}}}]}}' > {0}/hang.json
head -c 4096 /dev/zero > {0}/rank-00000.live
echo x > {0}/rank-00000.waits; chmod -R a+rwX {0}"""
# Of a path, a process, and what must not be touched.
PLANTS = {
    "pipe": "mkfifo {0}",
    "zeros": "ln -s /dev/zero {0}",
    "link": "ln -s {2} {0}",
    "nowhere": "ln -s {2}/new {0}",
    "no text": "printf '\\377\\376\\200' > {0}",
    "folder": "mkdir {0}; touch {0}/x",
    "open folder": "mkdir {0}; chmod 777 {0}",
    "set-uid shell": "cp /bin/sh {0}; chmod 4755 {0}",
    "recording": RECORDING,
    "linked recording": RECORDING + "; ln -sf {2}/rank-00000.waits {0}",
}
# Names of sockets are short.
BIND = f"""cd $(dirname {{0}}); {sys.executable} -c "
import socket; socket.socket(socket.AF_UNIX).bind('$(basename {{0}})')" """
PLANTS_OF_OURS = PLANTS | {"socket": BIND, "dangling": "ln -s nowhere {0}"}
FILES = ("pipe", "zeros", "link", "dangling", "socket", "no text", "set-uid shell")
LINKS = FILES[:5]


def plant(
    name: str, path: Path, thesis: Path = Path("/etc/passwd"), pid: int = 1, user: int | None = None
) -> None:
    """As ourselves, or as another user."""
    done = subprocess.run(
        ["sh", "-c", PLANTS_OF_OURS[name].format(path, pid, thesis)],
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        cwd="/",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# Shared memory


def _others(root: Path) -> None:
    root.mkdir(mode=0o700)
    os.chown(root, OTHER_USER, OTHER_USER)


def _open_to_all(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)


def _link_to_own(root: Path) -> None:
    target = root.with_name("target")
    target.mkdir(mode=0o700)
    root.symlink_to(target)


def state_of(path: Path) -> tuple[int, ...]:
    """All but when somebody last read it: this test does."""
    found = path.lstat()
    return (
        found.st_mode,
        found.st_ino,
        found.st_uid,
        found.st_gid,
        found.st_size,
        found.st_mtime_ns,
    )


@pytest.mark.parametrize(
    "make", [pytest.param(_others, marks=needs_root), _open_to_all, _link_to_own, *FILES]
)
def test_a_planted_directory_in_memory_is_not_used(
    make: Callable[[Path], None] | str, memory: Path, run: Path
) -> None:
    root = memory / f"kprof-{os.geteuid()}-v2"
    make(root) if callable(make) else plant(make, root)
    before = state_of(root), sorted(memory.rglob("*"))
    assert make_memory(run)
    assert memory_of(run) == run
    remove_garbage()
    remove_memory(run)
    assert (run / "said").exists()
    assert before == (state_of(root), sorted(memory.rglob("*")))


def test_memory_that_others_can_rename_is_not_used(memory: Path, run: Path) -> None:
    memory.chmod(0o777)
    assert "other users can replace it" in make_memory(run)


def test_the_memory_of_a_recording_is_for_its_user_alone(memory: Path, run: Path) -> None:
    old = os.umask(0)
    try:
        assert make_memory(run) == ""
    finally:
        os.umask(old)
    made = list(memory.rglob("*"))
    assert len(made) == 3
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


@pytest.mark.parametrize("name", FILES)
def test_what_is_planted_in_our_memory_ends_nothing(name: str, memory: Path, run: Path) -> None:
    """A workload of this user may write anything there."""
    make_memory(run)
    folder = memory_of(run)
    assert folder is not None
    (folder / "directory").unlink()
    plant(name, folder / "directory")
    remove_garbage()
    assert not folder.exists()


# Recordings that somebody sends


@pytest.mark.parametrize("text", [".", "..", "thesis", "/", "\0"])
def test_no_text_of_a_journal_leads_out_of_our_memory(
    text: str, memory: Path, run: Path, thesis: Path
) -> None:
    private.memory_root(make=True)
    begin_journal(run, Begun((), "", 1))
    say(run, None, Memory(str(thesis) if text == "thesis" else text))
    assert memory_of(run) is None
    for use in (recover, look_at):
        with pytest.raises(KprofError):
            use(run)
    remove_memory(run)
    assert (thesis / "chapter-1").read_text() == "years of work"
    assert (run / "said").exists()


def test_a_copy_of_a_recording_does_not_have_its_memory(memory: Path, run: Path) -> None:
    make_memory(run)
    copy = Path(shutil.copytree(run, run.with_name("copy.kprof.unfinished")))
    assert memory_of(run) is not None
    assert memory_of(copy) is None
    remove_memory(copy)
    assert memory_of(run) is not None


NAMES = (
    "said",
    "rank-00000.live",
    "rank-00000.said",
    "rank-00000.arena",
    "rank-00000.waits",
    "rank-00000.parquet",
    "part-00000-00000.parquet",
    "hang.json",
    "manifest.json",
)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_recording_with_links_and_pipes_is_refused(
    name: str, link: str, memory: Path, run: Path
) -> None:
    begin_journal(run, Begun((), "", 1))
    say(run, None, Memory())
    (run / name).unlink(missing_ok=True)
    plant(link, run / name)
    with pytest.raises(CorruptCaptureError, match="link or not a regular file"):
        recover(run)
    # Without its journal nobody knows that it is under way.
    no_run = (NotACaptureError, "is no run|has ended and did not hang")
    refused = (CorruptCaptureError, "link or not a regular file")
    error, text = no_run if name == "said" else refused
    with pytest.raises(error, match=text):
        look_at(run)
    assert run.is_dir()


def test_a_file_with_another_name_outside_is_refused(memory: Path, run: Path, thesis: Path) -> None:
    begin_journal(run, Begun((), "", 1))
    os.link(thesis / "chapter-1", run / "rank-00000.said")
    with pytest.raises(CorruptCaptureError, match="said is a link"):
        recover(run)


@pytest.mark.parametrize(
    "mode", [0o777, *(pytest.param(mode, marks=needs_root) for mode in (0o775, 0o770, 0o2775))]
)
def test_a_recording_that_all_or_a_group_can_write_to_is_refused(
    mode: int, memory: Path, run: Path
) -> None:
    begin_journal(run, Begun((), "", 1))
    say(run, None, Memory())
    if mode != 0o777:
        os.chown(run, -1, OTHER_USER)
    run.chmod(mode)
    for use in (recover, look_at):
        with pytest.raises(CaptureError, match=r"others can change it.*chmod go-w"):
            use(run)
    assert run.is_dir()


@needs_root
def test_a_folder_of_another_user_inside_a_recording_is_refused(memory: Path, run: Path) -> None:
    begin_journal(run, Begun((), "", 1))
    (run / "folder").mkdir()
    os.chown(run / "folder", OTHER_USER, OTHER_USER)
    with pytest.raises(CaptureError, match=f"folder belongs to user {OTHER_USER}"):
        recover(run)


def _group(members: list[str], name: str = "ada") -> Callable[[int], grp.struct_group]:
    return lambda gid: grp.struct_group((name, "x", gid, members))


@pytest.mark.parametrize(
    ("mode", "group", "can"),
    [
        (0o755, _group(["eve"]), False),
        (0o775, _group([]), False),
        (0o775, _group(["ada"]), False),
        (0o775, _group(["ada", "eve"]), True),
        (0o775, _group([], "staff"), True),
        (0o777, _group([]), True),
    ],
)
def test_a_group_of_one_is_nobody_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    group: Callable[[int], grp.struct_group],
    can: bool,
) -> None:
    monkeypatch.setattr(private.grp, "getgrgid", group)
    ada = pwd.struct_passwd(("ada", "x", os.geteuid(), 1, "", "/", "/bin/sh"))
    monkeypatch.setattr(private.pwd, "getpwuid", lambda uid: ada)
    tmp_path.chmod(mode)
    assert private.others_can_write(tmp_path.stat()) is can


def test_a_folder_that_is_no_recording_is_not_written_to(thesis: Path) -> None:
    (thesis / "rank-00000.waits").unlink()
    before = sorted(thesis.rglob("*"))
    with pytest.raises(NotACaptureError, match="holds nothing of a recording"):
        recover(thesis, thesis.with_name("run.kprof"))
    assert sorted(thesis.rglob("*")) == before


# Outputs


def _modes(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_what_is_being_recorded_is_for_its_user_alone_and_the_capture_is_as_asked(
    tmp_path: Path, umask: int
) -> None:
    """Others could lock the directory, which stopped `kprof recover`, and a group could change it."""
    output = tmp_path / "run.kprof"
    old = os.umask(umask)
    try:
        with kprof.session(output, arena_bytes=1 << 16) as recorder:
            recorder.launch("combine", ["a"])
            assert _modes(output.with_name("run.kprof.unfinished")) == 0o700
        assert _modes(output) == 0o777 & ~umask
        assert _modes(output / "manifest.json") == 0o666 & ~umask
    finally:
        os.umask(old)


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_link_where_kprof_works_harms_no_other_recording(
    memory: Path, run: Path, tmp_path: Path, is_forced: bool
) -> None:
    """The memory of the recording where it leads to was removed."""
    begin_journal(run, Begun((), "", 1))
    make_memory(run)
    (tmp_path / "b.kprof.unfinished").symlink_to(run)
    with pytest.raises(OutputExistsError, match="not a directory of yours"):
        begin_capture(tmp_path / "b.kprof", force=is_forced)
    assert memory_of(run) is not None


APP = b'{"name": "my app", "icons": [], "start_url": "/"}'


def test_force_does_not_replace_the_folder_of_a_web_app(tmp_path: Path) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "manifest.json").write_bytes(APP)
    with pytest.raises(OutputExistsError, match="will not delete it"):
        begin_capture(app, force=True)
    request = RecordRequest((sys.executable, "-c", ""), app, force=True)
    with pytest.raises(OutputExistsError, match="will not delete it"):
        record(request)
    assert (app / "manifest.json").read_bytes() == APP


@pytest.mark.parametrize("is_forced", [False, True])
def test_a_folder_whose_name_ends_like_a_recording_is_not_deleted(
    tmp_path: Path, is_forced: bool
) -> None:
    essay = tmp_path / "essay.unfinished"
    essay.mkdir()
    (essay / "said").write_bytes(APP)
    with pytest.raises(OutputExistsError, match="not a kprof recording"):
        begin_capture(tmp_path / "essay", force=is_forced)
    assert (essay / "said").read_bytes() == APP


@pytest.mark.parametrize("name", LINKS)
def test_a_planted_temporary_file_is_not_written_through(name: str, tmp_path: Path) -> None:
    output = tmp_path / "run.pftrace"
    plant(name, tmp_path / f".run.pftrace.{os.getpid()}.tmp")
    with replacing(output, force=False) as file:
        file.write(b"trace")
    assert output.read_bytes() == b"trace"
    assert stat.S_ISREG(output.lstat().st_mode)


def test_heaps_are_for_their_user_alone(memory: Path) -> None:
    with private.heap_file("17-7f", 1 << 16) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.stat().st_size == 1 << 16
        remove_garbage()
        assert path.exists(), "somebody has it"
    assert not path.exists()
    left = private.memory_root() / "heap-18-0"
    left.write_bytes(b"of a process that was killed")
    remove_garbage()
    assert not left.exists()


# Builds are loaded and run


def test_the_build_cache_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    found = cache_dir()
    assert found.parent == tmp_path / "cache"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    "make", [pytest.param(_others, marks=needs_root), _open_to_all, _link_to_own, None]
)
def test_a_build_that_others_could_have_made_is_not_run(
    make: Callable[[Path], None] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    if make:
        make(cache / f"user-{os.geteuid()}")
    else:
        cache.chmod(0o777)
    found = cache_dir()
    assert not found.is_relative_to(cache)
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    assert "set KPROF_CACHE_DIR to a directory of yours" in capfd.readouterr().err


# kprof clean


def test_clean_keeps_what_can_be_recovered(
    memory: Path, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_memory(run)
    folder = memory_of(run)
    assert folder is not None
    assert kprof_cli.main.run(["clean"]) == 0
    assert capfd.readouterr().out.split() == [
        "0",
        "MiB",
        "recoverable",
        "kprof",
        "recover",
        str(run),
    ]
    assert folder.is_dir()
    with run_lock(run):
        kprof_cli.main.run(["clean", "--force"])
        assert "in use" in capfd.readouterr().out
        assert folder.is_dir()
    kprof_cli.main.run(["clean", "--force"])
    assert "removed" in capfd.readouterr().out
    assert not folder.exists()
    kprof_cli.main.run(["clean"])
    assert capfd.readouterr().out == "no recording has left anything in /dev/shm\n"


def test_every_command_removes_what_nobody_can_recover(memory: Path, run: Path) -> None:
    make_memory(run)
    folder = memory_of(run)
    assert folder is not None
    shutil.rmtree(run)
    kprof_cli.main.run(["clean"])
    assert not folder.exists()


def test_hang_and_watch_refuse_what_recover_refuses(
    memory: Path, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_memory(run)
    (run / "rank-00000.live").write_bytes(bytes(64))
    plant("zeros", run / "rank-00000.said")
    for command in ("hang", "watch", "recover"):
        assert kprof_cli.main.run([command, str(run)]) == 1, command
        (said,) = capfd.readouterr().err.splitlines()
        assert "rank-00000.said is a link or not a regular file" in said, command


def test_a_capture_that_a_killed_replacement_left_is_named_and_kept(
    memory: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run.kprof"
    for _ in range(2):
        with kprof.session(output, arena_bytes=1 << 16, force=True) as recorder:
            recorder.launch("combine", ["a"])
    earlier = output.with_name("run.kprof.replaced")
    shutil.copytree(output, earlier)
    with (
        pytest.raises(OutputExistsError, match=r"run\.kprof\.replaced is in the way"),
        kprof.session(output, arena_bytes=1 << 16, force=True),
    ):
        pass
    shutil.rmtree(output)
    with kprof.session(output, arena_bytes=1 << 16) as recorder:
        recorder.launch("combine", ["a"])
    assert (earlier / "manifest.json").exists()


# Another user of the machine, in a folder where all can write


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
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process of root that ends when it gets a signal."""
    process = subprocess.Popen(["sleep", "1000000"])
    yield process
    assert process.poll() is None, "somebody has signalled it"
    process.kill()
    process.wait()


def states_of(*folders: Path) -> dict[str, tuple[int, int, bytes]]:
    """Modes, owners and contents; of a link, itself."""
    found = {}
    for path in (each for folder in folders for each in (folder, *folder.rglob("*"))):
        status = path.lstat()
        is_file = path.is_file() and not path.is_symlink()
        found[str(path)] = (status.st_mode, status.st_uid, path.read_bytes() if is_file else b"")
    return found


@needs_root
@pytest.mark.parametrize("name", PLANTS)
@pytest.mark.parametrize("suffix", [".unfinished", "", ".replaced", ".rank-0.attempt-1.unfinished"])
def test_nothing_planted_beside_the_output_is_used_or_removed(
    shared: Path, thesis: Path, victim: subprocess.Popen[bytes], name: str, suffix: str
) -> None:
    output = shared / "run.kprof"
    place = Path(f"{output}{suffix}")
    plant(name, place, thesis, victim.pid, OTHER_USER)
    before = states_of(thesis, shared)
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
    assert states_of(thesis, shared) == before


@needs_root
@pytest.mark.parametrize(
    "name", [name for name in PLANTS if name not in ("set-uid shell", "no text")]
)
def test_what_is_planted_is_no_file_to_import(
    shared: Path, thesis: Path, victim: subprocess.Popen[bytes], tmp_path: Path, name: str
) -> None:
    plant(name, shared / "trace.json", thesis, victim.pid, OTHER_USER)
    for kind in (None, "chrome", "nsys", "flight_recorder"):
        with pytest.raises(ForeignFormatError):
            import_events(kind, [shared / "trace.json"], tmp_path / "run.kprof")
    assert not (tmp_path / "run.kprof").exists()


@needs_root
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
    (shared / "cache").mkdir()
    (shared / "cache").chmod(0o777)
    plant(name, shared / "kprof-cache-0", thesis, victim.pid, OTHER_USER)
    found = cache_dir()
    assert (found.stat().st_uid, found.stat().st_mode & 0o777) == (0, 0o700)
    assert found == cache_dir(), "one for all builds of a process"
    assert found != shared / "kprof-cache-0"


@needs_root
def test_his_recording_signals_nobody(
    shared: Path, thesis: Path, victim: subprocess.Popen[bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    plant("recording", shared / "his.kprof.unfinished", thesis, victim.pid, OTHER_USER)
    for command in ("hang", "watch", "recover"):
        assert kprof_cli.main.run([command, str(shared / "his.kprof.unfinished")]) == 1
        said = capfd.readouterr().err
        assert f"belongs to user {OTHER_USER}" in said
        assert "cp -r" in said
