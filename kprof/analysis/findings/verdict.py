"""What measured lengths of calls say about a promise: a pure function of numbers."""

from __future__ import annotations

from typing import Final

import numpy as np

from kprof.analysis.findings.experiment import Experiment, shown_of
from kprof.analysis.replay.spans import Floats, Ints
from kprof.capture.verified import Verdict, Verified

# As parts of the delay. A promise is wrong if the interval is further away than this. judged: the
# replay is a model, and its other promises are held to a tenth.
_NEAR: Final = 0.1
# It is right if all of the interval is as near as this: half of a delay is then known from none.
_TOLD: Final = 0.25
_DRAWS: Final = 400


def judge(
    experiment: Experiment,
    lengths_ns: Floats,
    *,
    finding: str = "",
    command: tuple[str, ...] = (),
    created_utc: str = "",
) -> Verified:
    """What `lengths_ns` (delays x rounds x calls) say.

    Of every call the median over rounds counts, and of all calls the one in the middle, by how far
    off its promise it is: where other programs have the cores, single calls take many times as
    long. Rounds are drawn again, all delays of a round together: what disturbs a round, disturbs
    all of it.
    """
    num_rounds = lengths_ns.shape[1]
    promised_of_calls = shown_of(experiment, experiment.promised_ns)
    promised = float(np.median(promised_of_calls))

    def shown(rounds: Ints) -> float:
        typical = np.median(lengths_ns[:, rounds], axis=1)
        return promised + float(np.median(shown_of(experiment, typical) - promised_of_calls))

    every = np.arange(num_rounds)
    measured = shown(every)
    drawn = np.random.default_rng(0).integers(0, num_rounds, (_DRAWS, num_rounds))
    low, high = np.quantile([shown(rounds) for rounds in drawn], [0.05, 0.95]).tolist()
    without = [shown(np.delete(every, i)) for i in range(num_rounds)]
    # So few rounds, drawn again, differ less than rounds do.
    wider = float(np.sqrt(num_rounds / (num_rounds - 1)))
    low = measured - wider * (measured - min(low, *without))
    high = measured + wider * (max(high, *without) - measured)
    typical = np.median(lengths_ns, axis=1)
    return Verified(
        finding=finding,
        region=experiment.region,
        is_at_others=experiment.is_at_others,
        delays_ns=experiment.delays_ns,
        call_ns=tuple(np.median(typical, axis=1).tolist()),
        promised_call_ns=tuple(np.median(experiment.promised_ns, axis=1).tolist()),
        shown=_told(measured),
        low=_told(low),
        high=_told(high),
        promised_shown=_told(promised),
        verdict=_verdict(promised, low, high),
        num_rounds=num_rounds,
        num_calls=lengths_ns.shape[2],
        command=command,
        created_utc=created_utc,
    )


def _told(share: float) -> float:
    """To a tenth of a percent, and never -0."""
    return round(share, 3) or 0.0


def _verdict(promised: float, low: float, high: float) -> Verdict:
    # Where ranks wait in a chain, a delay shows several times.
    scale = max(1.0, abs(promised))
    if not low - _NEAR * scale <= promised <= high + _NEAR * scale:
        return Verdict.NOT_CONFIRMED
    is_told = promised - low <= _TOLD * scale and high - promised <= _TOLD * scale
    return Verdict.CONFIRMED if is_told else Verdict.TOO_NOISY
