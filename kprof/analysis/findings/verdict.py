"""What measured lengths of calls say about a promise: a pure function of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from kprof.analysis.findings.experiment import Experiment, shown_of
from kprof.analysis.replay.spans import Floats, Ints
from kprof.capture.verified import Verdict

# As parts of the delay. A promise is wrong if the interval is further away than this. judged: the
# replay is a model, and its other promises are held to a tenth.
_NEAR: Final = 0.1
# It is right if all of the interval is as near as this: half of a delay is then known from none.
_TOLD: Final = 0.25
_DRAWS: Final = 400


@dataclass(frozen=True)
class Measured:
    """The part of the delay that shows, where it lies with 90 %, and what that says; `call_ns` is
    the length of a call by delay."""

    shown: float
    interval: tuple[float, float]
    promised: float
    verdict: Verdict
    call_ns: Floats


def judge(experiment: Experiment, lengths_ns: Floats) -> Measured:
    """What `lengths_ns` (delays x rounds x calls) say.

    Of every call the median over rounds counts. Rounds are drawn again, all delays of a round
    together: what disturbs a round, disturbs all of it.
    """
    num_rounds = lengths_ns.shape[1]

    def shown(rounds: Ints) -> float:
        return shown_of(experiment, _typical(lengths_ns[:, rounds]))

    every = np.arange(num_rounds)
    measured = shown(every)
    drawn = np.random.default_rng(0).integers(0, num_rounds, (_DRAWS, num_rounds))
    low, high = np.quantile([shown(rounds) for rounds in drawn], [0.05, 0.95]).tolist()
    without = [shown(np.delete(every, i)) for i in range(num_rounds)]
    # So few rounds, drawn again, differ less than rounds do.
    wider = float(np.sqrt(num_rounds / (num_rounds - 1)))
    low, high = min(low, *without), max(high, *without)
    low, high = measured - wider * (measured - low), measured + wider * (high - measured)
    promised = shown_of(experiment, experiment.promised_ns.mean(axis=1))
    return Measured(
        measured, (low, high), promised, _verdict(promised, low, high), _typical(lengths_ns)
    )


def _verdict(promised: float, low: float, high: float) -> Verdict:
    # Where ranks wait in a chain, a delay shows several times.
    scale = max(1.0, abs(promised))
    if not low - _NEAR * scale <= promised <= high + _NEAR * scale:
        return Verdict.NOT_CONFIRMED
    is_told = promised - low <= _TOLD * scale and high - promised <= _TOLD * scale
    return Verdict.CONFIRMED if is_told else Verdict.TOO_NOISY


def _typical(lengths_ns: Floats) -> Floats:
    """The mean length of a call by delay, of medians over rounds."""
    typical: Floats = np.median(lengths_ns, axis=1).mean(axis=1)
    return typical
