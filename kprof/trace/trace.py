"""The trace: every rank's events on one clock, ready for questions.

A Trace is immutable. It holds the capture's metadata and a DuckDB connection with the views
`events` (a row per record), `flows` (a row per wait that a send released, see kprof.trace.flows),
`regions`, `launches` and `ranks`. docs/own_kernel.md lists their columns, views.py makes them. All
analyses and exports run over the views, so none needs all events in memory.

Two things are slow, so they wait until they are needed: the files are compared with their checksums
before the first event is read (`require_events`), and sends are joined with waits before the first
flow is (`require_flows`). SQL that names `events` or `flows` needs neither call: DuckDB misses the
table behind the view, and it is loaded.

Times are nanoseconds of the reference rank's clock where the capture is aligned, else of each
rank's own clock. `warp` is -1 for a track of the whole block.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import duckdb

from kprof.capture.directory import Capture
from kprof.capture.losses import why_empty
from kprof.capture.manifest import Manifest
from kprof.capture.printable import utf8
from kprof.capture.rank_summary import stored_summaries
from kprof.capture.verified import Verified, read_verified
from kprof.errors import SelectionError
from kprof.on_use import pa
from kprof.trace.events import Events
from kprof.trace.flows.ends import flow_pairs
from kprof.trace.flows.launches import Side, flow_sides
from kprof.trace.queries import reading
from kprof.trace.selection import SelectionText, fields_of_words
from kprof.trace.views import Selection, Source, fill_flows

# Nobody reads a sentence with more numbers.
_MAX_NAMED: Final = 16


class Trace(Events):
    """All events of a capture on one clock. `Trace.open` makes one, `Trace.from_table` in tests."""

    def __init__(
        self,
        manifest: Manifest,
        source: Source,
        selection: Selection,
        whole: Trace | None = None,
    ) -> None:
        super().__init__(manifest, source, selection)
        # The whole trace: which launch answers which depends on all launches.
        self._whole = whole or self
        self._has_flows = False

    @classmethod
    def open(cls, path: str | Path | Capture) -> Self:
        """Open a capture directory; raises a CaptureError."""
        capture = path if isinstance(path, Capture) else Capture.open(path)
        files = tuple(capture.events_path(info.rank) for info in capture.manifest.ranks)
        source = Source(files, None, _stored_summaries(capture), capture.checksums)
        return cls(capture.manifest, source, Selection())

    @classmethod
    def from_table(cls, manifest: Manifest, events: pa.Table) -> Self:
        """A trace over an in-memory table with the columns of `capture.event_schema()`."""
        return cls(manifest, Source(table=events), Selection())

    @cached_property
    def verified(self) -> Mapping[str, Verified]:
        """What experiments showed about findings, by their ids; raises CorruptCaptureError."""
        files = self.source.files
        return read_verified(files[0].parent) if files else {}

    @property
    def flow_sides(self) -> tuple[Side, ...]:
        """Which launches send and wait for each other, over the whole capture."""
        return self._whole._flow_sides

    @cached_property
    def _flow_sides(self) -> tuple[Side, ...]:
        return flow_sides(self)

    def select(self, **words: Any) -> Self:
        """The part of the trace that these options of the command line select; None takes one back.

        ranks, blocks, launches   1, "0-3,7" or a list of numbers; `rank=1` is `ranks=1`, and so on
        regions                   "dispatch/*,copy" or a list of names
        time                      "10us..50us" after the first event; an end may be missing
        time_ns                   the same as a pair of numbers

            trace.select(rank=1, regions="dispatch/*", time="10us..50us")

        Raises SelectionError for any other word, for text that does not parse, and for unknown
        ranks and regions.
        """
        selection = replace(self.selection, **fields_of_words(words, self.regions.names))
        _check_selection(self, selection)
        manifest = self._whole.manifest.for_ranks(selection.ranks)
        return type(self)(manifest, self.source, selection, self._whole)

    def query(self, text: str) -> pa.Table:
        """Run a user's SQL over the views: one SELECT, whose input is the capture and nothing else.

        Raises SelectionError if it does not parse or is another statement, which could write files.
        """
        return self.sql(self.only_select(text))

    def only_select(self, text: str) -> str:
        """A user's SQL, once it can be run; raises like `query`."""
        text = utf8(text)
        with reading():
            statements = duckdb.extract_statements(text)
        if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
            raise SelectionError(
                "the query is not one SELECT statement over the views, which is all that kprof "
                "runs; write a SELECT, or open the Parquet files of the capture in DuckDB itself"
            )
        self.require_events()
        return text

    def require_flows(self) -> None:
        """Let queries read flows. The first call joins all sends with their waits; raises like
        `require_events`."""
        self.require_events()
        with self._loading, reading():
            if not self._has_flows:
                fill_flows(self._con, flow_pairs(self, self.flow_sides))
                self._has_flows = True

    def _load_next(self) -> bool:
        if super()._load_next():
            return True
        if self._has_flows:
            return False
        self.require_flows()
        return True


def select(trace: Trace, text: SelectionText) -> Trace:
    """The trace narrowed to what `text` asks for; raises SelectionError."""
    options = {name: value for name, value in asdict(text).items() if value is not None}
    if not options:
        return trace
    selected = trace.select(**fields_of_words(options, trace.regions.names, "--"))
    if selected.is_empty() and not trace.is_empty():
        given = " ".join(f"--{name} {value}" for name, value in options.items() if value)
        why = why_empty(trace.manifest, selected.ranks) or _extent(trace)
        raise SelectionError(f"{given} leaves no events: {why}")
    return selected


def _extent(trace: Trace) -> str:
    """What there is to select from."""
    first_launch, last_launch, first_block, last_block, length_ns = trace.row(
        "SELECT min(launch), max(launch), min(block), max(block), max(end_ns) - min(start_ns) "
        "FROM events"
    )
    return (
        f"there are launches {first_launch}-{last_launch} and blocks {first_block}-{last_block} "
        f"in {length_ns / 1000:.0f} us"
    )


def _stored_summaries(capture: Capture) -> tuple[tuple[int, Path], ...]:
    stored = stored_summaries(capture)
    changed = capture.checksums.changed(stored.values())
    return tuple((rank, path) for rank, path in stored.items() if path not in changed)


def _check_selection(trace: Trace, selection: Selection) -> None:
    known_ranks = {info.rank for info in trace.manifest.ranks}
    unknown_ranks = sorted(set(selection.ranks or ()) - known_ranks)
    if unknown_ranks:
        recorded = sorted(known_ranks)
        named = f"{len(recorded)} from {recorded[0]} to {recorded[-1]}" if recorded else "none"
        raise SelectionError(
            f"rank {unknown_ranks[0]} was not recorded; "
            f"recorded: {recorded if 0 < len(recorded) <= _MAX_NAMED else named}"
        )
    unknown_regions = sorted(set(selection.regions or ()) - set(trace.regions.names))
    if unknown_regions:
        raise SelectionError(
            f"unknown region {unknown_regions[0]!r}; known: {', '.join(trace.regions.names)}"
        )
