"""Measurements; `python -m benchmarks.NAME` from the root of a checkout.

They share the tests' simulated runs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
