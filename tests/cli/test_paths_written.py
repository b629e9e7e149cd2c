"""Every path that kprof and its ranks open for writing, make, rename or remove, seen by an audit hook in all of their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kprof.devices.cache import CACHE_VARIABLE, cache_dir

WORKLOAD = str(Path(__file__).parent / "workloads" / "lifetimes.py")
# Python runs this first in every process.
HOOK = """
import atexit, os, stat, sys
_LOG = os.open(os.environ["AUDIT_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_CHANGES = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.link": 2, "os.symlink": 2,
            "os.truncate": 1, "os.chmod": 1, "os.chown": 1, "shutil.rmtree": 1, "shutil.move": 2}
_IN_DIRECTORY = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.chmod": 2}

def _path(path, directory=-1):
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")
    text = os.fsdecode(path)
    if text.startswith("/proc/self/fd/"):
        # What is held (kprof.private): the last name may be a link itself.
        descriptor, _, name = text.removeprefix("/proc/self/fd/").partition("/")
        return os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), name).rstrip("/")
    if isinstance(directory, int) and directory >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{directory}"), text)
    return os.path.abspath(text)

_coming = []

def _write(event, path):
    os.write(_LOG, f"{event} {path}\\n".encode(errors="surrogateescape"))

def _say_modes():
    # Of what the steps before have made: they are seen before they happen.
    while _coming:
        path = _coming.pop()
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        _write(f"{'folder' if stat.S_ISDIR(mode) else 'file'}-{stat.S_IMODE(mode):o}", path)

atexit.register(_say_modes)

def _see(event, arguments):
    _say_modes()
    if event == "open":
        path, _, flags = arguments
        if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return
        found = [_path(path)]
        if flags & os.O_CREAT and not os.path.lexists(found[0]):
            _coming.append(found[0])
    elif event == "os.kill":
        found = [f"signal {arguments[1]}"]
    elif event in _CHANGES:
        at = _IN_DIRECTORY.get(event)
        directory = arguments[at] if at is not None and len(arguments) > at else -1
        found = [_path(each, directory) for each in arguments[:_CHANGES[event]]]
        if event == "os.mkdir" and not os.path.lexists(found[0]):
            _coming.extend(found)
    else:
        return
    for each in found:
        _write(event, each)

sys.addaudithook(_see)
"""


class Audited:
    """Runs kprof with the hook; `strays` are the paths outside of those that kprof may change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        startup, self.temporary = folder / "startup", folder / "tmp"
        for made in (startup, self.temporary, folder / "home", folder / "given"):
            made.mkdir()
        (startup / "sitecustomize.py").write_text(HOOK)
        self._environment = os.environ | {
            "AUDIT_LOG": str(self.log),
            "PYTHONPATH": os.pathsep.join([str(startup), *sys.path]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.temporary),
            "HOME": str(folder / "home"),
            "BROWSER": "true",
            CACHE_VARIABLE: str(cache_dir().parent),
        }
        self._allowed = (
            f"{folder / 'given'}/",
            f"{self.temporary}/kprof-",
            f"{cache_dir()}",
            f"/dev/shm/kprof-{os.geteuid()}-v2",
        )

    def kprof(self, *arguments: str, code: int = 0) -> list[str]:
        """What the command changed outside of the given folder; it has to see the hook at all."""
        return self.python("-m", "kprof_cli", *arguments, code=code)

    def in_one_process(self, *lines: tuple[str, ...]) -> list[str]:
        """The same of several commands, which all succeed."""
        program = (
            "import sys, kprof_cli.main as cli\n"
            f"sys.exit(any([cli.run(line) for line in {lines!r}]))"
        )
        return self.python("-c", program)

    def python(self, *arguments: str, code: int = 0) -> list[str]:
        self.log.unlink(missing_ok=True)
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command,
            env=self._environment,
            cwd=self.folder / "given",
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.changes = [line.split(" ", 1) for line in lines]
        assert self.open_to_others() == [], arguments
        return [
            f"{event} {path}"
            for event, path in self.changes
            if not path.startswith((*self._allowed, "/dev/null", "/dev/tty"))
            # It is made unless it is there.
            and (event, path) != ("os.mkdir", str(cache_dir().parent))
        ]

    def made(self) -> dict[str, str]:
        """The mode of everything that the command made, such as file-600, by path."""
        return {
            path: event for event, path in self.changes if event.startswith(("file-", "folder-"))
        }

    def open_to_others(self) -> list[str]:
        """What others may open of what the command made outside of the given folder. Files in a private folder are
        private, but not in memory: each has to be."""
        made = self.made()
        private = {path for path, mode in made.items() if mode == "folder-700"} | {str(cache_dir())}
        return [
            f"{mode} {path}"
            for path, mode in made.items()
            if mode not in ("file-600", "folder-700")
            and not path.startswith(f"{self.folder / 'given'}/")
            and (path.startswith("/dev/shm/") or private.isdisjoint(map(str, Path(path).parents)))
        ]


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    return Audited(tmp_path)


def test_no_command_changes_anything_but_what_it_was_given(audited: Audited) -> None:
    record = ("record", "-o", "run.kprof", "--", sys.executable, WORKLOAD)
    assert audited.kprof(*record, "returns") == []
    made = {path for _, path in audited.changes}
    in_memory = {
        path: mode for path, mode in audited.made().items() if path.startswith("/dev/shm/")
    }
    assert {"file-600", "folder-700"} == set(in_memory.values())
    assert any(path.endswith("/rank-00000.arena") for path in in_memory), "of the rank"
    assert any(path.endswith("run.kprof.unfinished/rank-00000.live") for path in made), (
        "of the rank"
    )
    strays = audited.in_one_process(
        ("report", "run.kprof"),
        ("report", "run.kprof", "-o", "page.html"),
        ("export", "run.kprof", "-o", "run.pftrace"),
        ("export", "run.kprof", "-o", "run.json.gz"),
        ("info", "run.kprof"),
        ("clean",),
    )
    assert strays == []
    assert {path.name for path in (audited.folder / "given").iterdir()} == {
        *("run.kprof", "page.html", "run.pftrace", "run.json.gz")
    }
    assert audited.kprof("hang", "run.kprof", code=1) == []
    assert audited.kprof("watch", "run.kprof", code=1) == []
    assert not list(audited.temporary.iterdir())
    assert not list((audited.folder / "home").iterdir())


def test_recover_changes_the_recording_alone(audited: Audited) -> None:
    code = (
        "import os, sys; from kprof.recording.launcher import record; from pathlib import Path\n"
        "s = record.session(Path('run.kprof')); d = s.__enter__()\n"
        "import kprof; r = kprof.Recorder(d, rank=0, world_size=1, arena_bytes=1 << 20)\n"
        "r.launch('combine', ['a']); os._exit(9)"
    )
    environment = audited._environment | {"AUDIT_LOG": os.devnull}
    given = audited.folder / "given"
    assert subprocess.run([sys.executable, "-c", code], env=environment, cwd=given).returncode == 9
    assert audited.kprof("hang", "run.kprof.unfinished") == []
    assert audited.kprof("recover", "run.kprof.unfinished") == []
    assert [path.name for path in given.iterdir()] == ["run.kprof"]
