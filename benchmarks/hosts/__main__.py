"""Several hosts with clocks of their own, recorded one by one, merged, and aligned by nothing but
their messages.

    python -m benchmarks.hosts [--hosts 2] [--ranks-per-host 2] [--seed 33] [--runs 1] [--busy 2] [--kill]
        [--delay-us 100 --jitter-us 50] [--calls 200] [--rounds 50] [--output FILE]

A host is a network namespace with ranks on the CPU target and a `kprof record` of its own; where
namespaces cannot be made it is two processes on the loopback device, and `namespaces` is false.
Every rank's clock is up to 1 s and 50 ppm off, which is what alignment has to find. With --kill, the
last host dies half-way. With --busy, so many other processes want a core all the time. With a delay,
messages between namespaces go through a process that holds them back (wire.py), as netem would. Ten
seconds of messages; the error is that of every pair at 25 moments. Every run has a seed of its own;
--output is added to.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.hosts import wire
from kprof.aligning.messages import Messages
from kprof.capture.directory import Capture, read_manifest
from kprof.trace import Trace

_NAME = "kprof-host"


@contextlib.contextmanager
def namespaces(count: int) -> Iterator[list[str] | None]:
    """Names of network namespaces that reach each other as 10.77.0.1, .2 ...; None where this
    machine allows none."""
    names = [f"{_NAME}{i}-{os.getpid()}" for i in range(count)]
    bridge = f"kprof{os.getpid()}"
    try:
        yield names if _make(names, bridge) else None
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", bridge], check=False, capture_output=True)


def _make(names: list[str], bridge: str) -> bool:
    commands = [f"link add {bridge} type bridge", f"link set {bridge} up"]
    for i, name in enumerate(names):
        outside = f"{bridge}v{i}"
        commands += [
            f"netns add {name}",
            f"link add {outside} type veth peer name eth0 netns {name}",
            f"link set {outside} master {bridge} up",
            f"-n {name} addr add 10.77.0.{i + 1}/24 dev eth0",
            f"-n {name} link set eth0 up",
            f"-n {name} link set lo up",
        ]
    if shutil.which("ip") is None:
        return False
    made = (
        subprocess.run(["ip", *each.split()], check=False, capture_output=True) for each in commands
    )
    return all(each.returncode == 0 for each in made)


def others(folder: Path, names: list[str] | None, given: Any) -> list[Sequence[str]]:
    """What runs beside the hosts."""
    commands: list[Sequence[str]] = [harness.BUSY] * given.busy
    if given.delay_us and names:
        options = ["--delay-us", str(given.delay_us), "--jitter-us", str(given.jitter_us)]
        options += ["--names", ",".join(names), "--ready", str(folder / "wire")]
        commands.append([sys.executable, "-m", "benchmarks.hosts.wire", *options])
    return commands


def record(folder: Path, names: list[str] | None, given: Any) -> list[Path]:
    """What each host recorded, those that a killed one left recovered."""
    hosts = [f"10.77.0.{i + 1}" if names else "127.0.0.1" for i in range(given.hosts)]
    if given.delay_us and names:
        hosts = [wire.address(i) for i in range(given.hosts)]
        wait_for(lambda: (folder / "wire").exists())
    addresses = [host for host in hosts for _ in range(given.ranks_per_host)]
    parts, running = [], []
    for i in range(given.hosts):
        parts.append(folder / f"host{i}.kprof")
        prefix = ["ip", "netns", "exec", names[i]] if names else []
        inner = [sys.executable, "-m", "benchmarks.hosts.host", "--folder", str(folder)]
        inner += ["--first", str(i * given.ranks_per_host), "--addresses", ",".join(addresses)]
        inner += ["--count", str(given.ranks_per_host), "--seed", str(given.seed)]
        inner += ["--calls", str(given.calls), "--rounds", str(given.rounds)]
        record = [sys.executable, "-m", "kprof_cli", "record", "-o", str(parts[i]), "--", *inner]
        running.append(subprocess.Popen([*prefix, *record], start_new_session=True))
    if given.kill:
        wait_for(lambda: len(list(folder.glob("ready-*"))) == len(addresses))
        time.sleep(5)
        os.killpg(running[-1].pid, signal.SIGKILL)
    for each in running:
        each.wait()
    return [part for part in parts if part.exists()]


def wait_for(is_there: Callable[[], bool]) -> None:
    """Until that is so, but not for ever."""
    until_s = time.monotonic() + 120
    while not is_there():
        if time.monotonic() > until_s:
            raise SystemExit("what runs beside, or a rank, has not come")
        time.sleep(0.1)


def judge(path: Path, folder: Path) -> dict[str, Any]:
    """Errors and bounds of all pairs of ranks; times in ns."""
    alignment = read_manifest(path).alignment
    assert alignment is not None
    truth = {
        e.rank: json.loads((folder / f"truth-{e.rank}.json").read_text()) for e in alignment.ranks
    }
    first_ns = max(each["first_ns"] for each in truth.values())
    last_ns = min(each["last_ns"] for each in truth.values())
    moments = np.linspace(first_ns, last_ns, 25).astype(np.int64)
    aligned = {}
    for entry in alignment.ranks:
        clock = truth[entry.rank]
        off = clock["offset_ns"] + np.rint(clock["rate"] * (moments - clock["origin_ns"])).astype(
            np.int64
        )
        corrected = [entry.correction_ns(int(ns)) for ns in moments + off]
        aligned[entry.rank] = off + np.array(corrected)
    pairs = list(itertools.combinations(sorted(aligned), 2))
    errors = [float(np.abs(aligned[a] - aligned[b]).max()) for a, b in pairs]
    bounds = [alignment.bound_between_ns(*pair) for pair in pairs]
    flows = Trace.open(path).frame(
        "SELECT count(*) AS n, count(*) FILTER (wait_end_ns < send_start_ns) AS early FROM flows"
    )
    return harness.within_bounds(errors, bounds) | {
        "flows": int(flows["n"][0]),
        "flows_with_negative_time": int(flows["early"][0]),
    }


def asymmetry(path: Path, folder: Path) -> dict[str, int]:
    """What the network alone does to an estimate that takes both directions for alike: half of what the fastest
    messages of two ranks, and the means of the 100 fastest, differ in truth. Of the worst pair, in ns."""
    delays: dict[tuple[int, int], np.ndarray] = {}
    for each in Messages(Capture.open(path)).of_flows():
        sent, seen = (
            true_ns(json.loads((folder / f"truth-{rank}.json").read_text()), local_ns)
            for rank, local_ns in ((each.before, each.sent_ns), (each.after, each.seen_ns))
        )
        delays[each.before, each.after] = np.sort(seen - sent)
    both = [(there, delays[b, a]) for (a, b), there in delays.items() if a < b and (b, a) in delays]
    return {
        f"of_{count}_fastest": round(
            max(abs(there[:count].mean() - back[:count].mean()) / 2 for there, back in both)
        )
        for count in (1, 100)
    }


def true_ns(clock: dict[str, float], local_ns: np.ndarray) -> np.ndarray:
    """When a planted clock showed that."""
    since_ns = (local_ns - clock["offset_ns"] - clock["origin_ns"]) / (1 + clock["rate"])
    true: np.ndarray = int(clock["origin_ns"]) + np.rint(since_ns).astype(np.int64)
    return true


def run(given: Any) -> dict[str, Any]:
    """One recording, merged, aligned and judged."""
    names_of = (
        "hosts",
        "ranks_per_host",
        "seed",
        "busy",
        "delay_us",
        "jitter_us",
        "calls",
        "rounds",
    )
    options = " ".join(f"--{n.replace('_', '-')} {getattr(given, n):g}" for n in names_of)
    result = harness.context(f"python -m benchmarks.hosts {options}" + " --kill" * given.kill)
    with tempfile.TemporaryDirectory() as scratch, namespaces(given.hosts) as names:
        folder, path = Path(scratch), Path(scratch) / "run.kprof"
        with harness.beside(others(folder, names, given)):
            parts = record(folder, names, given)
        random.Random(given.seed).shuffle(parts)
        merge = [sys.executable, "-m", "kprof_cli", "merge", *map(str, parts), "-o", str(path)]
        subprocess.run(merge, check=True, stdout=sys.stderr)
        missing = read_manifest(path).missing_ranks
        result |= {"hosts": given.hosts, "namespaces": names is not None, "missing_ranks": missing}
        result |= {"load_after": round(os.getloadavg()[0], 1)} | judge(path, folder)
        result["asymmetry_ns"] = asymmetry(path, folder)
    return result


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=50, help="messages to each rank in a call")
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--delay-us", type=float, default=0)
    parser.add_argument("--jitter-us", type=float, default=0)
    parser.add_argument("--kill", action="store_true")
    given = parser.parse_args()
    for _ in range(given.runs):
        found = run(given)
        print(json.dumps(found), flush=True)
        if given.output:
            known = json.loads(given.output.read_text()) if given.output.exists() else {"runs": []}
            known["runs"].append(found)
            harness.write(known, given.output)
        given.seed += 1


if __name__ == "__main__":
    main()
