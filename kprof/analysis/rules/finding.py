"""What a finding is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final


class Severity(str, Enum):
    """How much a finding matters; the first three by the share of the run that it costs."""

    CRITICAL = "critical"
    MAJOR = "major"
    MINOR = "minor"
    NOTE = "note"


# In place of a block: the line of the rank's kernel launches.
LAUNCHES: Final = -1
_CRITICAL_SHARE: Final = 0.2
_MAJOR_SHARE: Final = 0.1


def severity_of(share: float) -> Severity:
    """Critical from 20 % of the run's time on, major from 10 %."""
    if share >= _CRITICAL_SHARE:
        return Severity.CRITICAL
    return Severity.MAJOR if share >= _MAJOR_SHARE else Severity.MINOR


@dataclass(frozen=True)
class Finding:
    """One sentence with its numbers.

    `cost_ns` is the time lost per block on the ranks concerned, over the whole run, and `share` its part of the
    time in kernels (both without a warm-up): comparable with the run's own time. `explained_by` is the id of
    the finding that caused this one. `where_ns` is a stretch of the trace that shows it, on `tracks`: pairs of
    (rank, block), the one that shows it most and one to see beside it, block LAUNCHES for the rank's kernel launches.
    """

    id: str
    kind: str
    severity: Severity
    sentence: str
    remedy: str
    cost_ns: float = 0.0
    share: float = 0.0
    ranks: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    region: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    explained_by: str | None = None
    where_ns: tuple[int, int] | None = None
    tracks: tuple[tuple[int, int], ...] = ()
