"""Are conclusions right in the nine classes in which they once went wrong?

Random cases of `tests/support/patterns/classes.py`, drawn anew unless a seed is given, as `kprof report`
explains them. What a cause is worth is the same run without it.

    first     the first conclusion is a planted cause (the costliest, or one within 0.5 % of it)
    all       every cause worth 5 % is named, and nothing that is no cause
    gain      what the findings so far gain together, within 10 % of the truth or 2 % of the run
    silent    of runs with nothing planted: no finding

    python -m benchmarks.conclusion_classes [--cases 20] [--seed N] [--only CLASS ...] [--json FILE]
        [--workers 1] [--verbose]

`--cases` are per class. 20 take about four minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np

from benchmarks import harness
from kprof.analysis.findings import Finding, Limit, find
from kprof.analysis.findings.finding import Kind
from kprof.analysis.summary import Summary
from patterns.classes import CLASSES, Case, Fields, draw

WORTH_NAMING = 0.05
TIE = 0.005
NEAR, NEAR_SHARE = 0.1, 0.02


@dataclass(frozen=True)
class Verdict:
    """What came out of one case; None where it does not apply."""

    name: str
    number: int
    first: bool | None
    all: bool | None
    gain: tuple[bool, ...]
    silent: bool | None
    said: tuple[str, ...]
    planted: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """All of it."""
        return False not in (self.first, self.all, self.silent, *self.gain)


def has(finding: Finding | Limit, fields: Fields) -> bool:
    """Whether a finding has the fields of a cause."""
    return all(_plain(getattr(finding, name, None)) == wanted for name, wanted in fields.items())


def _plain(value: object) -> object:
    if isinstance(value, Kind):
        return value.name
    return value.value if isinstance(value, Enum) else value


class Truth:
    """Lengths of the run by the causes that are in it, over the calls that were looked at."""

    def __init__(self, case: Case, calls: Sequence[int]) -> None:
        self.case, self.calls = case, calls
        self.known: dict[frozenset[int], float] = {}

    def length(self, present: Iterable[int]) -> float:
        key = frozenset(present)
        if key not in self.known:
            lengths = self.case.run(key).lengths
            chosen = self.calls if self.calls and not self.case.is_whole else range(len(lengths))
            self.known[key] = float(sum(lengths[call] for call in chosen))
        return self.known[key]


def judge(name: str, number: int, seed: int) -> Verdict:
    """Draw, run, explain and compare one case."""
    case = draw(name, np.random.default_rng([seed, number, sorted(CLASSES).index(name)]))
    found = find(Summary.of(case.trace(case.run(case.everything))))
    shown = [item for item in found.shown if isinstance(item, Finding) or _is_named(case, item)]
    said = tuple(f"{_text(item)}" for item in shown)
    if not case.causes:
        return Verdict(name, number, None, None, (), not found.findings, said, ())
    truth = Truth(case, found.calls)
    total = truth.length(case.everything)
    gains = [total - truth.length(case.everything - {cause}) for cause in case.everything]
    matches = [_match(case, item) for item in shown]
    left, gained, right = set(case.everything), 0.0, []
    for item, match in zip(shown, matches, strict=True):
        if match is None or match not in left:
            break
        left.discard(match)
        gained += item.gain_ns if not case.is_whole else item.share * total
        is_last = matches[-1] == match or not left
        if is_last or len(case.causes) == 1:
            worth = total - truth.length(left)
            right.append(abs(gained - worth) <= max(NEAR * worth, NEAR_SHARE * total))
    first = matches[0] if matches else None
    is_first = first is not None and gains[first] >= max(gains) - TIE * total
    unnamed = [total - truth.length(case.everything - left)] if left else []
    is_all = None not in matches and all(gain < WORTH_NAMING * total for gain in unnamed)
    planted = tuple(
        f"{dict(fields[0])}: {gain / total:.1%} of {total:.0f}"
        for fields, gain in zip(case.causes, gains, strict=True)
    )
    return Verdict(name, number, is_first, is_all, tuple(right), None, said, planted)


def _is_named(case: Case, limit: Limit) -> bool:
    """Whether a cause of the case is one of the design."""
    return any(has(limit, fields) for causes in case.causes for fields in causes)


def _match(case: Case, item: Finding | Limit) -> int | None:
    causes = enumerate(case.causes)
    return next((i for i, fields in causes if any(has(item, one) for one in fields)), None)


def _text(item: Finding | Limit) -> str:
    if isinstance(item, Limit):
        return f"{item.kind.value} {item.share:.1%}"
    where = f"ranks {item.ranks} blocks {item.blocks} links {item.links} {item.region}"
    calls = f"{item.when.value} {len(item.calls)} of {len(item.gains_ns)}"
    return f"{item.kind.name} {where} {calls} {item.share:.1%}"


def rates(verdicts: Sequence[Verdict]) -> dict[str, dict[str, float | int | None]]:
    """By class: the share of cases that are right, None where it does not apply."""

    def share(values: list[bool]) -> float | None:
        return round(sum(values) / len(values), 3) if values else None

    found: dict[str, dict[str, float | int | None]] = {}
    for name in CLASSES:
        its = [verdict for verdict in verdicts if verdict.name == name]
        if not its:
            continue
        found[name] = {
            "cases": len(its),
            "first": share([v.first for v in its if v.first is not None]),
            "all": share([v.all for v in its if v.all is not None]),
            "gain": share([right for v in its for right in v.gain]),
            "silent": share([v.silent for v in its if v.silent is not None]),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", nargs="+", choices=list(CLASSES), default=list(CLASSES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="processes")
    parser.add_argument("--verbose", action="store_true", help="print what is not right")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    began, verdicts = time.monotonic(), []
    with ProcessPoolExecutor(options.workers) as pool:
        results = {
            name: [pool.submit(judge, name, number, seed) for number in range(options.cases)]
            for name in options.only
        }
        for name, futures in results.items():
            for future in futures:
                verdicts.append(verdict := future.result())
                if options.verbose and not verdict.is_right:
                    print(verdict, flush=True)
            print(f"{name}: {rates(verdicts)[name]}", flush=True)
    command = f"python -m benchmarks.conclusion_classes --cases {options.cases} --seed {seed}"
    result = harness.context(command) | {
        "seed": seed,
        "workers": options.workers,
        "seconds": round(time.monotonic() - began),
        "rates": rates(verdicts),
    }
    print(f"seed {seed}")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
