"""Dumps of PyTorch's flight recorder, as JSON or pickle, one file per rank in the order of ranks.

A pickle is never loaded: its numbers, texts, lists and dicts are read here, and one that asks for
anything else is refused.
"""

from __future__ import annotations

import glob
import os
import pickletools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from kprof.errors import ForeignFormatError
from kprof.importers.collector import Collector, Place
from kprof.importers.foreign import ForeignEvents, Format, ReadOptions
from kprof.importers.reading import parse_json, read_bytes
from kprof.importers.sample import Sample
from kprof.regions import Category

_WHAT: Final = "a dump of PyTorch's flight recorder"
# Where dumps go: the beginning of their names, before the rank. PyTorch has renamed it.
_PLACES: Final = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_VALUES: Final = frozenset(
    ("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BININT", "BININT1", "BININT2", "BINFLOAT")
) | {"LONG1"}
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_EMPTY: Final[dict[str, type]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_ADDED: Final = {"APPEND": 1, "SETITEM": 2}
# An operation of one byte takes up to 200 bytes of memory. The dump of 2,000 entries with stacks of
# 100 frames takes a tenth of this.
_MOST_OPERATIONS: Final = 4_000_000
_MOST_SAID: Final = 8


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    profiling_name: str
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    state: str = ""
    time_created_ns: int = 0
    time_discovered_started_ns: int | None = None
    time_discovered_completed_ns: int | None = None


class _Dump(msgspec.Struct):
    entries: list[_Entry] = []
    version: str = ""


def found_since(since_s: float, environment: Mapping[str, str] = os.environ) -> list[str]:
    """What the dumps say that ranks of this user have written since then: where they are, and which
    ranks are behind. Without any, nothing."""
    named = (environment[name] for name in _PLACES if environment.get(name))
    prefix = Path(next(named, "") or Path.home() / ".cache" / "torch" / "comm_lib_trace_rank_")
    files: dict[int, Path] = {}
    for path in prefix.parent.glob(f"{glob.escape(prefix.name)}*"):
        number, status = path.name.removeprefix(prefix.name), path.lstat()
        is_ours = status.st_uid == os.geteuid() and status.st_mtime >= since_s
        if is_ours and number.isdecimal():
            files[int(number)] = path
    if not files:
        return []
    where = f"PyTorch's flight recorder has {len(files)} dumps, {prefix}*"
    try:
        said = _behind(_latest({rank: _load(path).entries for rank, path in files.items()}))
    except ForeignFormatError as error:
        said = [str(error)]
    return [f"{where}: {'; '.join(said) or 'no rank is behind there'}"]


def _read(files: Sequence[Path], _: ReadOptions) -> ForeignEvents:
    found = Collector()
    dumps = {rank: _load(path).entries for rank, path in enumerate(files)}
    for rank, entries in dumps.items():
        for each in entries:
            number = each.p2p_seq_id if each.is_p2p else each.collective_seq_id
            key = (each.process_group[0], each.is_p2p, number, each.profiling_name)
            _entry(found, Place(rank, launch=found.launch(key, each.profiling_name)), each)
    return found.events(
        files[0],
        # How much of it was waiting, nobody knows.
        category=Category.OTHER,
        notices=tuple(_behind(_latest(dumps))),
        taken={
            "rank": "the order of the files",
            "launch": "process group and sequence number",
            "clock": "ns of the host's time of day, when its watchdog looked",
        },
    )


def _entry(found: Collector, place: Place, each: _Entry) -> None:
    started, completed = each.time_discovered_started_ns, each.time_discovered_completed_ns
    begun = started or each.time_created_ns
    if completed and completed >= begun:
        found.span(place, each.profiling_name, begun, completed - begun)
    else:
        found.mark(place, f"{each.profiling_name} {each.state or 'enqueued'}", begun)
        found.left_out["ends of collectives"] += 1


def _latest(dumps: Mapping[int, Sequence[_Entry]]) -> dict[str, dict[int, int]]:
    """The number of the last collective that each rank has enqueued, by group."""
    latest: dict[str, dict[int, int]] = {}
    for rank, entries in dumps.items():
        for each in entries:
            if not each.is_p2p:
                ranks = latest.setdefault(each.process_group[1] or each.process_group[0], {})
                ranks[rank] = max(ranks.get(rank, -1), each.collective_seq_id)
    return latest


def _behind(latest: dict[str, dict[int, int]]) -> list[str]:
    """A sentence about each group in which ranks have enqueued less than others."""
    said = []
    for group, ranks in latest.items():
        last = max(ranks.values())
        late = [f"rank {rank} ends with {n}" for rank, n in sorted(ranks.items()) if n < last]
        if late:
            said.append(f"group {group}: others have enqueued collective {last}, {', '.join(late)}")
    return said[:_MOST_SAID]


def _load(path: Path) -> _Dump:
    data = read_bytes(path, _WHAT)
    if data.lstrip()[:1] == b"{":
        return parse_json(data, _Dump, path, _WHAT)
    try:
        return msgspec.convert(_plain(data), _Dump)
    except (ValueError, IndexError, KeyError, TypeError, RecursionError) as error:
        raise ForeignFormatError(f"cannot read {path} as {_WHAT}: {error}") from error


class _Values:
    """The stack and the memo of a pickle of plain data, in linear time."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._memo: list[Any] = []
        self._marks: list[int] = []

    def do(self, name: str, argument: Any) -> None:
        """One operation; raises ValueError for what would call something."""
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            self._marks.append(len(stack))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name in ("APPEND", "SETITEM"):
            self._add(len(stack) - _ADDED[name])
        elif name in ("APPENDS", "SETITEMS"):
            self._add(self._marks.pop())
        elif name == "TUPLE":
            at = self._marks.pop()
            stack[at:] = [tuple(stack[at:])]
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._keep(argument)
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"it is no plain data ({name})")

    def _keep(self, number: int | None) -> None:
        """As the next value of the memo, which is where all picklers put it."""
        if number not in (None, len(self._memo)):
            raise ValueError(f"it numbers a value {number} where {len(self._memo)} comes next")
        self._memo.append(self.stack[-1])

    def _add(self, at: int) -> None:
        """Put the values from `at` on into the list or dict before them."""
        items = self.stack[at:]
        del self.stack[at:]
        into = self.stack[-1]
        if isinstance(into, list):
            into.extend(items)
        elif isinstance(into, dict) and all(type(key) is str for key in items[::2]):
            # Other keys can be chosen so that all of them collide.
            into.update(zip(items[::2], items[1::2], strict=True))
        else:
            raise ValueError("it adds to a value that is no list and no dict of texts")


def _plain(data: bytes) -> Any:
    """The value of a pickle of plain data; raises ValueError for what would call something, and for
    what takes far more memory than its bytes."""
    values = _Values()
    for count, (operation, argument, _) in enumerate(pickletools.genops(data)):
        if count == _MOST_OPERATIONS:
            raise ValueError(
                f"it has more than {_MOST_OPERATIONS:,} values; dump fewer entries, or as JSON"
            )
        values.do(operation.name, argument)
    found = values.stack[-1]
    entries = found.get("entries") if isinstance(found, dict) else None
    if isinstance(entries, list) and len(set(map(id, entries))) < len(entries):
        raise ValueError("it holds one entry several times")
    return found


def _sniff(sample: Sample) -> bool:
    keys = ("entries", "time_created_ns", "profiling_name")
    is_json = sample.has("entries", "profiling_name") or sample.has("pg_config", "entries")
    is_pickle = sample.head[:1] == b"\x80" and all(key.encode() in sample.head for key in keys)
    return is_json or is_pickle


FORMAT: Final = Format(_read, _sniff, takes_many=True)
