"""Ranks as a cluster groups them: those of a host, and those of a rail.

Networks with rails join equal network interfaces of all hosts by switches of their own. Where
recordings name the interface of every GPU, a rail is the ranks that have the same one; else it is
the n-th rank of every host: launchers number ranks of a host in the order of its GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from kprof.analysis.metric import metric
from kprof.analysis.summary import Summary, Table
from kprof.analysis.waiting import stragglers
from kprof.capture.manifest import RankInfo


@dataclass(frozen=True)
class Placement:
    """The ranks of each host by its name, and those of each rail, in order. Both are empty where
    ranks are on one host, have one each, or do not say where they are. `nics` are the names of the
    rails' network interfaces, empty where rails go by the order of ranks."""

    hosts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    rails: tuple[tuple[int, ...], ...] = ()
    nics: tuple[str, ...] = ()

    @staticmethod
    def of(infos: Iterable[RankInfo]) -> Placement:
        """Where the ranks of a recording are."""
        on: dict[str, list[int]] = {}
        using: dict[str, list[int]] = {}
        for info in sorted(infos, key=lambda info: info.rank):
            on.setdefault(info.host, []).append(info.rank)
            using.setdefault(info.nic, []).append(info.rank)
        most = max(map(len, on.values()), default=0)
        if len(on) < 2 or most < 2 or "" in on:
            return Placement()
        hosts = {host: tuple(ranks) for host, ranks in on.items()}
        if "" not in using and len(using) > 1:
            nics = sorted(using, key=lambda name: (len(name), name))
            return Placement(hosts, tuple(tuple(using[nic]) for nic in nics), tuple(nics))
        rails = (sorted(ranks[n] for ranks in on.values() if n < len(ranks)) for n in range(most))
        return Placement(hosts, tuple(map(tuple, rails)))

    @property
    def rail_names(self) -> tuple[str, ...]:
        """`rail 0`, with the network interface where it is known: `rail 0 (mlx5_0)`."""
        nics = [f" ({nic})" for nic in self.nics] or [""] * len(self.rails)
        return tuple(f"rail {number}{nic}" for number, nic in enumerate(nics))

    def hosts_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """The hosts that these are all ranks of, and nothing else; of single ranks none."""
        found = {host for host, members in self.hosts.items() if {*members} <= {*ranks}}
        is_all = sum(len(self.hosts[host]) for host in found) == len({*ranks})
        return tuple(sorted(found)) if is_all and len({*ranks}) > len(found) else ()

    def rail_of(self, ranks: Sequence[int]) -> int | None:
        """The rail that these are all ranks of, and nothing else; of a single rank none."""
        wanted = tuple(sorted({*ranks}))
        return self.rails.index(wanted) if len(wanted) > 1 and wanted in self.rails else None

    def host_links(self, links: Sequence[tuple[int, int]]) -> tuple[tuple[str, str], ...]:
        """The pairs of hosts that links between ranks join; of links that begin or end at every
        rank none."""
        host = {rank: name for name, members in self.hosts.items() for rank in members}
        pairs = {(host.get(a, ""), host.get(b, "")) for a, b in links}
        return tuple(sorted(pairs)) if all(a and b for a, b in pairs) else ()

    def rail_of_links(self, links: Sequence[tuple[int, int]]) -> int | None:
        """The rail that links stay on; of a single link none."""
        ends = {end for link in links for end in link}
        around = (n for n, members in enumerate(self.rails) if ends <= {*members})
        return next(around, None) if len(links) > 1 else None


@metric()
def hosts_and_rails(summary: Summary) -> Table:
    """One row per host, then per rail: who waits there, and who is waited for. Needs no alignment.

    Columns: name, ranks (how many), work_ns, wait_ns (means of its ranks), work_vs_median (of the
    hosts, or of the rails; of the other one where there are two), wait_share (of its blocks' time),
    caused_ns (the others' wait for its ranks, summed). Empty where ranks are on one host or have
    one each.
    """
    placement = Placement.of(info for info in summary.trace.ranks if info.is_recorded)
    by_rank = stragglers(summary).set_index("rank")
    rails = dict(zip(placement.rail_names, placement.rails, strict=True))
    hosts = {f"host {name}": ranks for name, ranks in placement.hosts.items()}
    tables = [_sums(by_rank, groups) for groups in (hosts, rails)]
    return pd.concat(tables, ignore_index=True)


def _sums(by_rank: Table, groups: Mapping[str, Sequence[int]]) -> Table:
    own = [
        by_rank.loc[[rank for rank in ranks if rank in by_rank.index]] for ranks in groups.values()
    ]
    work_ns = np.array([each["work_ns"].mean() for each in own])
    usual_ns = work_ns[::-1] if len(work_ns) == 2 else np.median(work_ns) if len(work_ns) else 0.0
    return pd.DataFrame(
        {
            "name": list(groups),
            "ranks": [len(each) for each in own],
            "work_ns": work_ns,
            "wait_ns": [each["wait_ns"].mean() for each in own],
            "work_vs_median": work_ns / np.maximum(usual_ns, 1.0),
            "wait_share": [each["wait_share"].mean() for each in own],
            "caused_ns": [int(each["caused_ns"].sum()) for each in own],
        }
    )
