"""The grammars of the command line: what parses, what is refused, and that nothing is evaluated."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kprof.errors import SelectionError
from kprof.trace.selection import (
    SelectionText,
    fields_of_words,
    match_regions,
    parse_numbers,
    parse_size_bytes,
    parse_time_range,
)
from kprof.trace.trace import select
from synthetic import TraceBuilder

NAMES = ["dispatch/send", "dispatch/wait-token", "combine/send", "what?"]


def numbers_of(text):
    return parse_numbers(text, "--ranks")


def size_of(text):
    return parse_size_bytes(text, "--arena-size")


def regions_of(text):
    return match_regions(text, NAMES)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (numbers_of, "0", (0,)),
        (numbers_of, "0-3,7", (0, 1, 2, 3, 7)),
        (numbers_of, " 2 , 1 ", (1, 2)),
        (numbers_of, "3,3,2-4", (2, 3, 4)),
        (numbers_of, "5-5", (5,)),
        (parse_time_range, "10us..50us", (10_000, 50_000)),
        (parse_time_range, "1.5ms..2ms", (1_500_000, 2_000_000)),
        (parse_time_range, "0ns..1s", (0, 10**9)),
        (parse_time_range, " 10 us .. 50 us ", (10_000, 50_000)),
        (parse_time_range, "..50µs", (0, 50_000)),
        (parse_time_range, "2ms..", (2_000_000, 1 << 61)),
        (size_of, "64MiB", 64 << 20),
        (size_of, "64mib", 64 << 20),
        (size_of, "1.5 GiB", 3 << 29),
        (size_of, "4096", 4096),
        (size_of, "8kB", 8000),
        (size_of, "7B", 7),
        (regions_of, "dispatch/*", ("dispatch/send", "dispatch/wait-token")),
        (regions_of, "*/send", ("dispatch/send", "combine/send")),
        (regions_of, "combine/send,dispatch/*", ("combine/send", *NAMES[:2])),
        (regions_of, "what?", ("what?",)),
    ],
)
def test_what_is_typed(parse, text, expected):
    assert parse(text) == expected


REFUSED = {
    "--ranks": (
        numbers_of,
        ["", ",", "1,", "a", "-1", "1-", "3-1", "1..3", "0x3", "1e3", "0-99999999", "٣", "1 2"],
    ),
    "--time": (
        parse_time_range,
        [
            *("", "..", "10us", "10..20", "10us-20us", "20us..10us", "5us..5us", "1h..2h"),
            *("-1us..2us", "1us..2us..3us"),
        ],
    ),
    "--arena-size": (
        size_of,
        ["", "MiB", "-1", "64M", "1e6", "0x10", "64 MiB MiB", "1" * 30],
    ),
    "known: dispatch/send, dispatch/wait-token": (
        regions_of,
        ["", "nothing/*", "DISPATCH/*", "dispatch/send,nothing"],
    ),
}


@pytest.mark.parametrize(
    ("parse", "text", "named"),
    [(parse, text, named) for named, (parse, texts) in REFUSED.items() for text in texts],
)
def test_what_is_refused_names_its_option_or_what_there_is(parse, text, named):
    with pytest.raises(SelectionError, match=named):
        parse(text)


def test_code_is_text_and_never_runs(tmp_path):
    victim = tmp_path / "victim"
    code = f"__import__('pathlib').Path({str(victim)!r}).touch()"
    for parse in (parse_time_range, numbers_of):
        with pytest.raises(SelectionError):
            parse(code)
    assert not victim.exists()


@given(st.sets(st.integers(0, 500), min_size=1))
def test_any_set_of_numbers_survives_being_written_out(numbers):
    assert parse_numbers(",".join(map(str, numbers)), "--blocks") == tuple(sorted(numbers))


@given(st.text(max_size=20))
def test_any_text_either_parses_or_is_one_of_our_errors(text):
    for parse in (numbers_of, parse_time_range, size_of, regions_of):
        with contextlib.suppress(SelectionError):
            parse(text)


@pytest.mark.parametrize("words", ["put[0],get", ["put[0]", "get"]])
def test_in_python_the_name_of_a_region_means_that_region_alone(words):
    names = ("put[0]", "put0", "get")
    assert fields_of_words({"regions": words}, names) == {"regions": ("put[0]", "get")}


def trace_of_four_events():
    build = TraceBuilder('REGION(A, "a", compute)\nREGION(B, "b", compute)', num_ranks=2)
    for rank in (0, 1):
        for block in (0, 1):
            build.span(rank, "ab"[block], 1000 * block, 10, block=block)
    return build.trace()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "num_events"),
    [
        (SelectionText(), 4),
        (SelectionText(ranks="0"), 2),
        (SelectionText(ranks="0-1", blocks="1"), 2),
        (SelectionText(regions="a"), 2),
        (SelectionText(time="..500ns"), 2),
        (SelectionText(time="1us.."), 2),
        (SelectionText(launches="0-9"), 4),
    ],
)
def test_a_trace_is_narrowed(text, num_events):
    assert select(trace_of_four_events(), text).num_events() == num_events


@pytest.mark.parametrize(
    ("text", "given"),
    [
        (SelectionText(launches="1"), "--launches 1"),
        (SelectionText(ranks="1", regions="b", time="0ns..1us"), "--ranks 1 --regions b --time"),
    ],
)
def test_a_selection_of_nothing_says_what_there_is(text, given):
    with pytest.raises(SelectionError, match=given) as refused:
        select(trace_of_four_events(), text)
    assert str(refused.value).endswith(
        "leaves no events: there are launches 0-0 and blocks 0-1 in 1 us"
    )


def test_any_selection_of_a_capture_without_events_is_that_capture():
    empty = TraceBuilder('REGION(A, "a", compute)', num_ranks=2).trace()
    assert select(empty, SelectionText(launches="1")).num_events() == 0


def test_of_many_ranks_the_first_and_last_are_named():
    many = TraceBuilder('REGION(A, "a", compute)', num_ranks=40).trace()
    with pytest.raises(SelectionError, match=r"rank 40 .*; recorded: 40 from 0 to 39$"):
        select(many, SelectionText(ranks="7,40"))


def test_a_rank_that_was_not_recorded_is_refused():
    with pytest.raises(SelectionError, match=r"rank 2 was not recorded; recorded: \[0, 1\]"):
        select(trace_of_four_events(), SelectionText(ranks="0-7,9"))
