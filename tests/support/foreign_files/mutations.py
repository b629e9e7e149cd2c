"""What happens to files on their way: changes that keep what they say, and damage."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

SUPPORT = Path(__file__).parents[1]


def disguised(files: list[Path], seed: int, *, keeps_name: bool = False) -> list[Path]:
    """The same files packed or unpacked, with other names, or as JSON in other words."""
    draw = random.Random(seed)
    is_packed, is_renamed, is_rewritten = (draw.random() < 0.5 for _ in range(3))
    found = []
    for number, path in enumerate(files):
        if path.is_dir() or path.suffix in (".sqlite", ".db"):
            found.append(path)
            continue
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
        if is_rewritten and data[:1] in (b"{", b"["):
            data = rewritten(data, draw)
        path.write_bytes(gzip.compress(data) if is_packed else data)
        suffix = draw.choice([path.suffix, ".dat", ""])
        found.append(
            path.rename(path.with_name(f"file{number}{suffix}"))
            if is_renamed and not keeps_name
            else path
        )
    return found


def rewritten(data: bytes, draw: random.Random) -> bytes:
    """JSON with its keys in another order, more keys, and other space."""
    try:
        value = json.loads(data)
    except ValueError:
        return b"\n " + data
    indent = draw.choice([None, 1, "\t"])
    return json.dumps(
        shuffled(value, draw), indent=indent, separators=draw.choice([None, (",", ":")])
    ).encode()


def shuffled(value: Any, draw: random.Random) -> Any:
    if isinstance(value, list):
        return [shuffled(each, draw) for each in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    draw.shuffle(keys)
    return {key: shuffled(value[key], draw) for key in keys}


def damaged(files: list[Path], seed: int) -> list[Path]:
    """One of the files with something wrong with its bytes."""
    sys.path.append(str(SUPPORT.parent / "fuzz"))
    from bytes_damage import KINDS, changed

    draw = np.random.default_rng(seed)
    inner = [
        each for path in files for each in ([path] if path.is_file() else sorted(path.iterdir()))
    ]
    path = inner[int(draw.integers(len(inner)))]
    data = path.read_bytes()
    is_packed = data[:2] == b"\x1f\x8b" and draw.random() < 0.7
    plain = gzip.decompress(data) if is_packed else data
    path.write_bytes(changed(draw, plain, KINDS[int(draw.integers(KINDS.index("gone")))]))
    return files
