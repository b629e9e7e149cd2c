"""The recorder: hands kernels their buffers and writes what they recorded into the capture."""

from __future__ import annotations

from typing import Final

# Set by `kprof record` for the workload; without RECORD_DIR_VARIABLE nothing is recorded.
RECORD_DIR_VARIABLE: Final = "KPROF_RECORD_DIR"
ARENA_BYTES_VARIABLE: Final = "KPROF_ARENA_BYTES"
