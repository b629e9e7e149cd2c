"""Are conclusions right in the nine classes in which they once went wrong?

Random cases of `tests/support/patterns/classes.py`, drawn anew unless a seed is given, as `kprof report`
explains them. What a cause is worth is the same run without it.

    first     the first conclusion is a planted cause (the costliest, or one within 0.5 % of it)
    all       every cause worth 5 % is named, and nothing that is no cause
    gain      what the findings gain together, within 10 % of the truth or 2 % of the run
    silent    of runs with nothing planted: no finding

    python -m benchmarks.conclusion_classes [--cases 20] [--seed N] [--only CLASS ...] [--json FILE] [--workers 1]

`--cases` are per class. 20 take about four minutes on one core.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from benchmarks import explanation_accuracy as accuracy
from benchmarks import harness
from benchmarks.explanation_accuracy import TIE, WORTH_NAMING, Truth, Verdict
from kprof.analysis.findings import Finding, Limit, find
from kprof.analysis.findings.finding import Kind
from kprof.analysis.summary import Summary
from patterns.classes import CLASSES, Case, Fields, draw

NEAR, NEAR_SHARE = 0.1, 0.02


def judge(name: str, number: int, seed: int) -> Verdict:
    """Draw, run, explain and compare one case."""
    case = draw(name, np.random.default_rng([seed, number, sorted(CLASSES).index(name)]))
    found = find(Summary.of(case.trace(case.run(case.everything))))
    shown = [
        item for item in found.shown if isinstance(item, Finding) or _match(case, item) is not None
    ]
    said = tuple(map(accuracy.text_of, shown))
    if not case.causes:
        is_silent = not found.findings
        return Verdict(number, name, ("balanced",), is_silent, is_silent, (), said)
    truth = Truth(lambda causes: case.run(causes).lengths, () if case.is_whole else found.calls)
    total = truth.length(case.everything)
    gains = [truth.gain(case.everything, cause) for cause in case.everything]
    matches = [_match(case, item) for item in shown]
    left, gained, right = set(case.everything), 0.0, []
    for item, match in zip(shown, matches, strict=True):
        if match is None or match not in left:
            break
        left.discard(match)
        gained += item.gain_ns if not case.is_whole else item.share * total
        if matches[-1] == match or not left:
            worth = total - truth.length(left)
            right.append(abs(gained - worth) <= max(NEAR * worth, NEAR_SHARE * total))
    first = matches[0] if matches else None
    is_first = first is not None and gains[first] >= max(gains) - TIE * total
    is_left = total - truth.length(case.everything - left) >= WORTH_NAMING * total
    planted = tuple(
        f"{dict(fields[0])}: {gain / total:.1%} of {total:.0f}"
        for fields, gain in zip(case.causes, gains, strict=True)
    )
    is_all = None not in matches and not is_left
    return Verdict(number, name, (name,), is_first, is_all, tuple(right), said, planted)


def _match(case: Case, item: Finding | Limit) -> int | None:
    """Which cause of a case a finding, or a limit of the design, is about."""
    causes = enumerate(case.causes)
    return next((i for i, fields in causes if any(_has(item, one) for one in fields)), None)


def _has(item: Finding | Limit, fields: Fields) -> bool:
    return all(_plain(getattr(item, name, None)) == wanted for name, wanted in fields.items())


def _plain(value: object) -> object:
    if isinstance(value, Kind):
        return value.name
    return value.value if isinstance(value, Enum) else value


def main() -> None:
    parser = accuracy.options_of_cases(__doc__, 20)
    parser.add_argument("--only", nargs="+", choices=list(CLASSES), default=list(CLASSES))
    options = parser.parse_args()
    seed = accuracy.seed_or_new(options.seed)
    cases = [(name, number, seed) for name in options.only for number in range(options.cases)]
    verdicts = list(accuracy.verdicts_of(judge, cases, options.workers))
    command = f"python -m benchmarks.conclusion_classes --cases {options.cases} --seed {seed}"
    rates = {
        name: accuracy.rates([v for v in verdicts if v.topology == name]) for name in options.only
    }
    result = harness.context(command) | {"seed": seed, "rates": rates}
    harness.show_and_write(result, options.output)


if __name__ == "__main__":
    main()
