from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox.runtime.channel import Chunk, Stream
from ohsandbox.runtime.docker.engine.wire import Demultiplexer, Passthrough

frames = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12)


def framed(parts: list[tuple[int, bytes]]) -> bytes:
    return b"".join(struct.pack(">BxxxL", stream, len(data)) + data for stream, data in parts)


@settings(deadline=None)  # the machine is shared
@given(frames, st.lists(st.integers(min_value=1, max_value=30), min_size=1))
def test_frames_may_be_cut_anywhere(parts: list[tuple[int, bytes]], cuts: list[int]) -> None:
    raw, demultiplexer = framed(parts), Demultiplexer()
    heard: dict[int, bytes] = {1: b"", 2: b""}
    while raw:
        for cut in cuts:
            for chunk in demultiplexer.feed(memoryview(raw[:cut])):
                assert chunk.data
                heard[chunk.stream] += chunk.data
            raw = raw[cut:]
    for stream in (1, 2):
        assert heard[stream] == b"".join(data for number, data in parts if number == stream)


def test_the_order_of_the_streams_is_kept() -> None:
    raw = framed([(1, b"a"), (1, b"b"), (2, b"c"), (1, b"d")])
    assert Demultiplexer().feed(memoryview(raw)) == [
        Chunk(Stream.STDOUT, b"ab"),
        Chunk(Stream.STDERR, b"c"),
        Chunk(Stream.STDOUT, b"d"),
    ]


def test_a_terminal_is_not_framed() -> None:
    assert Passthrough().feed(memoryview(b"\x01\0\0\0")) == [Chunk(Stream.STDOUT, b"\x01\0\0\0")]
    assert Passthrough().feed(memoryview(b"")) == []
