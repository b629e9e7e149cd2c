"""`kprof watch`: how a recording that is under way gets on, once a second; and `kprof hang`: who
waits for whom in one that hangs, or hung."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from typer import Argument, Option

from kprof.errors import KprofError, WorkloadError
from kprof_cli.options import command
from kprof_cli.output import is_terminal, note, redrawn, say, table_of

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from rich.console import RenderableType

    from kprof.recording.launches.pace import RankPace
    from kprof.recording.launches.progress import RankProgress


from kprof.capture.files import check_recording
from kprof.capture.names import unfinished_of
from kprof_cli.output import print_json

_LOCALHOST: Final = "127.0.0.1"
_MOST_RANKS: Final = 16


@command(
    run=Argument(metavar="RUN", help="The capture that kprof record is writing."),
    every=Option(min=0.01, metavar="SECONDS", help="Time between updates."),
    metrics=Option(
        min=0,
        max=65535,
        metavar="PORT",
        help=f"Also serve Prometheus metrics on {_LOCALHOST} (0: any free port).",
    ),
)
def watch(run: Path, every: float = 1.0, metrics: int | None = None) -> None:
    """Show the progress of a running recording, and who waits for whom.

    A terminal shows a table of the ranks; a pipe gets one line at a time. Waits for a run that has
    not started, and ends with its ranks.

    Waits are shown after 50 us, for kernels that call still_waiting. Rates are averages over 5 s.
    Events count when they are written to disk: record with --drain to see them live.
    """
    from kprof.hangs.now import WaitsNow
    from kprof.nccl.live import Behind
    from kprof.nccl.waited import CollectiveWaits
    from kprof.recording.launches.pace import BURSTS_S, Look, paces
    from kprof.recording.launches.progress import read_progress

    directory = _unfinished(run, every)
    waits, behind, of_nccl = WaitsNow(directory), Behind(directory), CollectiveWaits(directory)

    def look() -> list[RankProgress]:
        return read_progress(directory, of_nccl)

    with _served(look, metrics), _shown() as show:
        looks = deque([Look(monotonic(), look())])
        while any(each.is_running for each in looks[-1].ranks):
            sleep(every)
            looks.append(Look(monotonic(), look()))
            now = looks[-1]
            if not now.ranks:
                break
            while len(looks) > 2 and now.at_s - looks[1].at_s >= BURSTS_S:
                looks.popleft()
            show(paces(looks), [*waits.look(now.at_s), *behind.look()])
    note("all ranks have stopped recording")


@contextmanager
def _shown() -> Iterator[Callable[[Sequence[RankPace], list[str]], None]]:
    """A function that shows ranks and the lines below them."""
    if not is_terminal():
        yield _print
        return
    with redrawn() as redraw:
        yield lambda ranks, waits: redraw(_drawn(ranks, waits))


def _print(ranks: Sequence[RankPace], waits: list[str]) -> None:
    from kprof.recording.launches.pace import describe_pace

    for line in (describe_pace(ranks), *(f"  {wait}" for wait in waits)):
        say(line)


def _drawn(ranks: Sequence[RankPace], waits: list[str]) -> RenderableType:
    """The line for all ranks, a row for each, of many those that are behind, and the waits."""
    from rich.console import Group
    from rich.text import Text

    from kprof.recording.launches.pace import describe_pace, describe_peer

    shown = sorted(ranks, key=lambda each: (-each.num_behind, each.rank))[:_MOST_RANKS]
    headers = ["rank", "events/s", "dropped", "launches/s", "steps/s", "calls behind", "waits for"]
    rows = [
        [
            f"{each.rank}" if each.is_running else f"{each.rank} (ended)",
            f"{each.events_per_s:,.0f}",
            f"{each.num_dropped:,}",
            f"{each.launches_per_s:,.0f}",
            f"{each.steps_per_s:,.0f}",
            f"{each.num_behind:,}",
            describe_peer(each.waited_ns) or "-",
        ]
        for each in sorted(shown, key=lambda each: each.rank)
    ]
    if left := len(ranks) - len(shown):
        waits = [f"and {left} more ranks", *waits]
    lines = map(Text, waits)
    return Group(Text(describe_pace(ranks)), table_of(headers, rows), *lines)


def _unfinished(run: Path, every_s: float) -> Path:
    """Where a run is recorded, once a rank records. Raises WorkloadError for what cannot become
    one."""
    from kprof.recording.launches.progress import read_progress

    begun, has_said = unfinished_of(run), False
    while True:
        for directory in (begun, run):
            if directory.is_dir() and read_progress(directory):
                check_recording(directory)
                return directory
        if not begun.is_dir():
            _refuse_no_run(run)
        if not has_said:
            note(f"waiting for ranks to start recording into {run}; press Ctrl-C to stop")
            has_said = True
        sleep(every_s)


def _refuse_no_run(run: Path) -> None:
    """Raises WorkloadError for what is there and is not being recorded."""
    from kprof.capture.names import MANIFEST_NAME, UNFINISHED_SUFFIX

    if (run / MANIFEST_NAME).exists():
        raise WorkloadError(f"{run} is finished; to see it, run kprof report {run}")
    if run.exists() and not (run.is_dir() and run.name.endswith(UNFINISHED_SUFFIX)):
        raise WorkloadError(
            f"{run} is not a capture and cannot become one; pass the --output of kprof record"
        )


@contextmanager
def _served(look: Callable[[], list[RankProgress]], port: int | None) -> Iterator[None]:
    """With metrics on that port, if one is given."""
    server = None if port is None else _serve(look, port)
    try:
        yield
    finally:
        if server is not None:
            server.shutdown()
            server.server_close()


def _serve(look: Callable[[], list[RankProgress]], port: int) -> ThreadingHTTPServer:
    """Raises KprofError for a port that is taken."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from kprof.recording.launches.progress import metrics_text

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Any path, for who asks for this host by its own name: a page of somebody else's that
            has got this address must not read it."""
            name = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host")
            if name not in (_LOCALHOST, "localhost"):
                self.send_error(403, f"ask for {_LOCALHOST}")
                return
            body = metrics_text(look()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """No line for each request."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A client that goes away before it has its answer hinders nobody."""

    try:
        server = Server((_LOCALHOST, port), Handler)
    except OSError as error:
        raise KprofError(
            f"cannot serve metrics on {_LOCALHOST}:{port}: {error.strerror}; give another port"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    note(f"metrics on http://{_LOCALHOST}:{server.server_address[1]}/metrics")
    return server


@command(path=Argument(metavar="RUN", help="A running recording, or its capture."))
def hang(path: Path = Path("run.kprof"), is_json: bool = False) -> None:
    """Show which block waits for which rank, and which rank is the root cause.

    For a running recording, shows its waits now; for a capture, the hang that it recorded.
    """
    from kprof.hangs.look import look_at
    from kprof.hangs.report import lines_of
    from kprof.nccl.stalls import with_collectives

    found = with_collectives(look_at(path), unfinished_of(path))
    if is_json:
        import msgspec

        print_json(msgspec.to_builtins(found))
        return
    for line in lines_of(found):
        say(line)
