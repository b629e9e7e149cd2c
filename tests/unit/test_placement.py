"""Reports of many ranks by host and by rail: what is the fault of a host is said of the host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from kprof.analysis import Finding, Summary, find
from kprof.analysis.findings import words
from kprof.analysis.findings.facts import Facts
from kprof.analysis.placement import Placement, hosts_and_rails
from kprof.capture.manifest import RankInfo
from kprof.report import build, machine
from kprof.report.blocks import Depth, Table, flat
from kprof.report.compose import compose
from kprof.trace import Trace
from synthetic import TraceBuilder, with_ranks

RANKS_PER_HOST = 8
REGIONS = """
REGION(R_WORK, "expert", compute)
REGION(R_SEND, "dispatch/send", send, peer:12, slot:20)
REGION(R_WAIT, "dispatch/wait", wait, peer:12, slot:20)
FLOW(R_SEND, R_WAIT)
"""
Link = Callable[[int, int], bool]


def on_hosts(trace: Trace, per_host: int = RANKS_PER_HOST) -> Trace:
    infos = (
        msgspec.structs.replace(info, host=f"node{info.rank // per_host}") for info in trace.ranks
    )
    return with_ranks(trace, tuple(infos))


def run(
    num_ranks: int, slow: Collection[int] = (), is_slow: Link = lambda a, b: False, calls: int = 6
) -> Trace:
    """Each rank works for 100 us, sends to its neighbour, to the same place on the next host and to the neighbour of
    that, and waits for theirs."""
    build, draw = TraceBuilder(REGIONS, num_ranks), np.random.default_rng(1)
    begin, strides = 1000, (1, RANKS_PER_HOST, RANKS_PER_HOST + 1)
    for call in range(calls):
        work = (draw.normal(1, 0.01, num_ranks) * 100_000).astype(int)
        work[list(slow)] *= 2
        last = 0
        for rank in range(num_ranks):
            now = begin + int(work[rank])
            build.span(rank, "expert", begin, now - begin, launch=call)
            for slot, stride in enumerate(strides):
                to = (rank + stride) % num_ranks
                flow = {"rank": rank, "launch": call, "slot": 8 * call + slot}
                build.span(region="dispatch/send", start_ns=now, duration_ns=500, peer=to, **flow)
                now += 600
            for slot, stride in enumerate(strides):
                source = (rank - stride) % num_ranks
                flow = {"rank": rank, "launch": call, "slot": 8 * call + slot}
                travel = (60_000 if is_slow(source, rank) else 3000) * draw.normal(1, 0.02)
                seen = max(begin + int(work[source]) + 600 * slot + int(travel), now + 100)
                build.span(
                    region="dispatch/wait",
                    start_ns=now,
                    duration_ns=seen - now,
                    peer=source,
                    **flow,
                )
                now = seen + 50
            last = max(last, now)
        begin = last + 20_000
    return build.trace()


def first_finding(trace: Trace) -> Finding:
    return find(Summary.of(trace)).findings[0]


def test_a_slow_host_among_1000_ranks_is_named() -> None:
    finding = first_finding(on_hosts(run(1000, slow=range(56, 64))))
    assert finding.hosts == ("node7",)
    assert "host node7 (ranks 56-63) runs expert 2.0x slower than the rest" in finding.fact
    assert machine.finding_row(finding)["hosts"] == ("node7",)


def test_a_slow_rail_is_named() -> None:
    finding = first_finding(on_hosts(run(64, slow=range(3, 64, 8))))
    assert (finding.hosts, finding.rail) == ((), 3)
    assert "rail 3 (ranks 3, 11, 19 ... 59) runs expert 2.0x slower" in finding.fact


def test_slow_links_of_a_rail_are_named() -> None:
    finding = first_finding(on_hosts(run(64, is_slow=lambda source, to: source % 8 == to % 8 == 3)))
    assert finding.rail == 3
    assert finding.fact.startswith("Transfers on 8 links of rail 3 are")


@pytest.mark.slow
def test_ranks_of_one_host_or_of_a_part_of_one_are_ranks() -> None:
    for trace in (run(16, slow=range(8, 16)), on_hosts(run(16, slow=range(8, 15)))):
        finding = first_finding(trace)
        assert (finding.hosts, finding.rail) == ((), None)
        assert "of ranks 8-1" in finding.fact


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([("a", "b")], "on 2 links from host a to host b"),
        ([("a", "b"), ("b", "a")], "on 2 links between hosts a and b"),
        ([("a", "b"), ("a", "c")], "on 2 links from host a"),
        ([("a", "c"), ("b", "c")], "on 2 links to host c"),
        ([("a", "b"), ("c", "d")], "on 2 links between hosts"),
        ([("a", "a")], "on 2 links within host a"),
        ([("a", "a"), ("b", "c")], "on 2 links"),
        ([], "on 2 links"),
    ],
)
def test_links_say_which_hosts_they_join(links: list[tuple[str, str]], said: str) -> None:
    facts = Facts(links=((0, 8), (1, 9)), host_links=tuple(links))
    assert words.place(facts) == said
    assert words.place(replace(facts, rail=2)) == "on 2 links of rail 2"


def test_where_ranks_are() -> None:
    placed = Placement.of(RankInfo(rank, host) for rank, host in enumerate("abba"))
    assert placed.hosts == {"a": (0, 3), "b": (1, 2)}
    assert placed.rails == ((0, 1), (2, 3))
    assert placed.hosts_of([0, 3]) == ("a",)
    assert placed.hosts_of([3]) == placed.hosts_of([1, 2, 3]) == ()
    assert placed.rail_of([3, 2]) == 1
    assert placed.host_links([(0, 3), (0, 1)]) == (("a", "a"), ("a", "b"))
    assert placed.host_links([(0, -1), (0, 1)]) == ()
    assert (placed.rail_of_links([(0, 1), (1, 0)]), placed.rail_of_links([(0, 1)])) == (0, None)
    for hosts in ("aaaa", "abcd", "ab b"):
        infos = [RankInfo(rank, host.strip()) for rank, host in enumerate(hosts)]
        assert Placement.of(infos) == Placement()


def test_a_rail_is_a_network_interface_where_they_are_known() -> None:
    """Two GPUs share an interface; the second host numbers its GPUs in another order."""
    nics = ["mlx5_2", "mlx5_2", "mlx5_10", "mlx5_10", "mlx5_2", "mlx5_2"]
    placed = Placement.of(RankInfo(n, "aaabbb"[n], nic=nic) for n, nic in enumerate(nics))
    assert placed.rails == ((0, 1, 4, 5), (2, 3))
    assert placed.rail_names == ("rail 0 (mlx5_2)", "rail 1 (mlx5_10)")
    one_unknown = Placement.of(
        RankInfo(n, "aaabbb"[n], nic=nic) for n, nic in enumerate([*nics[:5], ""])
    )
    assert one_unknown.rails == ((0, 3), (1, 4), (2, 5))
    assert one_unknown.rail_names == ("rail 0", "rail 1", "rail 2")


@pytest.mark.slow
def test_hosts_and_rails_have_a_table() -> None:
    trace = on_hosts(run(32, slow=range(8, 16)))
    table = hosts_and_rails(Summary.of(trace)).set_index("name")
    assert table.index.tolist() == [
        *(f"host node{i}" for i in range(4)),
        *(f"rail {i}" for i in range(8)),
    ]
    assert table["ranks"].tolist() == [8] * 4 + [4] * 8
    assert table["work_vs_median"]["host node1"] == pytest.approx(2, rel=0.05)
    assert table["work_vs_median"]["rail 5"] == pytest.approx(1, rel=0.05)
    assert table["caused_ns"].idxmax() == "host node1"
    assert hosts_and_rails(Summary.of(run(8))).empty
    for each, is_shown in ((trace, True), (run(8), False)):
        blocks = flat(compose(build(each), has_figures=False), Depth.SCREEN)
        titles = [block.title for block in blocks if isinstance(block, Table)]
        assert ("Hosts and rails" in titles) == is_shown
