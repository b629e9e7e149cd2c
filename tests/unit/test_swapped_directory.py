"""Who owns the folder of the output swaps the recording for a link, at any step: nothing where that leads is touched."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import fail_at, without_faults
from kprof.capture.journal import Begun, begin_journal
from kprof.capture.set_aside import set_aside
from kprof.capture.shared_memory import make_memory
from kprof.errors import KprofError
from kprof.private import UntrustedError, held, open_plain
from kprof.recording.finishing.recover import recover
from kprof.recording.rank.recorder import Recorder

MALLORY = 12345
STRIDE = int(os.environ.get("KPROF_TEST_STRIDE", "3"))
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's links")

# What kprof would write or remove in a recording.
NAMES = (
    "said",
    "manifest.json",
    "kprof-copy",
    "a.tmp",
    "nccl-thesis",
    "part-00000-00000.parquet",
    *(f"rank-00000.{kind}" for kind in ("parquet", "said", "live", "waits")),
    "chapter-1",
)


class Swapped:
    """A recording in a folder of Mallory's, who can put a link to root's thesis in its place."""

    def __init__(self, folder: Path) -> None:
        self.output = folder / "his" / "run.kprof"
        self.directory = folder / "his" / "run.kprof.unfinished"
        self.thesis, self._aside = folder / "thesis", folder / "his" / "aside"
        self.output.parent.mkdir()
        self.thesis.mkdir(mode=0o700)
        for name in NAMES:
            (self.thesis / name).write_text(f"years of work: {name}")
        self.thesis.chmod(0o700)
        self._before = self._state()

    def _state(self) -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (
                path.stat().st_ino,
                path.stat().st_mode,
                path.read_bytes() if path.is_file() else b"",
            )
            for path in (self.thesis, *self.thesis.rglob("*"))
        }

    def swap(self) -> None:
        with without_faults(), contextlib.suppress(FileNotFoundError):
            self.directory.rename(self._aside)
            self.directory.symlink_to(self.thesis)
            os.lchown(self.directory, MALLORY, MALLORY)

    def check(self, where: str) -> None:
        assert self._state() == self._before, where

    def clear(self) -> None:
        shutil.rmtree(self.output.parent)
        self.output.parent.mkdir()


@pytest.fixture
def swapped(tmp_path: Path) -> Swapped:
    return Swapped(tmp_path)


def _recovers(swapped: Swapped) -> None:
    with without_faults():
        _leave(swapped.directory)
    recover(swapped.directory)


def _recovers_elsewhere(swapped: Swapped) -> None:
    with without_faults():
        _leave(swapped.directory)
    recover(swapped.directory, swapped.thesis.with_name("elsewhere.kprof"), force=True)


def _sets_aside(swapped: Swapped) -> None:
    with without_faults():
        _leave(swapped.directory)
    set_aside(swapped.directory, 0, swapped.directory.glob("part-*"))


def _leave(directory: Path) -> None:
    directory.mkdir(mode=0o700)
    begin_journal(directory, Begun((), "", 1))
    make_memory(directory)
    Recorder(directory, rank=0, world_size=1, arena_bytes=1 << 16).close()
    (directory / "part-00000-00000.parquet").write_bytes(b"")


@pytest.mark.parametrize("act", [_recovers, _recovers_elsewhere, _sets_aside])
def test_a_link_that_takes_the_place_of_the_recording_at_any_step_harms_nothing(
    act: Callable[[Swapped], None], swapped: Swapped
) -> None:
    def attacked() -> None:
        with contextlib.suppress(KprofError, OSError):
            act(swapped)

    step, num_steps = 0, 1
    while step < num_steps:
        num_steps, where = fail_at(step, None, attacked, at_the_step=swapped.swap)
        swapped.check(f"step {step} of {num_steps}: {where}")
        swapped.clear()
        step += STRIDE
    assert step > 10 * STRIDE


def test_a_link_of_another_user_is_no_directory_of_ours(swapped: Swapped) -> None:
    swapped.directory.mkdir()
    with held(swapped.directory) as here:
        swapped.swap()
        (here / "said").write_text("in the one that was opened")
    swapped.check("it was held")
    with pytest.raises(UntrustedError, match=f"a link of user {MALLORY}"):
        open_plain(swapped.directory / "said")
    own = swapped.output.with_name("own")
    own.symlink_to(swapped.thesis)
    with held(own) as here:
        assert (here / "said").exists(), "our own links are followed"
    loop = swapped.output.with_name("loop")
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="Too many levels"), held(loop):
        pass


def test_what_is_held_has_its_name_in_sentences(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        open_plain(tmp_path / "missing")
    assert error.value.filename == str(tmp_path / "missing")
    for path in (Path("/"), Path(), Path(".."), tmp_path):
        os.close(open_plain(path, os.O_RDONLY | os.O_DIRECTORY))
