"""The same analyses with the ranks spread over an existing Dask cluster.

What a rank adds up to is a function of its file alone, and what the flows of some calls add up to a function of those
calls: both are mapped over the workers, and what comes back is united as it is on one machine. The workers need kprof
and the capture under the same path, which is what a shared file system gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kprof.analysis.flow_sums import flow_ends, flow_slices, keep_sums, sums_of_slice
from kprof.analysis.summary import Progress, summarise
from kprof.capture.rank_summary import summarise_file
from kprof.errors import ClockError, ClusterError, KprofError
from kprof.trace import Trace
from kprof.trace.views import Selection

if TYPE_CHECKING:
    from kprof.analysis.flow_sums import FlowRow
    from kprof.trace.flows.ends import Slice

_TIMEOUT_S: Final = 10


def prepare_on(trace: Trace, run: Path, address: str, progress: Progress | None = None) -> None:
    """Make the tables that all analyses of `trace` start from on the workers of a cluster.

    `run` is the capture that `trace` was opened from, `address` that of the Dask scheduler, like tcp://host:8786.
    Raises ClusterError where dask is not installed, the scheduler cannot be reached or a worker fails, and whatever the
    analyses raise.
    """
    report = progress or (lambda _what, _share: None)
    with _client(address) as client:
        _map_ranks(client, trace, report)
        _map_calls(client, trace, run.resolve(), report)


def _map_ranks(client: Any, trace: Trace, report: Progress) -> None:
    """Ranks without a stored summary; a selection within files is cheaper to make here."""
    missing = [info for info in trace.ranks if info.rank not in trace.summarised_ranks]
    files = trace.whole_files
    if not missing or not files:
        summarise(trace)
        return
    report(f"{len(missing)} ranks on the cluster", 0.0)
    jobs = [
        client.submit(
            summarise_file, files[info.rank].resolve(), info, trace.manifest.world_size, pure=False
        )
        for info in missing
    ]
    summarise(trace, apart=_results(client, jobs))


def _map_calls(client: Any, trace: Trace, run: Path, report: Progress) -> None:
    try:
        trace.require_alignment("pairing sends with waits")
    except ClockError:
        return
    slices = flow_slices(trace)
    report(f"flows of {len(slices)} sets of calls on the cluster", 0.5)
    jobs = [
        client.submit(_sums_on_a_worker, run, trace.selection, chosen, pure=False)
        for chosen in slices
    ]
    keep_sums(trace, [row for rows in _results(client, jobs) for row in rows])


def _sums_on_a_worker(run: Path, selection: Selection, chosen: Slice) -> list[FlowRow]:
    trace = Trace.open(run).select(
        **{name: getattr(selection, name) for name in selection.__dataclass_fields__}
    )
    return sums_of_slice(flow_ends(trace), chosen)


def _results(client: Any, jobs: list[Any]) -> list[Any]:
    try:
        results: list[Any] = client.gather(jobs)
    except KprofError:
        raise
    except Exception as error:
        raise ClusterError(
            f"a worker of the Dask cluster failed ({type(error).__name__}: {error}); it needs this version of "
            "kprof and the capture under the same path"
        ) from error
    return results


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise ClusterError("--dask needs Dask: pip install 'kprof[dask]'") from error
    try:
        client: Any = Client(address, timeout=_TIMEOUT_S, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address} ({type(error).__name__}); give the address that `dask scheduler` "
            "printed, like tcp://host:8786"
        ) from error
    with client:
        yield client
