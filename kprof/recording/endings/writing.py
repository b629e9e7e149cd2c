"""What a process says while it writes many events: a bar on a terminal, one line elsewhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Final

from kprof.recording.endings.complaints import complain

# About a second.
WORTH_SAYING_EVENTS: Final = 1_000_000


@contextlib.contextmanager
def writing_shown(rank: int, most_events: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that is told how many events were written; there are `most_events` at most.

    Only rank 0 speaks, for all. What goes wrong here is no reason to lose events.
    """
    if rank or most_events < WORTH_SAYING_EVENTS:
        yield lambda _: None
        return
    with contextlib.ExitStack() as stack:
        try:
            advance = stack.enter_context(_bar(most_events)) if sys.stderr.isatty() else None
        except Exception:
            advance = None
        if advance is None:
            complain(f"rank 0 is writing up to {most_events:,} events")

        def tell(num_events: int) -> None:
            with contextlib.suppress(Exception):
                if advance is not None:
                    advance(num_events)

        yield tell


@contextlib.contextmanager
def _bar(most_events: int) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    # Without a thread that draws: Python starts none while it exits.
    bar = Progress(
        TextColumn("kprof: writing events"),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=most_events)
        yield lambda num_events: bar.update(task, advance=num_events, refresh=True)
