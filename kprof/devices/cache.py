"""Where builds are kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "KPROF_CACHE_DIR"


def cache_dir() -> Path:
    """KPROF_CACHE_DIR, else kprof's folder in the user's cache directory."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kprof"
    return Path(os.environ.get(CACHE_VARIABLE, default))
