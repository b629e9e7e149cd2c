"""`kprof record --nccl -o OUTPUT -- COMMAND` without the summary that follows, which takes longer than the run.

python -m benchmarks.nccl.recording OUTPUT COMMAND
"""

from __future__ import annotations

import sys
from pathlib import Path

from kprof.nccl.plugin import build_plugin
from kprof.recording.launcher.record import RecordRequest, record

RING_BYTES = 256 << 20


def main() -> None:
    output, *command = sys.argv[1:]
    request = RecordRequest(
        command=tuple(command),
        output=Path(output),
        arena_bytes=RING_BYTES,
        nccl_plugin=build_plugin(),
        force=True,
    )
    sys.exit(record(request, say=lambda said: print(said, file=sys.stderr)).exit_code)


if __name__ == "__main__":
    main()
