"""Links that open an exported trace in the Perfetto UI, zoomed in and with tracks pinned."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from kprof.export.model import FIRST_EVENT_NS, LAUNCHES_NAME, ExportSummary

ONLINE_UI: Final = "https://ui.perfetto.dev"


@dataclass(frozen=True)
class PinnedTrack:
    """A block of a rank, to pin above all other tracks.

    A negative block means the rank's line of kernel launches. The UI pins tracks by their names
    alone, so the export gives such tracks names with their ranks.
    """

    rank: int
    block: int

    @property
    def title(self) -> str:
        """`Rank 3 block 17`: a pinned track has no parents above it, so its title names the
        rank."""
        if self.block < 0:
            return f"Rank {self.rank} {LAUNCHES_NAME}"
        return f"Rank {self.rank} block {self.block}"

    @property
    def pattern(self) -> str:
        """A regular expression on the names of its tracks, where the export was told to pin it."""
        return f"^{self.title}$"


@dataclass(frozen=True)
class DeepLink:
    """Where the UI opens: a window of file time (see ExportSummary.origin_ns), tracks, and the
    selected slice.

    The UI ignores a window that is not inside the trace; `within` makes one that is. `expanded` are
    regular expressions on track names ("^Rank 3 ") and match on every rank; `tracks` names single
    tracks. `selected` is the start (in file time) and the length of the slice to select: the UI
    scrolls to it and shows its arrows. The answers of `queries` are tabs, the last one in front.
    """

    from_ns: int | None = None
    to_ns: int | None = None
    expanded: tuple[str, ...] = ()
    tracks: tuple[PinnedTrack, ...] = ()
    selected: tuple[int, int] | None = None
    queries: tuple[str, ...] = ()

    def within(self, summary: ExportSummary, from_ns: int, to_ns: int) -> DeepLink:
        """This link, zoomed on a window of the trace's aligned time, cut to what was exported."""
        first, last = FIRST_EVENT_NS, summary.last_ns
        low = min(max(from_ns - summary.origin_ns, first), last - 1)
        high = min(max(to_ns - summary.origin_ns, low + 1), last)
        return replace(self, from_ns=low, to_ns=high)

    def selecting(self, start_ns: int, duration_ns: int, summary: ExportSummary) -> DeepLink:
        """This link, with a slice selected and a window that still shows all of its own.

        The UI moves a slice to the middle of its window, and zooms out where the slice is longer
        than half of it or is there already: hence the window is around the slice, but for 1 ns.
        """
        link = replace(self, selected=(start_ns, duration_ns))
        if self.from_ns is None or self.to_ns is None or not duration_ns:
            return link
        middle = start_ns + duration_ns // 2
        half = max(duration_ns + 1, middle - self.from_ns, self.to_ns - middle)
        first, last = FIRST_EVENT_NS, summary.last_ns
        low = max(first, min(middle - half, last - 2 * half))
        high = min(last, low + 2 * half)
        is_left = 2 * middle < low + high
        return replace(link, from_ns=low + is_left, to_ns=high - (not is_left))

    def query(self) -> str:
        """The part of the address after the trace: `&visStart=...&startupCommands=...`."""
        parts = []
        if self.from_ns is not None and self.to_ns is not None:
            parts.append(f"&visStart={self.from_ns}&visEnd={self.to_ns}")
        if self.selected is not None:
            parts.append(f"&ts={self.selected[0]}&dur={self.selected[1]}")
        commands = [_command("ExpandTracksByRegex", pattern) for pattern in self.expanded]
        commands += [_command("PinTracksByRegex", track.pattern) for track in self.tracks]
        commands += [_command("RunQueryAndShowTab", query) for query in self.queries]
        if commands:
            parts.append(f"&startupCommands={quote(json.dumps(commands), safe='')}")
        return "".join(parts)


def _command(name: str, *arguments: str) -> dict[str, Any]:
    return {"id": f"dev.perfetto.{name}", "args": list(arguments)}


def ui_url(ui: str, trace_url: str, deep_link: DeepLink | None = None) -> str:
    """The address that opens `trace_url` in the Perfetto UI at `ui`."""
    link = deep_link or DeepLink()
    return f"{ui}/#!/?url={quote(trace_url, safe='')}{link.query()}"
