"""What hosts alone tell of a run that stands still: who has made fewer launches than others."""

from __future__ import annotations

from collections.abc import Sequence

from kprof.capture.losses import name_ranks
from kprof.hangs.report import is_in, stands_at
from kprof.hangs.state import Condition, RankState, RunState


def is_uneven(run: RunState) -> bool:
    """Whether a rank is behind the others, or has ended before them."""
    running = [each.num_calls for each in run.ranks.values() if each.condition != Condition.ENDED]
    return bool(running) and (len(set(running)) > 1 or len(running) < len(run.ranks))


def diagnose_hosts(run: RunState) -> str:
    """Whom the others wait for, in a sentence, where no kernel says that it waits."""
    states = list(run.ranks.values())
    ended = [state.rank for state in states if state.condition is Condition.ENDED]
    running = [state for state in states if state.condition is not Condition.ENDED]
    if stopped := [state.rank for state in running if state.condition is Condition.STOPPED]:
        return f"{name_ranks(stopped)} stopped (SIGSTOP or a debugger)"
    if ended and running:
        return f"{name_ranks(ended)} ended, {name_ranks([s.rank for s in running])} did not"
    most = max((state.num_calls for state in running), default=0)
    behind = [state for state in running if state.num_calls < most]
    if behind:
        least = min(behind, key=lambda state: state.num_calls)
        return (
            f"rank {least.rank} has made {least.num_calls} of the {most} calls of the recorder "
            f"(launches and steps) that others have made{_not_launched(least, running)}"
            f"{stands_at(least)}{_running_kernels([least])}"
        )
    where = {state.stack[:1] for state in running}
    place = stands_at(running[0]) if len(where) == 1 and running else ""
    return (
        f"all ranks have made {most} call{'s' * (most != 1)} of the recorder (launches and "
        f"steps): a kernel does not end, or their hosts wait for something else{place}"
        f"{_running_kernels(running)}"
    )


def _running_kernels(states: Sequence[RankState]) -> str:
    """What is known of launches that may run still, and what kernels could say to tell more."""
    ranks: dict[str, list[int]] = {}
    for state in states:
        if (number := _under_way(state)) is not None:
            ranks.setdefault(_how_far(state, number), []).append(state.rank)
    if not ranks:
        return ""
    known = "; ".join(f"on {name_ranks(those)} {text}" for text, those in ranks.items())
    spans = any(state.spans for state in states)
    announced = "" if spans else ", and `announced` in regions.h which span every block is in"
    return f"; {known}; `still_waiting` in its waits would tell for which rank it waits{announced}"


def _under_way(state: RankState) -> int | None:
    """The latest launch that has begun and is not known to have ended, else the first that has
    not ended; None where all have."""
    open_now = [number for number in state.launches if number >= state.num_finished]
    begun = state.records.started if state.records else {}
    return max((each for each in open_now if each in begun), default=min(open_now, default=None))


def _how_far(state: RankState, number: int) -> str:
    """How many blocks of a launch have begun, and what is open in them."""
    call, num_blocks = state.launches[number]
    begun = len(state.records.started.get(number, ())) if state.records else 0
    blocks = f", {begun} of its {num_blocks} blocks have begun" if begun and num_blocks else ""
    spans = [span for span in state.spans if span.track.launch == number]
    return f"{call} is not known to have ended{blocks}{is_in(spans)}"


def _not_launched(behind: RankState, states: Sequence[RankState]) -> str:
    """The first launch that another rank has made and this one has not, if there is one."""
    ahead = max(states, key=lambda state: state.num_launches)
    launches = (call for _, (call, _) in sorted(ahead.launches.items()))
    is_missing = ahead.num_launches > behind.num_launches
    missing = next((call for call in launches if behind.number_of(call) is None), None)
    return f", and not {missing}" if is_missing and missing else ""
