"""`kprof watch`: how a recording that is under way gets on, once a second."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from typer import Argument, Option

from kprof.errors import KprofError, WorkloadError
from kprof_cli.options import command
from kprof_cli.output import note, say

if TYPE_CHECKING:
    from kprof.recording.progress import RankProgress

_LOCALHOST: Final = "127.0.0.1"


@command(
    run=Argument(metavar="RUN", help="What `kprof record` writes at this moment."),
    every=Option(min=0.01, metavar="SECONDS", help="Time between two lines."),
    metrics=Option(
        min=0,
        max=65535,
        metavar="PORT",
        help=f"Also serve Prometheus metrics on {_LOCALHOST}; 0 takes a free port.",
    ),
)
def watch(run: Path, every: float = 1.0, metrics: int | None = None) -> None:
    """Print the pace of a recording under way and who waits for whom, until its ranks have ended.

    Waits are those that have lasted 50 us, where kernels call still_waiting. Events are counted
    when they are written: record with --drain to see them live.
    """
    from kprof.hangs.now import WaitsNow
    from kprof.recording.progress import describe_pace

    directory = _unfinished(run)
    waits = WaitsNow(directory)
    server = _serve(directory, metrics) if metrics is not None else None
    try:
        before, before_s = _look(directory), monotonic()
        while any(each.is_running for each in before):
            sleep(every)
            after, now_s = _look(directory), monotonic()
            if not after:
                break
            say(describe_pace(before, after, now_s - before_s))
            for line in waits.look(now_s):
                say(f"  {line}")
            before, before_s = after, now_s
        note("no rank records any more")
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _look(directory: Path) -> list[RankProgress]:
    from kprof.recording.progress import read_progress

    return read_progress(directory)


def _unfinished(run: Path) -> Path:
    """Raises WorkloadError for what is not being recorded."""
    from kprof.capture.directory import unfinished_of

    names = [unfinished_of(run), run]
    for directory in names:
        if directory.is_dir() and _look(directory):
            return directory
    if (run / "manifest.json").exists():
        raise WorkloadError(f"{run} is finished; kprof report {run} says how it went")
    raise WorkloadError(f"nobody records into {run} at this moment; give the --output of a run")


def _serve(directory: Path, port: int) -> http.server.ThreadingHTTPServer:
    """Raises KprofError for a port that is taken."""
    from kprof.recording.progress import metrics_text

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Any path."""
            body = metrics_text(_look(directory)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """No line for each request."""

    try:
        server = http.server.ThreadingHTTPServer((_LOCALHOST, port), Handler)
    except OSError as error:
        raise KprofError(
            f"cannot serve metrics on {_LOCALHOST}:{port}: {error.strerror}; give another port"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    note(f"metrics on http://{_LOCALHOST}:{server.server_address[1]}/metrics")
    return server
