"""A page of torch.distributed.debug's HTTP server: what every rank waits for at this moment.

The server is a process of its own and asks nobody but shared memory and the ranks' other threads,
so it answers while kernels hang. Its classes are in private modules of torch and may change:
`kprof.recording.rank.torch_debug` says so where they have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from torch.distributed.debug._frontend import DebugHandler, NavLink, Route

from kprof.capture.shared_memory import memory_of
from kprof.hangs.look import look_now
from kprof.hangs.report import lines_of

_TEMPLATE: Final = """
{% extends "base.html" %}
{% block header %}<h1>{% block title %}{{ title }}{% endblock %}</h1>{% endblock %}
{% block content %}<pre>{{ text | e }}</pre>{% endblock %}
"""
_TITLE: Final = "Waits in kernels (kprof)"


class WaitsPage(DebugHandler):
    """The page /kprof of the ranks that record into a directory; also in the server's dumps."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def routes(self) -> list[Route]:
        """Where the page is."""
        return [Route("/kprof", self._page)]

    def nav_links(self) -> list[NavLink]:
        """Its link on the other pages."""
        return [NavLink("/kprof", _TITLE)]

    def templates(self) -> dict[str, str]:
        """The page around the text."""
        return {"kprof.html": _TEMPLATE}

    def dump(self) -> str:
        """The text of the page."""
        if not memory_of(self._directory):
            return "the recording has ended"
        return "\n".join(lines_of(look_now(self._directory)))

    def dump_filename(self) -> str:
        """How the server's dumps of it are called."""
        return "kprof"

    def _page(self, request: Any) -> bytes:
        return request.frontend.render_template("kprof.html", title=_TITLE, text=self.dump())
