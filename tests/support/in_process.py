"""`kprof ARGUMENTS` in the process of the test: starting Python and importing takes longer than most commands do.

Tests of how the process itself ends (signals, a closed pipe, a missing module) start a real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock


@contextmanager
def _redirected(number: int, name: str) -> Iterator[Path]:
    """Descriptor `number`, and Python's stream `name` on it, write to a file, whose path this gives."""
    kept = os.dup(number)
    with (
        tempfile.NamedTemporaryFile() as file,
        Path(file.name).open("w", errors="surrogateescape") as stream,
    ):
        try:
            os.dup2(stream.fileno(), number)
            with mock.patch.object(sys, name, stream):
                yield Path(file.name)
        finally:
            stream.flush()
            os.dup2(kept, number)
            os.close(kept)


def run_kprof(
    arguments: Sequence[object],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` would give for this command line, with the output of its workload. `environment` is a
    whole one, as for `subprocess.run`; `folder` is the current directory meanwhile."""
    from kprof_cli.main import run

    words = [
        os.fsdecode(word) if isinstance(word, (str, Path)) else str(word) for word in arguments
    ]
    before = Path.cwd()
    with (
        mock.patch.dict(os.environ, environment or {}, clear=environment is not None),
        _redirected(1, "stdout") as out,
        _redirected(2, "stderr") as err,
    ):
        os.chdir(folder or before)
        try:
            code = run(words)
        finally:
            os.chdir(before)
            sys.stdout.flush()
            sys.stderr.flush()
        output, errors = (path.read_text(errors="replace") for path in (out, err))
    return subprocess.CompletedProcess(["kprof", *words], code, output, errors)
