"""What comes out of a masked answer, and that its lengths and times tell nothing about the value."""

from __future__ import annotations

import base64
import itertools
import random
import string
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ohsandbox.errors import UsageError
from ohsandbox.network.credentials.credentials import MAX_ENCODED_BYTES, parse_credentials
from ohsandbox.network.credentials.echo_mask import EchoMask, WebSocketMask
from ohsandbox.secrets import Masker
from ohsandbox.secrets.encodings import encodings_of
from tests.network.credentials.tls_host import frame

if TYPE_CHECKING:
    from collections.abc import Iterable

KEY = "sk-Zx81kQ0aVn72/LmWq55TtPo39R+sYb"
OTHER_KEYS = ["ghp_0123456789", "AIza" + "x" * 35, "eyJ" + "abc.DEF-_" * 100, "p a s s & w<o>r'd\"%"]
ENCODED = sorted(encodings_of(KEY))
HOLD = max(map(len, ENCODED))
GUESSES = st.builds(lambda one, size: one[:size].encode(), st.sampled_from(ENCODED), st.integers(1, HOLD))
BYTES = [b"\n", b"\r", b"\x00", b"\xc3\xa4", b" ", b"s", b"sk-", b"." * 70, b"." * HOLD]
TEXT = st.lists(st.one_of(GUESSES, st.sampled_from(BYTES)), max_size=8).map(b"".join)
STEPS = st.lists(st.one_of(TEXT, st.none()), max_size=12)
"""Pieces of an answer in turn; None is a tick."""


def lengths(mask: EchoMask | WebSocketMask, steps: Iterable[bytes | None]) -> list[int]:
    return [len(mask.tick() if step is None else mask.feed(step)) for step in steps] + [len(mask.flush())]


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(steps=STEPS, kind=st.sampled_from([EchoMask, WebSocketMask]), other=st.sampled_from(OTHER_KEYS))
@example(steps=[b"sk-Zx81k", None, None, b"Q0"], kind=EchoMask, other=OTHER_KEYS[0])
def test_what_comes_out_when_is_the_same_for_every_key(
    steps: list[bytes | None], kind: type[EchoMask | WebSocketMask], other: str
) -> None:
    mine, others = (kind(Masker({"T": key}), hold_bytes=100) for key in (KEY, other))
    assert lengths(mine, steps) == lengths(others, steps)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.builds(frame, TEXT, st.sampled_from([0, 1, 2, 9]), final=st.booleans()), max_size=8))
def test_what_comes_out_of_frames_is_the_same_for_every_key(steps: list[bytes]) -> None:
    assert len({tuple(lengths(WebSocketMask(Masker({"T": key})), steps)) for key in [KEY, *OTHER_KEYS]}) == 1


@settings(max_examples=500, deadline=None)
@given(data=TEXT, cuts=st.lists(st.integers(0, 1000), max_size=20))
def test_an_echo_is_masked_however_it_is_cut_and_nothing_else_is(data: bytes, cuts: list[int]) -> None:
    mask = EchoMask(Masker({"T": KEY}), hold_bytes=HOLD)
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = b"".join(mask.feed(data[a:b]) for a, b in itertools.pairwise(edges)) + mask.flush()
    assert len(out) == len(data)
    assert not any(one.encode() in out for one in ENCODED)
    assert all(a == b or a == ord("*") for a, b in zip(out, data, strict=True))
    if not any(one.encode() in data.translate(None, b" \n\r:\t") for one in ENCODED):
        assert out == data


ECHOES = [KEY, base64.b64encode(b"me:" + KEY.encode()).decode(), KEY.encode().hex(), quote(KEY, safe="")]


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("size", [1, 7, 500])
def test_an_echo_in_a_message_is_masked_in_however_many_frames_it_comes(echo: str, size: int) -> None:
    data, heads = f"before {echo} after".encode(), 0
    mask = WebSocketMask(Masker({"T": KEY}))
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    out = b""
    for number, piece in enumerate(pieces):
        one = frame(piece, 0 if number else 1, final=number == len(pieces) - 1)
        heads += len(one) - len(piece)
        out += b"".join(mask.feed(one[at : at + 1]) for at in range(len(one)))
        out += mask.feed(frame(b"", 9))
    assert not mask.is_holding
    assert len(out) == len(data) + heads + 2 * len(pieces)
    assert out.count(b"*") >= len(KEY) - 2
    assert not any(one.encode() in out for one in ENCODED)


def test_a_line_waits_for_nothing_and_what_is_unfinished_for_the_second_tick() -> None:
    mask = EchoMask(Masker({"T": KEY}))
    assert mask.feed(b"data: 1\n\ndata: ") == b"data: 1\n\n"
    assert mask.feed(b"2\n\n") == b"data: 2\n\n"
    assert mask.feed(b" 10 %\r 11 %") == b" 10 %\r"
    assert [mask.tick(), mask.feed(b" more"), mask.tick()] == [b"", b"", b" 11 %"]
    assert mask.tick() == b" more"
    assert not mask.is_holding


def test_what_is_held_back_is_bounded() -> None:
    mask = EchoMask(Masker({"T": KEY}))
    out = b"".join(mask.feed(b"x" * 1000) for _ in range(1000))
    assert 1_000_000 - len(out) <= 2 * MAX_ENCODED_BYTES


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(value=st.text(string.ascii_letters + string.digits + string.punctuation, min_size=8, max_size=60))
def test_no_encoding_of_a_value_has_a_byte_after_which_a_body_passes(value: str) -> None:
    assert all(0x20 <= byte < 0x7F for one in encodings_of(value) for byte in one.encode())


def test_a_value_that_would_be_longer_than_what_is_held_back_is_refused() -> None:
    chance = random.Random(1)
    value = "".join(chance.choices(string.ascii_letters, k=MAX_ENCODED_BYTES // 2))
    assert parse_credentials(["api.example.org=env:T,header:X-Key"], environ={"T": value})
    with pytest.raises(UsageError, match=r"one of its encodings has 8194 bytes, and the limit is 8192") as caught:
        parse_credentials(["api.example.org=env:T,header:X-Key"], environ={"T": value + "x"})
    assert value not in str(caught.value)
