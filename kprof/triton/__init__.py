"""Records from Triton and Gluon kernels, without C++: the same arena, decoder, report and trace.

    import kprof.triton as kp

    regions = kp.Regions()
    COPY = regions.define("copy", category="compute", bytes=32)

    @triton.jit
    def copy(x, y, n, prof, BLOCK: tl.constexpr):
        track = kp.open_track(prof)
        begin = kp.start(track)
        ...
        track = kp.stop(track, begin, COPY, bytes=n)

    copy[grid](x, y, n, kp.buffer("copy", grid, regions), BLOCK=1024)

Under `kprof record` this records; otherwise `buffer` returns None, and the kernel compiles as if
the calls were not there. TRITON_INTERPRET=1 works, too. docs/triton.md shows how to go from an
existing kernel to a finding.
"""

from __future__ import annotations

from kprof.triton.versions import check_version, installed_version

check_version(installed_version())

from kprof.triton.buffer import Buffer, buffer, pack  # noqa: E402
from kprof.triton.calls import (  # noqa: E402
    lap,
    mark,
    open_track,
    span,
    start,
    still_waiting,
    stop,
    value,
    waiting,
)
from kprof.triton.instrument import instrument  # noqa: E402
from kprof.triton.regions import Regions  # noqa: E402
from kprof.triton.values import Moment, Track, Wait  # noqa: E402

__all__ = [
    "Buffer",
    "Moment",
    "Regions",
    "Track",
    "Wait",
    "buffer",
    "instrument",
    "lap",
    "mark",
    "open_track",
    "pack",
    "span",
    "start",
    "still_waiting",
    "stop",
    "value",
    "waiting",
]
