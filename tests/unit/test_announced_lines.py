"""Lines and headers that a GPU is still writing: their words arrive in any order, and none is taken for another's."""

from __future__ import annotations

import itertools

import numpy as np

from kprof import abi
from kprof.hangs.announced import open_spans
from kprof.hangs.lines import tracks_in

ARENA = 1 << 20
CHUNK = (ARENA + abi.CHUNKS_OFFSET) // abi.CHUNK_BYTES


def header_of(launch: int, block: int, chunk_idx: int) -> np.ndarray:
    header = np.zeros(1, abi.CHUNK_HEADER)
    header["flags"], header["launch"], header["block"] = abi.CHUNK_CLAIMED, launch, block
    header["chunk_idx"], header["anchor_realtime_ticks"] = chunk_idx, 1_000
    return header


def chunks_of(*headers: np.ndarray) -> np.ndarray:
    chunks = np.zeros((len(headers), abi.CHUNK_BYTES), np.uint8)
    for chunk, header in zip(chunks, headers, strict=True):
        chunk[: abi.CHUNK_HEADER_BYTES] = header.view(np.uint8)
    return chunks.reshape(-1)


def line_of(start_ticks: int, region: int, payload: int, chunk: int = CHUNK) -> np.ndarray:
    line = np.zeros(1, abi.STATE_LINE)
    line["start_and_region"] = start_ticks | region << abi.START_BITS
    tag = abi.state_tags(line["start_and_region"])[0]
    line["chunk_and_tag"] = (chunk & 0xFFFFFF) | int(tag) << abi.STATE_CHUNK_BITS
    line["payload"] = payload
    return line


def test_a_new_region_is_not_joined_with_the_payload_before_it() -> None:
    """Spans as clocks step on AMD (4 ticks) and NVIDIA (32)."""
    arenas = [(ARENA, chunks_of(header_of(7, 3, 0)))]
    for step, start in itertools.product((4, 32), (1_000, 5_000, 123_456)):
        old, new = line_of(start, 1, 11), line_of(start + step, 2, 22)
        assert open_spans(new, arenas)[["launch", "block", "payload"]].tolist() == [(7, 3, 22)]
        for first, second in [(old, new), (new, old)]:
            torn = np.concatenate([first.view("<u8")[:1], second.view("<u8")[1:]])
            assert len(open_spans(torn.view(abi.STATE_LINE), arenas)) == 0


def test_a_line_that_two_chunks_could_mean_is_left_out() -> None:
    """The arenas are 16 GiB apart: the line holds 24 bits of the number of a chunk."""
    far = ARENA + (abi.CHUNK_BYTES << abi.STATE_CHUNK_BITS)
    arenas = [(place, chunks_of(header_of(7, 3, 0))) for place in (ARENA, far)]
    assert len(open_spans(line_of(2_000, 1, 11), arenas[:1])) == 1
    assert len(open_spans(line_of(2_000, 1, 11), arenas)) == 0


def test_a_header_of_which_words_are_missing_is_not_there_yet() -> None:
    whole = header_of(7, 3, 0), header_of(7, 4, 1)
    assert tracks_in(chunks_of(*whole)).tolist() == [[7, 3], [7, 4]]
    for word in (0, 1, 2):
        torn = whole[1].view("<u8").copy()
        torn[word] = 0
        assert tracks_in(chunks_of(whole[0], torn)).tolist() == [[7, 3]]
