"""The same analyses, with the ranks spread over an existing Dask cluster.

A rank's summary depends on its file only, and the flow sums of some calls on these calls only.
Workers compute both, and the results are merged as on one machine. Workers need kprof, and the
capture under the same path, for example on a shared file system.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kprof.analysis.flow_sums import FlowRow, flow_slices, keep_sums, sums_of_slice
from kprof.analysis.summary import Progress, Summary
from kprof.capture.checksums import is_same
from kprof.capture.directory import Capture
from kprof.capture.manifest import FileChecksum
from kprof.capture.rank_summary import summarise_file
from kprof.errors import ClockError, ClusterError, KprofError
from kprof.trace import Trace
from kprof.trace.flows.ends import FlowEnds, Slice
from kprof.trace.views import Selection

_TIMEOUT_S: Final = 10


def summary_on(trace: Trace, run: Path, address: str, progress: Progress | None = None) -> Summary:
    """The summary of `trace`, with tables computed by the workers of a cluster.

    `run` is the capture that `trace` was opened from, `address` the Dask scheduler, like
    tcp://host:8786. Raises ClusterError if dask is not installed, the scheduler cannot be reached
    or a worker fails, and whatever the analyses raise.
    """
    report = progress or (lambda _what, _share: None)
    with _client(address) as client:
        _check_files(client, trace)
        summary = _map_ranks(client, trace, report)
        _map_calls(client, summary, run.resolve(), report)
    return summary


def _check_files(client: Any, trace: Trace) -> None:
    """Compare the files with their checksums on the workers."""
    checksums = trace.source.checksums
    unread = checksums.unread(trace.source.files)
    jobs = [
        client.submit(_is_same_there, path.resolve(), entry, pure=False)
        for path, entry in unread.items()
    ]
    are_same = _results(client, jobs)
    checksums.trust(path for path, same in zip(unread, are_same, strict=True) if same)
    trace.require_events()


def _is_same_there(path: Path, expected: FileChecksum) -> bool:
    """Like `is_same`; OSError where a worker does not see the file: then the path is wrong there
    and not the capture."""
    path.stat()
    return is_same(path, expected)


def _map_ranks(client: Any, trace: Trace, report: Progress) -> Summary:
    """Summarise ranks without a stored summary on the workers. A selection within files is cheaper
    to compute here."""
    stored = trace.summarised_ranks
    missing = [info for info in trace.ranks if info.rank not in stored]
    files = trace.whole_files
    if not missing or not files:
        return Summary.of(trace)
    report(f"{len(missing)} ranks on the cluster", 0.0)
    jobs = [
        client.submit(
            summarise_file, files[info.rank].resolve(), info, trace.manifest.world_size, pure=False
        )
        for info in missing
    ]
    return Summary.of(trace, apart=_results(client, jobs))


def _map_calls(client: Any, summary: Summary, run: Path, report: Progress) -> None:
    try:
        summary.trace.require_alignment("pairing sends with waits")
    except ClockError:
        return
    slices = flow_slices(summary)
    report(f"flows of {len(slices)} sets of calls on the cluster", 0.5)
    jobs = [
        client.submit(_sums_on_a_worker, run, summary.trace.selection, chosen, pure=False)
        for chosen in slices
    ]
    keep_sums(summary, [row for rows in _results(client, jobs) for row in rows])


def _sums_on_a_worker(run: Path, selection: Selection, chosen: Slice) -> list[FlowRow]:
    capture = Capture.open(run, selection.ranks)
    capture.checksums.trust(capture.events_path(info.rank) for info in capture.manifest.ranks)
    trace = Trace.open(capture).select(
        **{name: getattr(selection, name) for name in selection.__dataclass_fields__}
    )
    return sums_of_slice(FlowEnds.of(trace, trace.flow_sides), chosen)


def _results(client: Any, jobs: list[Any]) -> list[Any]:
    try:
        results: list[Any] = client.gather(jobs)
    except KprofError:
        raise
    except Exception as error:
        raise ClusterError(
            f"a worker of the Dask cluster failed ({type(error).__name__}: {error}); it needs "
            "this version of kprof and the capture under the same path"
        ) from error
    return results


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError("--dask needs Dask: pip install distributed") from error
    try:
        connect: Any = Client
        client = connect(address, timeout=_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address} ({type(error).__name__}); give the address "
            "that `dask scheduler` printed, like tcp://host:8786"
        ) from error
    with client:
        yield client
