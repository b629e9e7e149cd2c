"""What a capture says of ranks that never closed their recorders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from kprof.capture.claims import Claim, leave_message
from kprof.capture.directory import finish_capture
from kprof.capture.journal import Begun
from kprof.capture.losses import describe_losses
from kprof.capture.manifest import ArenaUse, EventCounts
from kprof.capture.names import rank_file
from kprof.capture.parts import PartWriter
from kprof.capture.started import announce_rank
from kprof.errors import CaptureError, CorruptCaptureError, OutputExistsError
from kprof.rank_memory import Live
from kprof.recording.finishing.finishing import keeping, make_manifest
from kprof.recording.finishing.recover import refuse_open_ranks
from kprof.recording.launcher.stopping import RecordingRanks
from kprof.recording.retention.keeping import NEVER_CLOSED
from synthetic import TraceBuilder

LOST = f"{NEVER_CLOSED}; the last of its 2 launches is lost"
ON_A_GPU = f"{LOST}, because only the GPU's memory had what was not written"


def leave(directory: Path, cut_short: str, *, has_told: bool = False) -> None:
    """Rank 0 on a GPU, which made 2 launches and wrote one."""
    build = TraceBuilder('REGION(A, "a", compute)', 1)
    build.span(0, "a", 0, 1)
    info = replace(build.manifest().ranks[0], target="cuda", cut_short=cut_short)
    PartWriter(directory, 0).save([build.table()], lambda: info)
    claim = Claim(directory, 0)
    claim.progress[0], claim.progress[Live.TOLD] = 2, has_told
    leave_message(directory, "rank 0: a packet was lost")


@pytest.mark.parametrize(
    ("cut_short", "has_told", "expected"),
    [
        (NEVER_CLOSED, False, ON_A_GPU),
        # What an earlier `kprof recover` has written into the file.
        (ON_A_GPU, False, ON_A_GPU),
        (NEVER_CLOSED, True, NEVER_CLOSED),
    ],
)
def test_lost_launches_are_told_once(
    tmp_path: Path, cut_short: str, has_told: bool, expected: str
) -> None:
    leave(tmp_path, cut_short, has_told=has_told)
    info = make_manifest(tmp_path, Begun((), "2026-01-01T00:00:00Z", 1), None).ranks[0]
    assert info.cut_short == expected


@pytest.mark.parametrize("damage", ["empty", "removed", "zero"])
def test_nobody_claims_to_know_what_is_lost_without_the_count(tmp_path: Path, damage: str) -> None:
    """The machine may have gone down, too."""
    leave(tmp_path, NEVER_CLOSED)
    live = tmp_path / "rank-00000.live"
    live.write_bytes(bytes(live.stat().st_size if damage == "zero" else 0))
    if damage == "removed":
        live.unlink()
    (info,) = make_manifest(tmp_path, Begun((), "2026-01-01T00:00:00Z", 1), None).ranks
    assert "how many of its last launches are lost is not known" in info.cut_short


def test_a_rank_that_saved_nothing_says_how_many_launches_came_after_it_stopped(
    tmp_path: Path,
) -> None:
    leave(tmp_path, NEVER_CLOSED)
    claim = Claim(tmp_path, 1)
    claim.progress[0], claim.progress[Live.TOLD], claim.progress[Live.UNRECORDED] = 1, 1, 1
    manifest = make_manifest(tmp_path, Begun((), "2026-01-01T00:00:00Z", 2), None)
    assert manifest.messages[-1] == (
        "rank 1: recording stopped after its first 1 launch; 1 launch after that is not recorded"
    )


def test_what_was_dropped_before_a_rank_was_cut_short_is_not_of_the_whole_run() -> None:
    manifest = TraceBuilder("", 1).manifest()
    counts, arena = EventCounts(recorded=3, dropped=1), ArenaUse(1 << 20, 1 << 20, 2 << 20)
    info = replace(manifest.ranks[0], counts=counts, arena=arena)
    whole = describe_losses(replace(manifest, ranks=(info,)))[0]
    assert whole == (
        "1 of 4 events did not fit the arena (rank 0): --arena-size 2MiB would have held all"
    )
    cut_short = replace(info, cut_short="the disk was full")
    assert describe_losses(replace(manifest, ranks=(cut_short,)))[0] == (
        "1 of 4 events until a rank was cut short did not fit the arena (rank 0): "
        "--arena-size 2MiB would have held these"
    )


@pytest.mark.parametrize("content", [b'{"type":"star', b"\xff"])
def test_a_damaged_file_of_a_rank_does_not_hinder_the_others(
    tmp_path: Path, content: bytes
) -> None:
    leave(tmp_path, NEVER_CLOSED)
    (tmp_path / "rank-00000.said").write_bytes(content)
    manifest = make_manifest(tmp_path, Begun((), "2026-01-01T00:00:00Z", 1), None)
    assert manifest.ranks[0].cut_short == ON_A_GPU
    assert "1 of 1 lines of rank-00000.said cannot be read" in manifest.messages[-1]


def test_what_outlives_a_rank_is_not_called_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kprof.recording.launcher.stopping._SAVE_TIMEOUT_S", 0.0)
    claims = [Claim(tmp_path, rank) for rank in range(2)]
    rank_file(tmp_path, 1, "arena").touch()
    said: list[str] = []
    RecordingRanks(tmp_path, said.append).save()
    for claim in claims:
        claim.release()
    _, lost, kept = said
    assert lost == "rank 0 did not save within 0 s: what is not written yet is lost"
    assert kept.startswith("rank 1 did not save")
    assert "lost" not in kept


@pytest.mark.parametrize("has_started", [False, True])
def test_a_rank_that_still_writes_is_named_with_its_process(
    tmp_path: Path, has_started: bool
) -> None:
    claim = Claim(tmp_path, 0)
    if has_started:
        announce_rank(tmp_path, 0, 1)
    who = f"rank 0 (process {os.getpid()})" if has_started else "rank 0"
    with pytest.raises(OutputExistsError) as raised:
        refuse_open_ranks(tmp_path)
    claim.release()
    said = f"{who} still writes into {tmp_path}; wait for its end or stop it, then try again"
    assert str(raised.value) == said


@pytest.mark.parametrize(("kind", "is_disk"), [(CaptureError, True), (CorruptCaptureError, False)])
def test_only_a_disk_that_refuses_needs_space(
    tmp_path: Path, kind: type[CaptureError], is_disk: bool
) -> None:
    with pytest.raises(kind, match="kprof recover") as raised, keeping(tmp_path, tmp_path / "run"):
        raise kind("it cannot be")
    assert ("once there is space" in str(raised.value)) == is_disk


def test_nothing_is_finished_that_no_reader_opens(tmp_path: Path) -> None:
    """What it would be made of stays."""
    directory = tmp_path / "run.kprof.unfinished"
    directory.mkdir()
    leave(directory, NEVER_CLOSED)
    manifest = make_manifest(directory, Begun((), "2026-01-01T00:00:00Z", 1), None)
    before = {path.name for path in directory.iterdir()}
    for fault in ({"world_size": 1 << 20}, {"ranks": manifest.ranks * 2}):
        with pytest.raises(CorruptCaptureError, match=f"a file in {directory} is damaged"):
            finish_capture(directory, tmp_path / "run.kprof", replace(manifest, **fault))
        assert {path.name for path in directory.iterdir()} == before
