"""What kprof adds to torch.distributed.debug's HTTP server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kprof.errors import RecorderError
from kprof.recording.rank.recorder import Recorder

if TYPE_CHECKING:
    from kprof.recording.rank.null_recorder import AnyRecorder


def torch_debug_handlers(recorder: AnyRecorder) -> list[Any]:
    """The pages of torch's debug server, and one that says what every rank waits for at this
    moment.

        from torch.distributed.debug import start_debug_server
        start_debug_server(handlers=kprof.torch_debug_handlers(recorder))

    All ranks call it. The page is http://HOST:25999/kprof; where the recorder is off there is none.
    Raises RecorderError where torch has no such server (2.13 has), or lacks what that needs.
    """
    try:
        from torch.distributed.debug._debug_handlers import default_handlers

        from kprof.recording.rank.torch_page import WaitsPage
    except ImportError as error:
        raise RecorderError(
            f"torch's debug server cannot be used here ({error}); kprof hang RUN prints the same"
        ) from error
    pages: list[Any] = list(default_handlers())
    if isinstance(recorder, Recorder):
        pages.append(WaitsPage(recorder.listen()))
    return pages
