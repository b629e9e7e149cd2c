"""Perfetto's `trace_processor_shell`, as far as its Python package uses it: its HTTP in front of the engine of these tests.

python shell.py -D --http-port PORT ...
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from engine import EngineError, TraceProcessor


class Handler(BaseHTTPRequestHandler):
    """`parse` collects the trace, `notify_eof` loads it, `query` asks."""

    processor: TraceProcessor
    trace: Path

    def do_GET(self) -> None:
        if self.path == "/notify_eof":
            with contextlib.suppress(EngineError):
                self.processor.load(self.trace)
        self._answer(b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/query":
            self._answer(self._result(body))
            return
        with self.trace.open("ab") as file:
            file.write(body)
        self._answer(b"")

    def _result(self, body: bytes) -> bytes:
        protos: Any = self.processor._protos
        request = self.processor._request("TPM_QUERY_STREAMING")
        request.query_args.ParseFromString(body)
        parts = []
        for reply in self.processor._exchange(request):
            parts.append(reply.query_result.SerializeToString())
            batches = reply.query_result.batch
            if reply.query_result.error or (batches and batches[-1].is_last_batch):
                break
        result = protos.QueryResult()
        # Messages behind one another are merged.
        result.ParseFromString(b"".join(parts))
        return result.SerializeToString()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main(port: int) -> None:
    with tempfile.TemporaryDirectory() as folder, TraceProcessor.start() as processor:
        Handler.processor, Handler.trace = processor, Path(folder) / "trace"
        HTTPServer(("localhost", port), Handler).serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[sys.argv.index("--http-port") + 1]))
