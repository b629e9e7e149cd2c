"""`verified.json` of a capture: what experiments on the machine showed about its findings."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import msgspec

from kprof.capture.files import decode
from kprof.capture.manifest import Measure, Natural, Real, Text
from kprof.capture.names import VERIFIED_NAME
from kprof.capture.output import write_json


class Verdict(str, Enum):
    """What an experiment says about a finding, as people read it."""

    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not confirmed"
    TOO_NOISY = "this machine is too noisy to say"


class Verified(msgspec.Struct, frozen=True):
    """One experiment, the latest about a finding: spans of `region` were made longer by `delays_ns`
    (the first is 0), at all other places or (`is_at_others` false) where the finding is.

    `call_ns` is how long calls then took in the mean, `promised_call_ns` what the replay says.
    `shown` is the part of a delay that shows in a call, between `low` and `high` with 90 %.
    """

    finding: Text
    region: Text
    is_at_others: bool
    delays_ns: tuple[Measure, ...]
    call_ns: tuple[Measure, ...]
    promised_call_ns: tuple[Measure, ...]
    shown: Real
    low: Real
    high: Real
    promised_shown: Real
    verdict: Verdict
    num_rounds: Natural
    num_calls: Natural
    command: tuple[Text, ...]
    created_utc: Text


def read_verified(directory: Path) -> Mapping[str, Verified]:
    """By the finding's id; raises CorruptCaptureError."""
    path = directory / VERIFIED_NAME
    found = decode(path, tuple[Verified, ...]) if path.exists() else ()
    return {each.finding: each for each in found}


def keep_verified(directory: Path, verified: Verified) -> None:
    """Keep an experiment in a capture; raises CaptureError."""
    others = dict(read_verified(directory)) | {verified.finding: verified}
    write_json(directory / VERIFIED_NAME, tuple(others.values()))
