"""Ordinals for the replays of graphs: the same launch has the same one on all ranks.

A rank gives all replays of a captured launch that launch's ordinal, because it cannot know how
often other launches of the kernel will be replayed. Here all ranks are known, so the launches of a
kernel are counted again:

    rank 0   K 0   K 1 replay 0   K 2 replay 0   K 1 replay 1   K 2 replay 1   2 captures, 2 replays
             0     1              2              3              4
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kprof.capture.manifest import Launch, RankInfo

_Name = tuple[int, int, int]


def number_replays(infos: Sequence[RankInfo]) -> tuple[RankInfo, ...]:
    """The ranks with launches of replayed kernels numbered in the order of the rank that has most
    of them.

    Launches that only other ranks have come last, so a rank that lost some changes no number.
    """
    replayed = {launch.kernel for info in infos for launch in info.launches if launch.captured >= 0}
    sequences: dict[str, list[list[_Name]]] = {kernel: [[] for _ in infos] for kernel in replayed}
    for idx, info in enumerate(infos):
        for launch in info.launches:
            if launch.kernel in sequences:
                sequences[launch.kernel][idx].append(_name(launch))
    ordinals = {kernel: _ordinals(names) for kernel, names in sequences.items()}
    return tuple(
        msgspec.structs.replace(
            info, launches=tuple(_numbered(launch, ordinals) for launch in info.launches)
        )
        if replayed
        else info
        for info in infos
    )


def _numbered(launch: Launch, ordinals: dict[str, dict[_Name, int]]) -> Launch:
    of_kernel = ordinals.get(launch.kernel)
    if of_kernel is None:
        return launch
    return msgspec.structs.replace(launch, ordinal=of_kernel[_name(launch)])


def _name(launch: Launch) -> _Name:
    return launch.stretch, launch.replay, launch.ordinal


def _ordinals(sequences: Sequence[Sequence[_Name]]) -> dict[_Name, int]:
    longest = max(sequences, key=len)
    names = dict.fromkeys(longest)
    names |= dict.fromkeys(sorted(name for sequence in sequences for name in sequence))
    return {name: ordinal for ordinal, name in enumerate(names)}
