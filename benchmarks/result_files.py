"""Where the figures of a benchmark go."""

from __future__ import annotations

import json
from pathlib import Path


def show_and_write(result: object, path: Path | None) -> None:
    """Print a result as JSON, and write it where a file is named."""
    text = json.dumps(result, indent=1)
    print(text)
    if path:
        path.write_text(text + "\n")
