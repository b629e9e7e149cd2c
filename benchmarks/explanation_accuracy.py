"""Are explanations right on runs that nobody has seen before?

Random runs from the simulator (`tests/support/simulation/`), drawn anew unless a seed is given: one
to four causes each, in twelve topologies, of which three were held back while the analyses were
written; and runs with nothing wrong. What a cause is worth is the same run simulated without it,
with the same random numbers.

    first     the first finding is the cause of the largest gain (or one within 0.5 % of the run of it); there is none
              where no cause is worth 5 % in the calls that were looked at
    all       no cause worth 5 % of the run is left after those that were named, and nothing is named that is no cause
    gain      of findings that are causes: predicted gain within the larger of 3 % of the run and 10 % of the true one
    silent    of balanced runs with 3 to 30 % noise: no finding

A finding is a cause when kind, ranks, blocks, link and region are the cause's, and six of ten of
the calls.

    python -m benchmarks.explanation_accuracy [--cases 2000] [--seed N] [--json FILE] [--workers 1] [--log FILE]
        [--only balanced]

With --log every verdict becomes a line of a file at once. Begun again with the same log it goes on
where it stopped, with the log's seed; lines of several logs of one seed (--first says with which
case each begins) may be put together. Every worker keeps to one processor.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import harness
from kprof.analysis.findings import Explanation, Finding, Limit, explain_trace
from simulation import (
    HELD_BACK,
    TOPOLOGIES,
    Cause,
    Kind,
    Scenario,
    draw_balanced,
    draw_scenario,
    simulate,
)
from simulation.program import Op
from simulation.scenario import program_of

EVERYTHING: Final = (*TOPOLOGIES, *HELD_BACK)
BALANCED_SHARE: Final = 0.25
WORTH_NAMING: Final = 0.05
TIE: Final = 0.005
SAME_CALLS: Final = 0.6
# What each rate is of, and the least that it may be.
BARS: Final = {
    "first": ("the first finding is the cause that costs most ({of} runs with causes)", 0.97),
    "all": ("all causes worth 5 % are named, and nothing else", 0.92),
    "gain": ("predicted gain within 3 % of the run or 10 % of the true gain", 0.97),
    "silent": ("no finding ({of} runs with nothing but noise)", 0.99),
}

_KINDS: Final = {
    Kind.SLOW: ("slow", "slow_call"),
    Kind.DELAY: ("slow",),
    Kind.LATE_START: ("late_start",),
    Kind.IDLE_GAP: ("idle_gap",),
    Kind.SLOW_ITEMS: ("slow_events",),
    Kind.MORE_ITEMS: ("uneven_work",),
    Kind.SLOW_LINK: ("slow_transfer",),
}


@dataclass(frozen=True)
class Verdict:
    """What came out of one case."""

    number: int
    topology: str
    classes: tuple[str, ...]
    is_first: bool
    is_all: bool
    gains_right: tuple[bool, ...]
    said: tuple[str, ...] = ()
    planted: tuple[str, ...] = ()
    cpu_s: float = 0.0

    @property
    def is_right(self) -> bool:
        """All of it."""
        return self.is_first and self.is_all and all(self.gains_right)


@dataclass
class Truth:
    """True gains over the calls that were looked at, by the causes that are in the run.

    `run` gives the lengths of all calls of a run with some causes; without `calls` all of them count.
    """

    run: Callable[[frozenset[int]], Sequence[float]]
    calls: Sequence[int]
    known: dict[frozenset[int], float] = field(default_factory=dict)

    def length(self, causes: Iterable[int]) -> float:
        key = frozenset(causes)
        if key not in self.known:
            lengths = self.run(key)
            self.known[key] = float(
                sum(lengths[call] for call in self.calls or range(len(lengths)))
            )
        return self.known[key]

    def gain(self, causes: Iterable[int], without: int) -> float:
        present = frozenset(causes)
        return self.length(present) - self.length(present - {without})


def names(cause: Cause, finding: Finding, scenario: Scenario, calls: set[int]) -> bool:
    """Whether a finding is about a cause; `calls` are those that were looked at."""
    least = 0.3 if cause.when.value == "growing" else 0.0
    active = {call for call, weight in enumerate(cause.weights) if weight > least} & calls
    both, either = active & set(finding.calls), active | set(finding.calls)
    if len(both) < SAME_CALLS * len(either):
        return False
    program = program_of(scenario.topology, scenario.sizes)
    begins = program.first[:-1][np.diff(program.first) > 0]
    is_first = cause.region in program.region[begins]
    if cause.kind is Kind.IDLE_GAP and is_first and finding.kind.name == "late_start":
        # Before the first region of all tracks: the rank starts late, as far as anyone can see.
        return finding.ranks == cause.ranks
    if finding.kind.name not in _KINDS[cause.kind]:
        return False
    if cause.kind is Kind.SLOW_LINK:
        return _links(scenario, (cause.link or (-1, -1),)) == _links(scenario, finding.links)
    if cause.region is not None and finding.region != cause.region:
        return False
    if cause.path is not None:
        wanted = {cause.path[call] for call in active}
        said = set(finding.places)
        return said <= wanted and len(said) >= SAME_CALLS * len(wanted)
    return (cause.ranks or ()) == finding.ranks and (cause.blocks or ()) == finding.blocks


def _links(scenario: Scenario, links: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """All pairs of ranks that exchange data on some links, of which -1 stands for every rank."""
    program = program_of(scenario.topology, scenario.sizes)
    rank = program.of_ops(program.track_rank)
    waits = (program.op == Op.WAIT) & (program.peer != rank)
    pairs = set(zip(program.peer[waits].tolist(), rank[waits].tolist(), strict=True))
    return {
        pair
        for pair in pairs
        for first, second in links
        if first in (-1, pair[0]) and second in (-1, pair[1])
    }


def judge(number: int, seed: int) -> Verdict:
    """One case, and what it took."""
    began = time.process_time()
    verdict = _judge(number, seed)
    return replace(verdict, cpu_s=round(time.process_time() - began, 2))


def _is_balanced(random: np.random.Generator) -> bool:
    """Whether a case has no cause: its first random number says so."""
    return bool(random.random() < BALANCED_SHARE)


def _numbers(options: argparse.Namespace, seed: int) -> list[int]:
    """The cases that are asked for."""
    numbers = range(options.first, options.first + options.cases)
    if options.only is None:
        return list(numbers)
    wanted = options.only == "balanced"
    return [n for n in numbers if _is_balanced(np.random.default_rng([seed, n])) == wanted]


def _judge(number: int, seed: int) -> Verdict:
    """Draw, simulate, explain and compare one case."""
    random = np.random.default_rng([seed, number])
    if _is_balanced(random):
        scenario = draw_balanced(random, EVERYTHING)
        found = explain_trace(simulate(scenario).trace()).findings
        said = tuple(text_of(finding) for finding in found)
        label = f"{scenario.noise_shape} noise of {scenario.noise:.0%}"
        return Verdict(
            number, scenario.topology, ("balanced",), not found, not found, (), said, (label,)
        )
    scenario = draw_scenario(random, EVERYTHING)
    return _compare(number, scenario, explain_trace(simulate(scenario).trace()))


def _compare(number: int, scenario: Scenario, explanation: Explanation) -> Verdict:
    everything = range(len(scenario.causes))
    truth = Truth(lambda causes: simulate(scenario, causes).lengths_ns, explanation.ordinals)
    total = truth.length(everything)
    gains = [truth.gain(everything, cause) for cause in everything]
    calls = set(explanation.ordinals)
    matches = [
        next((i for i, c in enumerate(scenario.causes) if names(c, finding, scenario, calls)), None)
        for finding in explanation.findings
    ]
    left = set(everything)
    right: list[bool] = []
    for finding, match in zip(explanation.findings, matches, strict=True):
        if match is None or match not in left:
            break
        gained = truth.gain(left, match)
        right.append(abs(finding.gain_ns - gained) <= max(0.03 * total, 0.1 * gained))
        left.discard(match)
    unnamed = set(everything) - set(matches)
    first = matches[0] if matches else None
    return Verdict(
        number,
        scenario.topology,
        tuple(f"{c.kind.value}, {c.when.value}" for c in scenario.causes),
        gains[first] >= max(gains) - TIE * total
        if first is not None
        else not matches and max(gains) < WORTH_NAMING * total,
        None not in matches and all(truth.gain(unnamed, i) < WORTH_NAMING * total for i in unnamed),
        tuple(right),
        tuple(text_of(finding) for finding in explanation.findings),
        tuple(f"{_place(c)}: {g / total:.1%}" for c, g in zip(scenario.causes, gains, strict=True)),
    )


def text_of(item: Finding | Limit) -> str:
    """What was found, in short."""
    if isinstance(item, Limit):
        return f"{item.kind.value} {item.share:.1%}"
    where = f"ranks {item.ranks} blocks {item.blocks} links {item.links} {item.region}"
    calls = f"{item.when.value} {len(item.calls)} of {len(item.gains_ns)}"
    return f"{item.kind.name} {where} {calls} {item.share:.1%}"


def _place(cause: Cause) -> str:
    where = f"ranks {cause.ranks} blocks {cause.blocks} link {cause.link} {cause.region}"
    return f"{cause.kind.value} {where} {cause.when.value}"


def rates(verdicts: list[Verdict]) -> dict[str, object]:
    planted = [verdict for verdict in verdicts if verdict.classes != ("balanced",)]
    balanced = [verdict for verdict in verdicts if verdict.classes == ("balanced",)]
    gains = [right for verdict in planted for right in verdict.gains_right]

    def share(values: list[bool]) -> float | None:
        return round(sum(values) / len(values), 4) if values else None

    return {
        "planted": len(planted),
        "first": share([verdict.is_first for verdict in planted]),
        "all": share([verdict.is_all for verdict in planted]),
        "gain": share(gains),
        "balanced": len(balanced),
        "silent": share([verdict.is_all for verdict in balanced]),
    }


def tables(verdicts: list[Verdict]) -> dict[str, dict[str, dict[str, object]]]:
    by_topology: dict[str, list[Verdict]] = defaultdict(list)
    by_class: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_topology[verdict.topology].append(verdict)
        for name in verdict.classes:
            by_class[name].append(verdict)
    held_back = [verdict for verdict in verdicts if verdict.topology in HELD_BACK]
    return {
        "by_topology": {name: rates(part) for name, part in sorted(by_topology.items())},
        "by_class": {name: rates(part) for name, part in sorted(by_class.items())},
        "held_back": {"topologies held back": rates(held_back)},
    }


def verdicts_of(
    judging: Callable[..., Verdict], cases: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Verdict]:
    """Those of all cases, as they come; what is not right is printed."""
    for verdict in _judged(judging, cases, workers):
        if not verdict.is_right:
            print(verdict, flush=True)
        yield verdict


def _judged(
    judging: Callable[..., Verdict], cases: Iterable[tuple[Any, ...]], workers: int
) -> Iterator[Verdict]:
    if workers == 1:
        yield from itertools.starmap(judging, cases)
        return
    context = multiprocessing.get_context("spawn")
    processors = context.Queue()
    for processor, _ in zip(itertools.cycle(sorted(os.sched_getaffinity(0))), range(workers)):
        processors.put(processor)
    with ProcessPoolExecutor(workers, context, _keep_to_one, (processors,)) as pool:
        waiting = [pool.submit(judging, *case) for case in cases]
        for done in as_completed(waiting):
            yield done.result()


def _keep_to_one(processors: multiprocessing.Queue[int]) -> None:
    """DuckDB and numpy start as many threads as there are processors that they may use."""
    os.sched_setaffinity(0, {processors.get()})


def _read(log: Path) -> tuple[int, list[Verdict]]:
    """The seed and the verdicts of a log."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    seeds = {row.pop("seed") for row in rows}
    if len(seeds) != 1:
        raise SystemExit(f"{log} has cases of {len(seeds)} seeds; give a log of one seed")
    for row in rows:
        row |= {name: tuple(value) for name, value in row.items() if isinstance(value, list)}
    verdicts = {row["number"]: Verdict(**row) for row in rows}
    return seeds.pop(), list(verdicts.values())


def summary_of(document: dict[str, Any]) -> str:
    """The rates of a result beside their bars, as the table of docs/findings.md."""
    measured = document["rates"]
    lines = ["| | measured | at least |", "|---|---|---|"]
    for name, (what, least) in BARS.items():
        of = measured["balanced" if name == "silent" else "planted"]
        rate = "no such runs" if measured[name] is None else f"{100 * measured[name]:.1f} %"
        lines.append(f"| {what.format(of=of)} | {rate} | {100 * least:.0f} % |")
    where = f"commit {document['commit']}, {document['date_utc']}"
    return "\n".join([*lines, "", f"`{document['command']}`, {where}."])


def document_of(seed: int, verdicts: list[Verdict]) -> dict[str, Any]:
    """What is kept of a run."""
    verdicts = sorted(verdicts, key=lambda verdict: verdict.number)
    command = f"python -m benchmarks.explanation_accuracy --cases {len(verdicts)} --seed {seed}"
    return harness.context(command) | {
        "cpu_seconds": round(sum(verdict.cpu_s for verdict in verdicts)),
        "seed": seed,
        "rates": rates(verdicts),
        **tables(verdicts),
        "failures": [asdict(verdict) for verdict in verdicts if not verdict.is_right],
    }


def options_of_cases(description: str | None, num_cases: int) -> argparse.ArgumentParser:
    """The options of random cases."""
    parser = harness.options(description)
    parser.add_argument("--cases", type=int, default=num_cases)
    parser.add_argument("--seed", type=int, help="drawn anew unless given")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    return parser


def seed_or_new(seed: int | None) -> int:
    """The seed that is given, or a new one. Printed: what came out can be seen again."""
    seed = secrets.randbelow(1 << 31) if seed is None else seed
    print(f"seed {seed}", flush=True)
    return seed


def main() -> None:
    parser = options_of_cases(__doc__, 2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--only", choices=("balanced", "planted"), help="leave the other cases out")
    options = parser.parse_args()
    seed, verdicts = options.seed, []
    if options.log and options.log.exists():
        seed, verdicts = _read(options.log)
        if options.seed not in (None, seed):
            raise SystemExit(
                f"{options.log} is of seed {seed}; give another log for {options.seed}"
            )
    seed = seed_or_new(seed)
    known = {verdict.number for verdict in verdicts}
    numbers = [n for n in _numbers(options, seed) if n not in known]
    for verdict in verdicts_of(judge, [(n, seed) for n in numbers], options.workers):
        verdicts.append(verdict)
        if options.log:
            with options.log.open("a") as log:
                log.write(json.dumps({"seed": seed} | asdict(verdict)) + "\n")
    print(rates(verdicts))
    if options.output:
        document = document_of(seed, verdicts)
        harness.write(document, options.output)
        print(summary_of(document))


if __name__ == "__main__":
    main()
