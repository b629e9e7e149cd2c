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


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("0-3,7", (0, 1, 2, 3, 7)),
        (" 2 , 1 ", (1, 2)),
        ("3,3,2-4", (2, 3, 4)),
        ("5-5", (5,)),
    ],
)
def test_numbers(text, numbers):
    assert parse_numbers(text, "--ranks") == numbers


@pytest.mark.parametrize(
    "text", ["", ",", "1,", "a", "-1", "1-", "3-1", "1..3", "0x3", "1e3", "0-99999999", "٣", "1 2"]
)
def test_numbers_that_are_refused_name_the_option(text):
    with pytest.raises(SelectionError, match="--ranks"):
        parse_numbers(text, "--ranks")


def test_code_is_text_and_never_runs(tmp_path):
    victim = tmp_path / "victim"
    code = f"__import__('pathlib').Path({str(victim)!r}).touch()"
    for parse in (parse_time_range, lambda text: parse_numbers(text, "--ranks")):
        with pytest.raises(SelectionError):
            parse(code)
    assert not victim.exists()


@given(st.sets(st.integers(0, 500), min_size=1))
def test_any_set_of_numbers_survives_being_written_out(numbers):
    assert parse_numbers(",".join(map(str, numbers)), "--blocks") == tuple(sorted(numbers))


@given(st.text(max_size=20))
def test_any_text_either_parses_or_is_one_of_our_errors(text):
    for parse in (
        lambda: parse_numbers(text, "--ranks"),
        lambda: parse_time_range(text),
        lambda: parse_size_bytes(text, "--arena-size"),
        lambda: match_regions(text, NAMES),
    ):
        with contextlib.suppress(SelectionError):
            parse()


@pytest.mark.parametrize(
    ("text", "range_ns"),
    [
        ("10us..50us", (10_000, 50_000)),
        ("1.5ms..2ms", (1_500_000, 2_000_000)),
        ("0ns..1s", (0, 10**9)),
        (" 10 us .. 50 us ", (10_000, 50_000)),
        ("..50µs", (0, 50_000)),
        ("2ms..", (2_000_000, 1 << 61)),
    ],
)
def test_time(text, range_ns):
    assert parse_time_range(text) == range_ns


@pytest.mark.parametrize(
    "text",
    [
        "", "..", "10us", "10..20", "10us-20us", "20us..10us", "5us..5us", "1h..2h", "-1us..2us",
        "1us..2us..3us",
    ],
)  # fmt: skip
def test_time_that_is_refused_is_quoted(text):
    with pytest.raises(SelectionError, match="--time"):
        parse_time_range(text)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64MiB", 64 << 20),
        ("64mib", 64 << 20),
        ("1.5 GiB", 3 << 29),
        ("4096", 4096),
        ("8kB", 8000),
        ("7B", 7),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_size_bytes(text, "--arena-size") == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "64M", "1e6", "0x10", "64 MiB MiB", "1" * 30])
def test_sizes_that_are_refused(text):
    with pytest.raises(SelectionError, match="--arena-size"):
        parse_size_bytes(text, "--arena-size")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("dispatch/*", ("dispatch/send", "dispatch/wait-token")),
        ("*/send", ("dispatch/send", "combine/send")),
        ("combine/send,dispatch/*", ("combine/send", "dispatch/send", "dispatch/wait-token")),
        ("what?", ("what?",)),
    ],
)
def test_regions(text, names):
    assert match_regions(text, NAMES) == names


@pytest.mark.parametrize("words", ["put[0],get", ["put[0]", "get"]])
def test_in_python_the_name_of_a_region_means_that_region_alone(words):
    names = ("put[0]", "put0", "get")
    assert fields_of_words({"regions": words}, names) == {"regions": ("put[0]", "get")}


@pytest.mark.parametrize("text", ["", "nothing/*", "DISPATCH/*", "dispatch/send,nothing"])
def test_regions_that_match_nothing_list_the_known_ones(text):
    with pytest.raises(SelectionError, match="known: dispatch/send, dispatch/wait-token"):
        match_regions(text, NAMES)


def trace_of_four_events():
    build = TraceBuilder('REGION(A, "a", compute)\nREGION(B, "b", compute)', num_ranks=2)
    for rank in (0, 1):
        for block in (0, 1):
            build.span(rank, "ab"[block], 1000 * block, 10, block=block)
    return build.trace()


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
