"""Region tables: ids, names, categories and payload fields, declared once next to the kernel.

The C++ side includes `regions.h` as an X-macro file; this module reads the same text, so a name can
never drift from its id:

    //     id               name                    category  payload fields
    REGION(R_SEND,          "dispatch/send",        send,     peer:8, slot:24)      a span
    REGION(R_WAIT_TOKEN,    "dispatch/wait-token",  wait,     peer:8, slot:24)
    MARK  (R_COUNTS_KNOWN,  "dispatch/counts",      sync)                           an instant
    VALUE (R_TOKENS_LEFT,   "dispatch/tokens-left", other)                          a counter
    REGION(R_LOADED,        "dispatch/loaded",      recv,     complete, bytes:32)   see below
    FLOW  (R_SEND, R_WAIT_TOKEN)                      a send releases a wait
    FLOW_IN_BLOCK(R_FILL, R_WAIT_FULL)                between warps of one block, by slot alone

Ids are 1, 2, 3 ... in the order of the file; 0 is an empty record. Fields are packed from bit 0
upwards, 32 bits in all. The largest value of a field means "did not fit": the device clamps to it
and the decoder counts it. The payload of a VALUE is its value. `peer` is the rank on the other
side, `slot` joins a send to its wait, `bytes` is the amount of data moved, `flops` the operations.

A region's spans end when the call is issued, or, with the word `complete` before the fields, when
the writer's memory operations have completed. That wait perturbs the kernel. The word `issue`
stands for the default. The word `announced`, at the same place, makes kernels tell of a span when
it begins (docs/hangs.md); it changes nothing in records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from kprof.abi import MAX_REGION_ID
from kprof.errors import RegionError
from kprof.region_places import places

PAYLOAD_BITS: Final = 32
# The names of spans that are a warp's whole life begin so, and go on with the kernel's.
LIFETIME: Final = "warp of "


class Category(str, Enum):
    """What the time in a region is spent on. Analyses depend on it."""

    COMPUTE = "compute"
    SEND = "send"
    RECV = "recv"
    WAIT = "wait"
    SYNC = "sync"
    OTHER = "other"


class Kind(str, Enum):
    """What a record of a region is: a span of time, an instant, or a counter value."""

    SPAN = "span"
    MARK = "mark"
    VALUE = "value"


class Moment(str, Enum):
    """When a region's end is read: at the call, or after the writer's memory operations."""

    ISSUE = "issue"
    COMPLETE = "complete"


class Field(msgspec.Struct, frozen=True):
    """A bit field of the 32-bit payload."""

    name: str
    bits: Annotated[int, Meta(ge=1, le=PAYLOAD_BITS)]
    shift: Annotated[int, Meta(ge=0, lt=PAYLOAD_BITS)]

    @property
    def mask(self) -> int:
        """The largest value, which means "clamped"."""
        return (1 << self.bits) - 1


class Region(msgspec.Struct, frozen=True):
    """One region of a kernel. `place` is the line of its source, "kernel.hip:42", if known."""

    id: int
    name: str
    category: Category = Category.OTHER
    kind: Kind = Kind.SPAN
    fields: tuple[Field, ...] = ()
    moment: Moment = Moment.ISSUE
    place: str = ""

    def field(self, name: str) -> Field | None:
        """The payload field called `name`, in upper or lower case as in SQL, or None."""
        wanted = name.lower()
        return next((field for field in self.fields if field.name.lower() == wanted), None)


class FlowRule(msgspec.Struct, frozen=True):
    """Spans of region `send` release spans of `wait` with the same (source, destination, slot).

    With `in_block` they release spans of the same slot in the same block of the same launch.
    """

    send: int
    wait: int
    in_block: bool = False


class RegionTable(msgspec.Struct, frozen=True):
    """All regions of one kernel (or, merged, of one capture); `regions[i].id == i + 1`."""

    regions: tuple[Region, ...] = ()
    flows: tuple[FlowRule, ...] = ()

    def __post_init__(self) -> None:
        _check(self)

    def __getitem__(self, region_id: int) -> Region:
        return self.regions[region_id - 1]

    def __len__(self) -> int:
        return len(self.regions)

    def by_name(self, name: str) -> Region:
        """The region called `name`; raises RegionError."""
        for region in self.regions:
            if region.name == name:
                return region
        raise RegionError(f"unknown region {name!r}; known: {', '.join(self.names)}")

    @property
    def names(self) -> list[str]:
        """Region names in the order of their ids."""
        return [region.name for region in self.regions]

    @staticmethod
    def of(regions: RegionsLike) -> RegionTable:
        """The table for `regions`, empty for None. Raises RegionError."""
        if isinstance(regions, RegionTable):
            return regions
        if isinstance(regions, str | Path):
            return RegionTable.from_header(regions)
        return RegionTable.from_names(regions or ())

    @staticmethod
    def from_names(names: Iterable[str]) -> RegionTable:
        """A table of spans without payload fields, for kernels without a regions.h.

        Ids are 1, 2, 3 ...
        """
        return RegionTable(tuple(Region(i, name) for i, name in enumerate(names, start=1)))

    @staticmethod
    def from_header(path: str | Path) -> RegionTable:
        """Read an X-macro file; raises RegionError naming the file and line."""
        return read_header(path)[0]


# Users may pass a table, the path of a regions.h, or names of spans.
RegionsLike: TypeAlias = RegionTable | str | Path | Sequence[str] | None


_Word = TypeVar("_Word", bound=Enum)
_BLANK = re.compile(r"^\s*(//.*|#.*)?$")
_DECLARATION = re.compile(
    r"^\s*(REGION|MARK|VALUE|FLOW|FLOW_IN_BLOCK)\s*\(((?:\"[^\"]*\"|[^\"()])*)\)\s*(?://.*)?$"
)
_ARGUMENTS = re.compile(r"^(\w+)\s*,\s*\"((?:[^\"\\])*)\"\s*,\s*(\w+)\s*(?:,\s*(.*))?$")
_ANNOUNCED: Final = "announced"
_KINDS: Final = {"REGION": Kind.SPAN, "MARK": Kind.MARK, "VALUE": Kind.VALUE}


def read_header(path: str | Path) -> tuple[RegionTable, dict[str, int]]:
    """The table of an X-macro file, and the ids by the symbols that kernels use.

    Raises RegionError.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RegionError(
            f"{path} is not UTF-8 (its byte {error.start} is not); save it as UTF-8"
        ) from error
    except OSError as error:
        raise RegionError(
            f"cannot read the region file {path}: {error.strerror}; give the path of the regions.h "
            "that the kernel includes"
        ) from error
    table, ids = _parse(text, str(path))
    regions = tuple(
        msgspec.structs.replace(region, place=place)
        for region, place in zip(table.regions, places(str(path), text, tuple(ids)), strict=True)
    )
    return RegionTable(regions, table.flows), ids


def parse_regions(text: str, where: str = "regions.h") -> RegionTable:
    """Parse the text of an X-macro file (format in the module's docstring); raises RegionError."""
    return _parse(text, where)[0]


def _parse(text: str, where: str) -> tuple[RegionTable, dict[str, int]]:
    ids: dict[str, int] = {}
    regions: list[Region] = []
    flows: list[FlowRule] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if _BLANK.match(line):
            continue
        place = f"{where}:{number}"
        match = _DECLARATION.match(line)
        if match is None:
            raise RegionError(
                f"{place}: expected one REGION(...), MARK(...), VALUE(...), FLOW(...) or "
                "FLOW_IN_BLOCK(...) a line, "
                f"found {line.strip()!r}"
            )
        macro, arguments = match.groups()
        if macro not in _KINDS:
            send, wait = _parse_flow(arguments, ids, place)
            flows.append(FlowRule(send, wait, in_block=macro == "FLOW_IN_BLOCK"))
            continue
        symbol, region = _parse_region(_KINDS[macro], arguments, len(regions) + 1, place)
        if symbol in ids:
            raise RegionError(f"{place}: region id {symbol} is declared twice; rename one")
        ids[symbol] = region.id
        regions.append(region)
    try:
        return RegionTable(tuple(regions), tuple(flows)), ids
    except RegionError as error:
        raise RegionError(f"{where}: {error}") from None


def _parse_region(kind: Kind, arguments: str, region_id: int, place: str) -> tuple[str, Region]:
    match = _ARGUMENTS.match(arguments.strip())
    if match is None:
        raise RegionError(
            f'{place}: expected (ID, "name", category, field:bits, ...), found ({arguments})'
        )
    symbol, name, category, rest = match.groups()
    checked = word_of(category, Category, place)
    moment, is_announced, fields = _split_words(rest or "")
    if is_announced and kind is not Kind.SPAN:
        raise RegionError(f"{place}: {symbol} has no length: only a REGION can be announced")
    return symbol, Region(region_id, name, checked, kind, parse_fields(fields, place), moment)


def word_of(text: str, words: type[_Word], where: str) -> _Word:
    """The one of `words` (such as Category) that says `text`. Raises RegionError."""
    if text not in words._value2member_map_:
        known = ", ".join(word.value for word in words)
        raise RegionError(f"{where}: unknown {words.__name__.lower()} {text!r}; use one of {known}")
    return words(text)


def _split_words(text: str) -> tuple[Moment, bool, str]:
    """Split the words that precede the payload fields from these: the moment, and `announced`."""
    moment, is_announced = Moment.ISSUE, False
    while (word := text.partition(",")[0].strip()) in (_ANNOUNCED, *Moment._value2member_map_):
        if word == _ANNOUNCED:
            is_announced = True
        else:
            moment = Moment(word)
        text = text.partition(",")[2]
    return moment, is_announced, text


def parse_fields(text: str, where: str = "payload fields") -> tuple[Field, ...]:
    """Parse `peer:8, slot:24`. The first field has the lowest bits."""
    fields: list[Field] = []
    shift = 0
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, bits = part.partition(":")
        if not name.strip().isidentifier() or not bits.strip().isdigit() or int(bits) < 2:
            raise RegionError(
                f"{where}: a payload field is name:bits with 2 bits or more, found {part!r}"
            )
        fields.append(Field(name.strip(), int(bits), shift))
        shift += int(bits)
    if shift > PAYLOAD_BITS:
        raise RegionError(
            f"{where}: payload fields take {shift} bits of {PAYLOAD_BITS}; narrow one"
        )
    return tuple(fields)


def _parse_flow(arguments: str, ids: dict[str, int], place: str) -> list[int]:
    symbols = [symbol.strip() for symbol in arguments.split(",")]
    unknown = [symbol for symbol in symbols if symbol not in ids]
    if len(symbols) != 2 or unknown:
        raise RegionError(
            f"{place}: FLOW takes two regions declared above it, a send and the wait that it "
            "releases, "
            f"found ({arguments})"
        )
    return [ids[symbol] for symbol in symbols]


def _check(table: RegionTable) -> None:
    if len(table.regions) > MAX_REGION_ID:
        raise RegionError(
            f"{len(table.regions)} regions do not fit the 16-bit id; at most {MAX_REGION_ID}"
        )
    seen: set[str] = set()
    for position, region in enumerate(table.regions, start=1):
        if region.id != position:
            raise RegionError(f"region {region.name!r} has id {region.id}, expected {position}")
        if re.search("[\ud800-\udfff]", region.name):
            raise RegionError(f"region name {region.name!r} is not UTF-8; give it another")
        if region.name in seen:
            raise RegionError(f"region name {region.name!r} is used twice; names must differ")
        seen.add(region.name)
        _check_fields(region)
    for flow in table.flows:
        _check_flow(table, flow)


def _check_fields(region: Region) -> None:
    """Check names, which become columns in SQL, where case does not matter."""
    names = [field.name.lower() for field in region.fields]
    strange = [field.name for field in region.fields if not field.name.isidentifier()]
    if strange or len(set(names)) < len(names):
        raise RegionError(
            f"the payload fields of region {region.name!r} need different names of letters, digits "
            "and _, "
            f"found {', '.join(repr(field.name) for field in region.fields)}"
        )
    if sum(field.bits for field in region.fields) > PAYLOAD_BITS or any(
        field.shift + field.bits > PAYLOAD_BITS for field in region.fields
    ):
        raise RegionError(
            f"the payload fields of region {region.name!r} do not fit {PAYLOAD_BITS} bits; "
            "narrow one"
        )


def _check_flow(table: RegionTable, flow: FlowRule) -> None:
    for region_id in (flow.send, flow.wait):
        if not 1 <= region_id <= len(table.regions):
            raise RegionError(f"a flow names region id {region_id}, which is not declared")
        region = table[region_id]
        needed = ["slot"] if flow.in_block else ["peer", "slot"]
        if None in map(region.field, needed):
            where, plural = (" within a block", "") if flow.in_block else ("", "s")
            raise RegionError(
                f"region {region.name!r} takes part in a flow{where} and needs the payload "
                f"field{plural} {' and '.join(needed)}"
            )


class MergedTables(msgspec.Struct, frozen=True):
    """One table for several: `id_maps[i][local_id]` is the merged id of an id of table i.

    Index 0 is unused.
    """

    table: RegionTable
    id_maps: tuple[tuple[int, ...], ...]


def merge_tables(tables: Sequence[RegionTable]) -> MergedTables:
    """Merge tables by name and declaration.

    A region whose name another has taken, with another declaration, gets its own one behind its
    name: "reduce (compute)". Merging such a result again changes nothing, whatever the order.
    """
    merged: dict[tuple[str, Region], Region] = {}
    taken: set[str] = set()
    id_maps: list[tuple[int, ...]] = []
    flows: dict[FlowRule, None] = {}
    for table in tables:
        id_map = [0]
        own = {region.name: region for region in table.regions}
        for region in table.regions:
            name, suffix = _declared_name(region, own), _suffix(region)
            key = name, _declaration(region)
            if key not in merged:
                while name in taken:
                    name += suffix
                taken.add(name)
                merged[key] = msgspec.structs.replace(region, id=len(merged) + 1, name=name)
            id_map.append(merged[key].id)
        id_maps.append(tuple(id_map))
        for flow in table.flows:
            flows[FlowRule(id_map[flow.send], id_map[flow.wait], flow.in_block)] = None
    return MergedTables(RegionTable(tuple(merged.values()), tuple(flows)), tuple(id_maps))


def without_places(table: RegionTable) -> RegionTable:
    """The same regions, wherever they stand."""
    bare = tuple(msgspec.structs.replace(region, place="") for region in table.regions)
    return RegionTable(bare, table.flows)


def _declaration(region: Region) -> Region:
    return msgspec.structs.replace(region, id=0, name="", place="")


def _suffix(region: Region) -> str:
    """What a region's declaration adds to its name where the name is taken."""
    words = [region.category.value]
    words += [region.kind.value] if region.kind is not Kind.SPAN else []
    words += [region.moment.value] if region.moment is not Moment.ISSUE else []
    words += [f"{field.name}:{field.bits}" for field in region.fields]
    return f" ({', '.join(words)})"


def _declared_name(region: Region, own: dict[str, Region]) -> str:
    """The name without what an earlier merge has added.

    That merge has left the region that took the name in the same table, `own` by name.
    """
    name, suffix = region.name, _suffix(region)
    while name.endswith(suffix):
        other = own.get(name.removesuffix(suffix))
        if (
            other is None
            or msgspec.structs.replace(other, id=region.id, name=region.name) == region
        ):
            break
        name = other.name
    return name
