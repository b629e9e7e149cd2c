"""The words for a diagnosis, and hang.json, which keeps it in the capture."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kprof.capture.files import read_own_file
from kprof.capture.losses import count_launches, name_ranks
from kprof.capture.output import write_json
from kprof.errors import CorruptCaptureError
from kprof.hangs.diagnosis import Cause, Diagnosis, Kind
from kprof.hangs.stacks import place_in
from kprof.hangs.state import Condition, OpenSpan, RankState, RunState, Track

HANG_NAME: Final = "hang.json"
_MAX_NAMED: Final = 4
_MAX_LINES: Final = 20


class RankReport(msgspec.Struct, frozen=True):
    """How far a rank came.

    `num_calls` counts its calls of launch() and step(), `stack` is its main thread's, `path:line in
    function`, innermost first, `error` why its process ended, where that is known.
    One that `is_silent` gave its stack, but did not save its records when it was asked to.
    `last_event` is the span that ended last, of a rank whose kernels do not say that they wait.
    `misses_waits`: it has, or had, more waits than kprof has room for.
    """

    rank: int
    condition: Condition
    num_calls: int
    num_launches: int
    is_moving: bool = False
    stack: tuple[str, ...] = ()
    error: str = ""
    is_silent: bool = False
    last_event: str = ""
    misses_waits: bool = False


class Hang(msgspec.Struct, frozen=True):
    """A run that had made no progress for `idle_s` when reported, or a look at one that goes on.

    `kinds` and `ranks_at_fault` say what `diagnosis` says, for programs; `others` are further
    causes, in sentences; `shown` are the rank and block of waits that show the root. `spans` are
    the announced spans that are open.
    """

    idle_s: float
    diagnosis: str
    kind: str = ""
    ranks_at_fault: tuple[int, ...] = ()
    others: tuple[str, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    waits: tuple[OpenSpan, ...] = ()
    shown: tuple[tuple[int, int], ...] = ()
    spans: tuple[OpenSpan, ...] = ()


def describe(cause: Cause, run: RunState) -> str:
    """A cause in a sentence."""
    silent = [run.ranks[rank] for rank in cause.ranks if rank in run.ranks]
    held = [f"; rank {each.rank} {_held(each.stack)}" for each in silent if each.is_silent]
    return _what_it_is(cause, run) + "".join(held)


def _held(stack: Sequence[str]) -> str:
    """What keeps the Python of a rank from running."""
    return f"does not respond: {place_in(tuple(stack))} seems to hold the interpreter lock"


def _what_it_is(cause: Cause, run: RunState) -> str:
    rank = run.ranks.get(cause.ranks[0])
    who = name_ranks(cause.ranks)
    wait = cause.waits[0]
    asked = f"{wait.track} waits in {wait.region}"
    match cause.kind:
        case Kind.CYCLE:
            return f"{who} wait for each other: {_circle(cause.waits)}"
        case Kind.ENDED:
            why = f" ({rank.error})" if rank and rank.error else ""
            of_call = f" of {cause.call}" if cause.call else ""
            return f"{who} has ended{why} and {asked} for its {_what(wait)}{of_call}"
        case Kind.STOPPED:
            pid = rank.pid if rank else 0
            return f"{who} is stopped: resume it with kill -CONT {pid}; {asked} for it"
        case Kind.NOT_LAUNCHED:
            made = f"{who} has not launched {cause.call}" if rank else f"{who} has no recorder yet"
            return f"{made}, in which it sends {_what(wait)} to rank {wait.rank}{stands_at(rank)}"
        case Kind.NEVER_SENT if cause.twice:
            return f"{who} sent {_twice(cause)}: {asked} for it"
        case Kind.NEVER_SENT:
            return (
                f"{who} ran past its send of {_what(wait)} to rank {wait.rank} in {cause.call} "
                f"without sending: {asked} for it"
            )
        case Kind.NOT_SEEN:
            by = f" (block {cause.sent.track.block})" if cause.sent else ""
            return (
                f"{who} sent {_what(wait)} in {cause.call}{by}, but {wait.track} does not see it "
                f"in {wait.region}: {_not_seen(wait)}"
            )
        case Kind.NOT_STARTED:
            return (
                f"block {cause.block} of {cause.num_blocks} of {who} never started in "
                f"{cause.call}: the grid does not fit the device at once, and {asked}"
            )
        case Kind.COMPUTING:
            doing = _doing(cause, rank)
            return f"{who} is still working towards {cause.call}: slow, not hung{doing}"
        case Kind.STANDS_STILL:
            return f"{who} has launched {cause.call}{_standing(cause, rank)}{stands_at(rank)}"
        case Kind.UNKNOWN:
            return f"{asked}; kprof cannot tell which rank should release it"


def _standing(cause: Cause, rank: RankState | None) -> str:
    """What is known of a rank that has launched the call, and neither sends nor waits."""
    wait = cause.waits[0]
    sent = f"has not sent {_what(wait)} to rank {wait.rank}"
    if doing := _doing(cause, rank):
        return f", {sent} and makes no progress{doing}"
    who = f"{cause.sender}, which sent it before, does not wait"
    why = who if cause.sender else "no block there waits"
    return f" and {sent}; {why}: it computes without progress, or ended without sending"


def _spans_at_fault(cause: Cause, rank: RankState | None) -> tuple[OpenSpan, ...]:
    """The announced spans of the track that should send, or of all of its launch, of one track the
    outermost first."""
    if rank is None:
        return ()
    if cause.sender is not None:
        return tuple(span for span in rank.spans if span.track == cause.sender)
    launch = rank.number_of(cause.call) if cause.call else None
    return tuple(span for span in rank.spans if span.track.launch == launch)


def _doing(cause: Cause, rank: RankState | None) -> str:
    """What the ranks' tracks are in, that of the longest."""
    return is_in(_spans_at_fault(cause, rank))


def is_in(spans: Sequence[OpenSpan]) -> str:
    """Which of these spans the track that is in one for longest is in; empty without spans."""
    if not spans:
        return ""
    first = max(spans, key=lambda span: span.age_s).track
    nested = [span for span in spans if span.track == first]
    num_others = len({span.track for span in spans}) - 1
    others = f", and {num_others} more of its tracks are in others" if num_others > 0 else ""
    return f": {first} has been in {_nested(nested)}{others}"


def _nested(spans: Sequence[OpenSpan]) -> str:
    """The open spans of a track: the innermost, how long, and what it is inside of."""
    *around, innermost = spans
    age = f" for {innermost.age_s:.0f} s" if innermost.age_s >= 1 else ""
    inside = ", ".join(f"inside {span.region}" for span in reversed(around))
    return f"{innermost.region}{age}{f' ({inside})' if inside else ''}"


def _not_seen(wait: OpenSpan) -> str:
    """Where to look, by what the flag holds."""
    if not wait.wanted:
        return "check the epoch, the fence and the address"
    its = f"its flag holds {wait.held} and it waits for {wait.wanted}"
    if wait.held > wait.wanted:
        return f"{its}, which the flag has passed: compare with >=, not with =="
    if wait.held == wait.wanted:
        return f"{its}, which it holds: check the comparison"
    return f"{its}: the send stored another epoch, or at another address, or nothing"


def _twice(cause: Cause) -> str:
    """What was sent twice, by whom, and what never."""
    wait, (first, second) = cause.waits[0], cause.twice
    by = f"blocks {first.track.block} and {second.track.block}"
    if first.track.block == second.track.block:
        by = f"block {first.track.block}"
    return (
        f"slot {first.slot} to rank {wait.rank} twice in {cause.call} ({by}), and never sent "
        f"{_what(wait)}"
    )


def _what(wait: OpenSpan) -> str:
    return "data" if wait.slot < 0 else f"slot {wait.slot}"


def stands_at(rank: RankState | None) -> str:
    """Where the Python of a rank stands, where that is known."""
    return f"; its Python code is at {place_in(rank.stack)}" if rank and rank.stack else ""


def _circle(waits: Sequence[OpenSpan]) -> str:
    named = [
        f"{wait.track} for "
        + (f"{_what(wait)} of rank {wait.peer}" if wait.peer >= 0 else wait.region)
        for wait in waits[:_MAX_NAMED]
    ]
    more = f" and {len(waits) - _MAX_NAMED} more" if len(waits) > _MAX_NAMED else ""
    return ", ".join(named) + more


def make_report(run: RunState, diagnosis: Diagnosis, idle_s: float) -> Hang:
    """What is kept of a diagnosis."""
    root = diagnosis.root
    sentences = [describe(cause, run) for cause, _ in diagnosis.causes]
    return Hang(
        round(idle_s, 1),
        sentences[0] if sentences else "no kernel waits",
        root.kind.name.lower() if root else "",
        root.ranks if root else (),
        tuple(sentences[1:]),
        tuple(
            msgspec.convert(each, RankReport, from_attributes=True) for each in run.ranks.values()
        ),
        run.waits,
        tuple((each.rank, each.block) for each in root.waits[:_MAX_NAMED]) if root else (),
        tuple(span for _, each in sorted(run.ranks.items()) for span in each.spans),
    )


def lines_of(hang: Hang) -> list[str]:
    """The report as lines of a terminal: the root, other causes, waits, ranks."""
    lines = [hang.diagnosis]
    lines += [f"also: {sentence}" for sentence in hang.others[:_MAX_NAMED]]
    for wait in sorted(hang.waits, key=lambda each: -each.age_s)[:_MAX_LINES]:
        lines.append(f"  {_line_of(wait)}")
    if len(hang.waits) > _MAX_LINES:
        lines.append(f"  and {len(hang.waits) - _MAX_LINES} more waits (--json has all)")
    lines += [f"  {line}" for line in lines_of_spans(hang.spans)]
    for rank in hang.ranks:
        why = f" ({rank.error})" if rank.error else ""
        place = f", Python at {place_in(rank.stack)}" if rank.stack else ""
        place += ", which seems to hold the interpreter lock" if rank.is_silent else ""
        place += f"; last event: {rank.last_event}" if rank.last_event else ""
        place += "; more waits than kprof has room for: some are not listed" * rank.misses_waits
        lines.append(
            f"  rank {rank.rank}: {rank.condition.value}{why}, {count_launches(rank.num_launches)}"
            f"{', making progress' if rank.is_moving else ''}{place}"
        )
    return lines


def lines_of_spans(spans: Sequence[OpenSpan], most: int = _MAX_LINES) -> list[str]:
    """A line for each track: the innermost span, and what that is inside of."""
    tracks: dict[Track, list[OpenSpan]] = {}
    for span in spans:
        tracks.setdefault(span.track, []).append(span)
    ordered = sorted(tracks.values(), key=lambda its: -its[-1].age_s)
    lines = [f"{_place(its[-1])} is in {_nested(its)} ({its[-1].call})" for its in ordered[:most]]
    if len(ordered) > most:
        lines.append(f"and {len(ordered) - most} more tracks (kprof hang --json has all)")
    return lines


def _place(span: OpenSpan) -> str:
    return f"rank {span.rank} block {span.block}" + (f" warp {span.warp}" if span.warp >= 0 else "")


def _line_of(wait: OpenSpan) -> str:
    goal = f" for rank {wait.peer}" if wait.peer >= 0 else ""
    slot = f", slot {wait.slot}" if wait.slot >= 0 else ""
    age = f": still waiting after {wait.age_s:.0f} s" if wait.age_s else ""
    age += f"; its flag holds {wait.held}, it waits for {wait.wanted}" if wait.wanted else ""
    return f"{_place(wait)} in {wait.region}{goal}{slot} ({wait.call}){age}"


def write_hang(directory: Path, hang: Hang) -> None:
    """Write hang.json; nothing where the disk refuses. Several ranks may write at once."""
    with contextlib.suppress(Exception):
        write_json(directory / HANG_NAME, hang)


def read_hang(directory: Path) -> Hang | None:
    """The hang that a capture keeps, or None; raises CorruptCaptureError."""
    path = directory / HANG_NAME
    if not path.is_symlink() and not path.exists():
        return None
    try:
        return msgspec.json.decode(read_own_file(path), type=Hang)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptCaptureError(
            f"{path} cannot be read ({error}); the capture itself may be whole: kprof info"
        ) from error
