"""What kernels call. Each call checks its region and payload at compile time, then calls device
code.

Triton values cannot change, so a call that advances a track returns it: `track = kp.stop(track,
...)`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import triton.language as tl

from kprof import abi
from kprof.errors import RecorderError, RegionError
from kprof.regions import Kind, Region
from kprof.regions import Moment as ClockMoment
from kprof.triton import delays, device, platform, programs, waits
from kprof.triton.buffer import Buffer, BuildKey, build_of
from kprof.triton.platform import INTERPRETED, builtin
from kprof.triton.values import Moment, Track, Wait

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NO_ROLE: Final = abi.BLOCK_TRACK_WARP
# A track that takes no further chunk needs neither the limits of the arena nor its warp.
_OF_SHORT: Final = (tl.constexpr(None), tl.constexpr(None))


class _Call:
    """A call in a kernel that is compiled or interpreted: runs functions of device.py, at compile
    time through Triton's code generator."""

    def __init__(self, name: str, semantic: Any, generator: Any) -> None:
        self.name = name
        self.semantic = platform.interpreter_semantic() if INTERPRETED else semantic
        self.generator = generator
        # What functions of Triton take in a kernel that is compiled.
        self.extra = {} if INTERPRETED else {"_semantic": semantic}

    def run(self, function: Any, *arguments: Any) -> Any:
        """The function's result as a value of the kernel."""
        if INTERPRETED:
            return function(*map(_constant, arguments))
        return self.generator.call_JitFunction(function, list(arguments), {})

    def number(self, number: Any) -> Any:
        """A number as a value of the kernel."""
        return self.semantic.to_tensor(number)

    def now(self, track: Track) -> Moment:
        """The clock, in a branch where Triton may pipeline loops on AMD: that can skip branches and
        no clocks."""
        is_amd = not INTERPRETED and platform.is_amd(self.semantic)
        if is_amd and self.semantic.builder.options.num_stages > 1:
            return Moment((self.run(device.ticks_in_a_branch, track.parts[1]),))
        return Moment((platform.realtime_ticks(**self.extra),))

    @property
    def partition(self) -> str:
        """The Gluon partition that is being compiled; "" is the kernel itself, whose warps run the
        default one."""
        context = getattr(self.generator, "caller_context", None)
        return "" if context is None else str(context.mangle())


def _callable(function: _Function) -> _Function:
    """Lets kernels call the function, which gets a _Call as `_call`."""

    def call(*args: Any, _semantic: Any = None, _generator: Any = None, **kwargs: Any) -> Any:
        here = _Call(function.__name__, _semantic, _generator)
        return function(*args, _call=here, **kwargs)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    return cast("_Function", builtin(call))


def _returns(what: str) -> Callable[[_Function], _Function]:
    """Makes Triton refuse a call whose result is unused: the next one would not know of it."""

    def decorate(function: _Function) -> _Function:
        wrapped = _callable(function)
        wrapped._must_use_result = (  # type: ignore[attr-defined]
            f"It is the {what} that the next event needs: write "
            f"`{what} = ...{function.__name__}(track, ...)`."
        )
        return wrapped

    return decorate


@_callable
def open_track(
    prof: Any, enabled: Any = True, *, place: Any = 0, at_most: Any = None, _call: Any = None
) -> Track:
    """Opens the track of the calling program or Gluon partition. Call it once in each, outside
    loops.

    `prof` is what `kprof.triton.buffer` returned. With `prof=None` or `enabled=False` (a constexpr)
    this track and all calls with it compile to nothing. `place` is the partition's number among the
    `tracks_per_program` of the buffer. `at_most` (a constexpr) is the most events that the track
    will have, if the kernel knows: up to 61 have room in the track's first chunk, so that no event
    carries code for a further one. Events beyond those 61 are dropped and counted.
    """
    if _constant(prof) is None or not _constant(enabled):
        return Track(())
    call: _Call = _call
    _check_not_in_loop(call.generator)
    *words, name = _parts_of_buffer(prof)
    build = build_of(name)
    _check_launch(build, call)
    writer, warp = call.number(0), call.number(_NO_ROLE)
    if call.partition:
        from kprof.triton import gluon

        num_warps = tl.constexpr(call.generator.caller_context.num_warps)
        writer = call.run(gluon.first_thread, num_warps)
        warp = call.run(gluon.warp_of, writer)
    at = call.number(_constant(place))
    cursor, arena = call.run(device.open_track, *words, at, warp, writer)
    _, launch, _, reserved = words
    rest = () if _is_short(at_most) else (reserved, warp)
    if build.takes_delays:
        rest = (call.run(delays.delay_of, *words[:2], cursor), *rest)
    return Track((cursor, arena, launch, *rest), (name, call.partition))


@_callable
def begin_whole(prof: Any, *, _call: Any = None) -> Moment:
    """Begins the only span of a program whose launch shares chunks (`Recorder.launch`)."""
    call: _Call = _call
    *words, name = _parts_of_buffer(prof)
    _check_launch(build_of(name), call)
    return call.now(Track(words[:2]))


@_callable
def end_whole(prof: Any, begin: Moment, region: Any, *, _call: Any = None) -> None:
    """Ends it, and stores its record."""
    call: _Call = _call
    words = _parts_of_buffer(prof)[:-1]
    end = call.now(Track(words[:2]))
    known = _constant(region)
    bits = tl.constexpr(known.id), _region_bits(known)
    call.run(programs.record_whole, *words, *begin.parts, *end.parts, *bits)


@_callable
def start(track: Any, *, _call: Any = None) -> Moment:
    """Reads the clock at the beginning of a span."""
    return Moment(()) if not _checked(track, _call).is_on else _call.now(track)


@_callable
def waiting(track: Any, *, _call: Any = None) -> Wait:
    """Begins a span that waits in a loop, for `still_waiting`."""
    if not _checked(track, _call).is_on:
        return Wait(())
    none = _call.run(device.joined, _call.number(0), _call.number(0))
    return Wait((*_call.now(track).parts, none, _call.number(0)))


@_returns("wait")
def still_waiting(
    track: Any,
    wait: Any,
    region: Any,
    *payload: Any,
    held: Any = 0,
    wanted: Any = 0,
    _call: Any = None,
    **fields: Any,
) -> Wait:
    """In the loop of a wait: `wait = kp.still_waiting(track, wait, WAIT, slot=3, held=flag)`.

    Once the wait lasts 50 us, kprof can say who waits for what when a kernel hangs: the region, its
    payload, what the flag holds (an integer, of which it tells 32 bits), and what it should hold
    (0: not told). The call that ends the span takes that back. Compiles to nothing on AMD.
    """
    call: _Call = _call
    found = _checked_region(region, Kind.SPAN, _checked(track, call), call.name)
    numbers = _in_order(found, payload, fields, call.name)
    if not isinstance(wait, Wait):
        raise RegionError(
            f"{call.name}() of region {found.name!r} takes the wait that waiting() returned"
        )
    if not track.is_on:
        return wait
    word = call.run(device.joined, call.number(found.id), _packed(found, numbers, call))
    flag = [
        call.run(waits.low_word, _scalar(value, found, name, call))
        for name, value in (("held", held), ("wanted", wanted))
    ]
    begin, line, told = wait.parts
    cursor, arena_word = track.parts[:2]
    held_now, wanted_now = flag
    line = waits.tell(
        cursor, arena_word, begin, word, held_now, wanted_now, line, told, **call.extra
    )
    return Wait((begin, line, held_now))


@_returns("track")
def stop(
    track: Any, begin: Any, region: Any, *payload: Any, _call: Any = None, **fields: Any
) -> Track:
    """Records the span of `region` from `begin` to now.

    A value for every payload field, in order or by name.
    """
    return _emit(_call, track, (begin, None), (region, Kind.SPAN), payload, fields)[0]


@_returns("track")
def lap(
    track: Any, begin: Any, region: Any, *payload: Any, _call: Any = None, **fields: Any
) -> tuple[Track, Moment]:
    """`stop` and `start` with one clock reading: `track, begin = kp.lap(track, begin, REGION)`."""
    return _emit(_call, track, (begin, None), (region, Kind.SPAN), payload, fields)


@_returns("track")
def span(
    track: Any, begin: Any, end: Any, region: Any, *payload: Any, _call: Any = None, **fields: Any
) -> Track:
    """Records the span of `region` between two moments that `start` read."""
    return _emit(_call, track, (begin, end), (region, Kind.SPAN), payload, fields)[0]


@_returns("track")
def mark(track: Any, region: Any, *payload: Any, _call: Any = None, **fields: Any) -> Track:
    """Records a moment."""
    return _emit(_call, track, (None, None), (region, Kind.MARK), payload, fields)[0]


@_returns("track")
def value(track: Any, region: Any, number: Any, *, _call: Any = None) -> Track:
    """Records the value of a counter at this moment."""
    return _emit(_call, track, (None, None), (region, Kind.VALUE), (number,), {})[0]


def _emit(
    call: _Call,
    track: Any,
    moments: tuple[Any, Any],
    wanted: tuple[Any, Kind],
    payload: tuple[Any, ...],
    fields: dict[str, Any],
) -> tuple[Track, Moment]:
    """Checks everything, stores the record, and returns the track and the end of the span."""
    track = _checked(track, call)
    region = _checked_region(*wanted, track, call.name)
    numbers = _in_order(region, payload, fields, call.name)
    for moment in moments:
        if moment is not None and not isinstance(moment, Moment):
            raise RegionError(
                f"{call.name}() of region {region.name!r} takes the moment that start() returned, "
                "or the wait that waiting() did"
            )
    if not track.is_on:
        return track, Moment(())
    if region.moment is ClockMoment.COMPLETE:
        platform.drain_memory(**call.extra)
    begin, end = moments
    cursor, arena, launch, *rest = track.parts
    if build_of(track.static[0]).takes_delays:
        delay, *rest = rest
        if begin is not None and end is None:
            call.run(delays.delay_end, delay, tl.constexpr(region.id))
    end = end or call.now(track)
    begin = begin or end
    packed = _packed(region, numbers, call)
    cursor = call.run(
        device.emit,
        cursor, arena, launch, *(rest or _OF_SHORT), begin.parts[0], end.parts[0], packed,
        tl.constexpr(region.id), _region_bits(region),
    )  # fmt: skip
    if isinstance(begin, Wait):
        waits.close(begin.parts[1], arena, **call.extra)
    return Track((cursor, *track.parts[1:]), track.static), end


def _region_bits(region: Region) -> tl.constexpr:
    """The region's id in the first word of a record, as a signed number."""
    bits = region.id << abi.START_BITS
    return tl.constexpr(bits if bits < 1 << 63 else bits - (1 << 64))


def _packed(region: Region, numbers: list[Any], call: _Call) -> Any:
    """The 32-bit payload from one number per field, each clamped to its bits."""
    if region.kind is Kind.VALUE:
        scalar = _scalar(numbers[0], region, "value", call)
        return call.run(device.clamped, scalar, tl.constexpr(0xFFFF_FFFF))
    payload = None
    for field, number in zip(region.fields, numbers, strict=True):
        _check_constant(number, region, field.name, field.mask)
        scalar = _scalar(number, region, field.name, call)
        part = call.run(device.clamped, scalar, tl.constexpr(field.mask))
        if field.shift:
            part = call.semantic.shl(part, call.number(field.shift))
        payload = part if payload is None else call.semantic.or_(payload, part)
    return call.number(0) if payload is None else payload


def _in_order(
    region: Region, numbers: tuple[Any, ...], by_name: dict[str, Any], call: str
) -> list[Any]:
    """One number per payload field, in order. Raises RegionError for missing or unknown ones."""
    if region.kind is Kind.VALUE:
        return list(numbers)
    names = [field.name for field in region.fields]
    rest = names[len(numbers) :]
    if len(numbers) > len(names) or sorted(rest) != sorted(by_name):
        given = [*(f"{len(numbers)} by position",) * bool(numbers), *by_name]
        raise RegionError(
            f"{call}() of region {region.name!r} takes one number for each of its payload fields "
            f"({', '.join(names) or 'it has none'}) and was given {', '.join(given) or 'none'}"
        )
    return [*numbers, *(by_name[name] for name in rest)]


def _check_constant(number: Any, region: Region, field: str, mask: int) -> None:
    constant = _constant(number)
    if isinstance(constant, int) and not 0 <= constant < mask:
        raise RegionError(
            f"{constant} does not fit field {field!r} of region {region.name!r}, which holds 0 to "
            f"{mask - 1}; give the field more bits"
        )


def _scalar(number: Any, region: Region, field: str, call: _Call) -> Any:
    scalar = call.number(_constant(number))
    if scalar.type.is_block() or not scalar.dtype.is_int():
        raise RegionError(
            f"field {field!r} of region {region.name!r} takes one integer per program, "
            f"not {'a tensor' if scalar.type.is_block() else scalar.type}"
        )
    return scalar


def _checked(track: Any, call: _Call) -> Track:
    if not isinstance(track, Track):
        raise RecorderError(
            f"{call.name}() takes the track that open_track() returned, not {_kind_of(track)}"
        )
    if track.is_on and track.static[1] != call.partition:
        raise RecorderError(
            f"{call.name}() was given a track of another partition, which writes to it as well; "
            "open a track in every partition"
        )
    return track


def _checked_region(region: Any, kind: Kind, track: Track, call: str) -> Region:
    found = _constant(region)
    if not isinstance(found, Region):
        raise RegionError(
            f"{call}() takes a region that Regions.define() returned or that a region file "
            f"declares, not {_kind_of(region)}"
        )
    if found.kind is not kind:
        raise RegionError(
            f"{call}() records a {kind.value}, and region {found.name!r} is a {found.kind.value}"
        )
    if track.is_on and found not in build_of(track.static[0]).table.regions:
        raise RegionError(
            f"region {found.name!r} is not among the regions that kprof.triton.buffer() was given; "
            "pass the Regions that the kernel uses"
        )
    return found


def _check_launch(build: BuildKey, call: _Call) -> None:
    """Raises RecorderError for a launch that differs from what kprof.triton.buffer() was told."""
    if INTERPRETED:
        return
    options = call.semantic.builder.options
    if build.num_warps and options.num_warps != build.num_warps and not call.partition:
        raise RecorderError(
            f"the kernel is compiled with num_warps={options.num_warps}, and kprof.triton.buffer() "
            f"was given num_warps={build.num_warps}; pass the same to both"
        )
    if options.num_ctas != 1:
        raise RecorderError(
            f"kprof.triton records kernels with num_ctas=1, and this one has {options.num_ctas}: "
            "the blocks of a cluster would write to one track"
        )


def _is_short(at_most: Any) -> bool:
    """Whether a track with so many events never needs a second chunk.

    Raises RecorderError for anything but a number that is known at compile time, or None.
    """
    most = _constant(at_most)
    if most is None:
        return False
    if not isinstance(most, int) or most < 0:
        raise RecorderError(
            "open_track() takes at_most as a constexpr, the most events that the track will have: "
            f"0 or more, not {most if isinstance(most, int) else _kind_of(at_most)}"
        )
    return most <= abi.RECORDS_PER_CHUNK


def _check_not_in_loop(generator: Any) -> None:
    """Raises RecorderError within a loop, because a program has one reserved chunk per track.

    Does not see loops in callers.
    """
    around = getattr(generator, "scf_stack", ())
    if any(isinstance(node, ast.For | ast.While) for node in around):
        raise RecorderError(
            "open_track() is called in a loop, where every iteration would overwrite the track "
            "of the one before; open the track before the loop"
        )


def _parts_of_buffer(prof: Any) -> list[Any]:
    """The words of a Buffer and the name of its build. Raises RecorderError for anything else."""
    values = getattr(prof, "values", prof)
    if isinstance(values, tuple | list) and len(values) == len(Buffer._fields):
        name = _constant(values[-1])
        if isinstance(name, str) and name.startswith("kprof "):
            return [*values[:-1], name]
    raise RecorderError(
        f"open_track() takes what kprof.triton.buffer() returned, or None, not {_kind_of(prof)}"
    )


def _constant(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _kind_of(value: Any) -> str:
    value = _constant(value)
    return str(getattr(value, "type", None) or type(value).__name__)
