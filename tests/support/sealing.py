"""Checksums that hold for captures that were changed: what strangers write gets past them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kprof.capture.checksums import (
    Checksums,
    checksum_of,
    checksum_of_manifest,
    files_with_numbers,
)
from kprof.capture.directory import Capture
from kprof.capture.names import MANIFEST_NAME
from kprof.errors import CorruptCaptureError


def check_checksums(run: Path) -> None:
    """Assert that a capture has the checksums of all its files, and that they hold."""
    manifest = Capture.open(run).manifest
    assert manifest.checksum is not None
    paths = files_with_numbers(run)
    assert [entry.name for entry in manifest.files] == [path.name for path in paths]
    Checksums(manifest.files).check(paths)


def write_manifest(run: Path, manifest: dict[str, Any]) -> None:
    """Write `manifest.json` with a checksum that holds, whatever the manifest says."""
    rest = {name: value for name, value in manifest.items() if name != "checksum"}
    data = json.dumps(rest | {"checksum": checksum_of_manifest(json.dumps(rest).encode())})
    (run / MANIFEST_NAME).write_text(data)


@contextlib.contextmanager
def editing_manifest(run: Path) -> Iterator[dict[str, Any]]:
    """The manifest, to be changed in place; its checksum holds afterwards."""
    manifest: dict[str, Any] = json.loads((run / MANIFEST_NAME).read_text())
    yield manifest
    write_manifest(run, manifest)


def remove_checksums(run: Path) -> None:
    """Make it a capture of an older version, which has no checksums."""
    path = run / MANIFEST_NAME
    manifest = json.loads(path.read_bytes())
    path.write_text(
        json.dumps({k: v for k, v in manifest.items() if k not in ("files", "checksum")})
    )


def has_checksum(run: Path) -> bool:
    """Whether the manifest says what its checksum is; not whether it holds."""
    path = run / MANIFEST_NAME
    if path.is_symlink() or not path.is_file():
        return False
    try:
        return isinstance(json.loads(path.read_bytes())["checksum"], int)
    except (ValueError, RecursionError, TypeError, KeyError):
        return False


def seal(run: Path) -> None:
    """Give all files the checksums that they have now; nothing where the manifest cannot be read."""
    path = run / MANIFEST_NAME
    if path.is_symlink() or not path.is_file():
        return
    with contextlib.suppress(ValueError, RecursionError, AttributeError, msgspec.DecodeError):
        manifest = json.loads(path.read_bytes())
        found = []
        for file in files_with_numbers(run):
            with contextlib.suppress(CorruptCaptureError):
                found.append(msgspec.to_builtins(checksum_of(file)))
        write_manifest(run, manifest | {"files": found})
