"""Something wrong with one file of a folder, whatever it holds: bits, sizes, numbers, links and pipes."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

import numpy as np

_NUMBER: Final = re.compile(rb"(?<![\w\"])-?\d+(?:\.\d+)?")
_NUMBERS: Final = (
    b"-1", b"0", b"1", b"65536", b"2147483647", b"2147483648", b"4294967295", b"9007199254740993",
    b"4611686018427387904", b"9223372036854775808", b"1e999", b"-1e300", b"0.5", b"null", b'"x"', b"[]", b"{}", b"true",
)  # fmt: skip
KINDS: Final = (
    "bits",
    "words",
    "cut",
    "longer",
    "number",
    "line",
    "zeros",
    "garbage",
    "gone",
    "link",
    "pipe",
    "folder",
    "other",
)


def damage_one(random: np.random.Generator, folder: Path, outside: Path, names: str = "*") -> str:
    """Damage one file of the folder; returns how. `outside` is a file that links may lead to."""
    # What an earlier damage linked to is not ours to change.
    files = (path for path in folder.glob(names) if not path.is_symlink() and path.is_file())
    paths = sorted(files)
    path = paths[int(random.integers(len(paths)))]
    kind = KINDS[int(random.integers(len(KINDS)))]
    if kind in ("gone", "link", "pipe", "folder", "other"):
        _replace(random, path, kind, outside, paths)
    else:
        path.write_bytes(changed(random, path.read_bytes(), kind))
    return f"{kind} of {path.suffix or path.name}"


def changed(random: np.random.Generator, content: bytes, kind: str) -> bytes:
    """The content of a file with damage of that kind."""
    data = bytearray(content or b"\0")
    # Most files are empty behind their first bytes.
    used = len(content.rstrip(b"\0")) or len(data)
    at = int(random.integers(used if random.random() < 0.9 else len(data)))
    if kind == "bits":
        for _ in range(int(random.choice([1, 1, 2, 20]))):
            data[int(random.integers(used))] ^= 1 << int(random.integers(8))
    elif kind == "words":
        value = random.choice(
            np.array([0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0x4000_0000], np.uint32)
        )
        at -= at % 4
        data[at : at + 4] = int(value).to_bytes(4, "little")[: len(data) - at]
    elif kind == "cut":
        del data[at:]
    elif kind == "longer":
        data += random.bytes(int(random.choice([1, 7, 4096])))
    elif kind == "number" and (found := list(_NUMBER.finditer(bytes(data[: 1 << 16])))):
        begin, end = found[int(random.integers(len(found)))].span()
        data[begin:end] = random.choice(np.array(_NUMBERS, object))
    elif kind == "line" and b"\n" in data:
        lines = bytes(data).split(b"\n")
        a, b = random.integers(len(lines), size=2)
        lines[a] = random.choice(
            np.array([lines[b], lines[b][: len(lines[b]) // 2], b"\xff\xfe", b'{"type":1}'], object)
        )
        data = bytearray(b"\n".join(lines))
    else:
        size = min(int(random.choice([8, 64, 1024, 1 << 16])), len(data) - at)
        data[at : at + size] = bytes(size) if kind == "zeros" else random.bytes(size)
    return bytes(data)


def _replace(
    random: np.random.Generator, path: Path, kind: str, outside: Path, paths: list[Path]
) -> None:
    content = paths[int(random.integers(len(paths)))].read_bytes()
    path.unlink()
    if kind == "link":
        path.symlink_to(
            [outside, Path("/dev/zero"), Path(path.name), outside.parent, Path("gone")][
                int(random.integers(5))
            ]
        )
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "other":
        path.write_bytes(content)


def copied(source: Path, target: Path) -> Path:
    """A copy of a folder."""
    return Path(shutil.copytree(source, target, symlinks=True))
