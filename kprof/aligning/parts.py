"""Where the parts of a merge are: captures, folders of captures, and URLs such as s3://bucket/run."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from kprof.capture.names import MANIFEST_NAME
from kprof.errors import CaptureError

_SCHEME_END: Final = "://"


@contextlib.contextmanager
def local_parts(given: Sequence[str]) -> Iterator[list[Path]]:
    """The captures that `given` names, in its order; of URLs copies, which are removed at the end.

    Raises CaptureError where a URL cannot be read, or holds no capture.
    """
    with tempfile.TemporaryDirectory(prefix="kprof-parts-") as folder:
        found: list[Path] = []
        for number, name in enumerate(given):
            is_url = _SCHEME_END in name
            copies = Path(folder, str(number))
            found += _fetched(name, copies) if is_url else _in_folder(Path(name))
        yield found


def _in_folder(path: Path) -> list[Path]:
    """The path itself, unless it is a folder of captures and none itself."""
    inside = sorted(manifest.parent for manifest in path.glob(f"*/{MANIFEST_NAME}"))
    return [path] if (path / MANIFEST_NAME).exists() or not inside else inside


def _fetched(url: str, copies: Path) -> list[Path]:
    """Copies only what lies directly in a capture: a stranger's names lead nowhere else."""
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise CaptureError(
            f"{url}: reading URLs needs fsspec (pip install fsspec), and for s3 also s3fs"
        ) from None
    # Every storage has errors of its own.
    try:
        storage, root = url_to_fs(url)
        files = [PurePosixPath(path) for path in storage.find(root)]
        captures = sorted({path.parent for path in files if path.name == MANIFEST_NAME})
        found = [copies / str(number) / each.name for number, each in enumerate(captures)]
        for capture, copy in zip(captures, found, strict=True):
            _copy(storage, [path for path in files if path.parent == capture], copy)
    except Exception as error:
        raise CaptureError(f"{url} cannot be read: {error or type(error).__name__}") from error
    if not found:
        raise CaptureError(f"{url} holds no capture: there is no {MANIFEST_NAME} in it")
    return found


def _copy(storage: Any, files: Sequence[PurePosixPath], folder: Path) -> None:
    folder.mkdir(parents=True)
    for path in files:
        storage.get_file(str(path), str(folder / path.name))
