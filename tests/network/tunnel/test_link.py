"""What a hostile program in the connector's place may send, and what it comes to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ohsandbox.errors import SandboxUnavailable
from ohsandbox.network.tunnel.frames import (
    ABORTED,
    HALF,
    PIECE_BYTES,
    VERSION,
    WINDOW_BYTES,
    ConnectorError,
    Frame,
    FrameKind,
    FrameReader,
    frame,
)
from ohsandbox.network.tunnel.tunnel import Tunnel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ohsandbox.network.tunnel.link import TunnelLink
    from ohsandbox.network.tunnel.tunnel import Handler

HELLO = frame(FrameKind.HELLO, 0, VERSION)
PORT = 3128


def data(stream: int, payload: bytes) -> bytes:
    return struct.pack("<HHI", FrameKind.DATA, stream, len(payload)) + payload


class Impostor:
    """A channel whose other end says what a test has it say; what the host writes is kept."""

    def __init__(self, *said: bytes, answers: Callable[[bytes], bytes] = lambda _: b"") -> None:
        self._said = [*said]
        self._answers = answers
        self._more = threading.Event()
        self._over = False
        self.heard = bytearray()

    def filenos(self) -> list[int] | None:
        return None

    def read(self, timeout_s: float | None = None) -> list[tuple[int, bytes]]:
        while not (self._said or self._over):
            self._more.wait(timeout_s)
            self._more.clear()
        return [] if self._over else [(1, self._said.pop(0))]

    def say(self, data: bytes) -> None:
        self._said.append(data)
        self._more.set()

    def write(self, data: memoryview) -> None:
        self.heard += data
        if answer := self._answers(bytes(data)):
            self.say(answer)

    def write_some(self, data: memoryview) -> int:
        self.write(data)
        return len(data)

    def kill(self) -> None: ...

    def close(self) -> None:
        self._over = True
        self._more.set()


def listens(heard: bytes) -> bytes:
    """As the connector does, answer that it listens."""
    return frame(FrameKind.LISTENING, PORT, 0) if heard.startswith(frame(FrameKind.LISTEN, value=PORT)) else b""


async def swallow(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


ACCEPTED = frame(FrameKind.ACCEPTED, HALF, PORT)
LIES = {
    "an unknown kind": struct.pack("<HHI", 99, 0, 4) + bytes(4),
    "a kind of the host's": frame(FrameKind.OPEN, 1, 22),
    "a second hello": HELLO,
    "a stream that there is none of": frame(FrameKind.CLOSE, 600),
    "a stream that is not open": frame(FrameKind.END, 5),
    "data for a stream that is not open": data(HALF, b"x"),
    "a frame that is too long": struct.pack("<HHI", FrameKind.DATA, HALF, PIECE_BYTES + 1),
    "a frame that is too short": struct.pack("<HHI", FrameKind.CLOSE, HALF, 3),
    "a port that nobody listens on": frame(FrameKind.ACCEPTED, HALF, PORT + 1),
    "an accepted stream of the host's half": frame(FrameKind.ACCEPTED, 3, PORT),
    "the same stream twice": ACCEPTED + ACCEPTED,
    "an answer that nobody asked for": frame(FrameKind.LISTENING, PORT, 0),
    "more than the window": ACCEPTED + data(HALF, bytes(PIECE_BYTES)) * (2 + WINDOW_BYTES // PIECE_BYTES),
    "data after the end": ACCEPTED + frame(FrameKind.END, HALF) + data(HALF, b"x"),
    "too much credit": ACCEPTED + frame(FrameKind.CREDIT, HALF, 1),
    "opened twice": ACCEPTED + frame(FrameKind.OPENED, HALF),
    "frames after the close": ACCEPTED + frame(FrameKind.CLOSE, HALF) + frame(FrameKind.CLOSE, HALF),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
async def test_a_lie_ends_every_connection_and_a_new_connector_is_started(lie: bytes) -> None:
    impostors = [Impostor(HELLO, answers=listens), Impostor(HELLO, answers=listens)]
    begun = iter(impostors)
    again = threading.Event()

    def open_channel() -> Impostor:
        found = next(begun)
        if found is impostors[1]:
            again.set()
        return found

    async def pauses(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined] # nothing returns credit
        await asyncio.Event().wait()

    tunnel = Tunnel(open_channel)
    await tunnel.listen(PORT, pauses)
    impostors[0].say(lie)
    await asyncio.to_thread(again.wait)
    assert impostors[0]._over
    await tunnel.close()


@pytest.mark.parametrize("said", [b"HTTP/1.1 200 OK\r\n\r\n", frame(FrameKind.HELLO, 0, VERSION + 1), ACCEPTED])
async def test_what_does_not_begin_as_a_connector_is_refused(said: bytes) -> None:
    tunnel = Tunnel(lambda: Impostor(said))
    with pytest.raises(ConnectorError):
        await tunnel.connect(80)
    await tunnel.close()


async def test_a_program_that_ends_at_once_is_an_error_and_started_again_after_a_pause_only() -> None:
    begun = 0

    def open_channel() -> Impostor:
        nonlocal begun
        begun += 1
        ended = Impostor()
        ended.close()
        return ended

    tunnel = Tunnel(open_channel)
    for _ in range(3):
        with pytest.raises(SandboxUnavailable):
            await tunnel.connect(80)
    assert begun == 3
    assert tunnel._pause_s == pytest.approx(0.4)  # 0.1, 0.2 and 0.4: the next waits for that long
    await tunnel.close()


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(
    st.binary(max_size=40),
    st.builds(frame, st.sampled_from(FrameKind), st.integers(0, 2 * HALF + 5), st.integers(0, 2**32 - 1)),
    st.builds(data, st.integers(0, 2 * HALF - 1), st.binary(max_size=200)),
)), st.integers(1, 64))  # fmt: skip
def test_any_bytes_are_frames_or_refused_however_they_are_cut(said: list[bytes], cut: int) -> None:
    stream = b"".join(said)
    found: list[Frame] = []
    reader = FrameReader()
    try:
        for start in range(0, len(stream), cut):
            found += reader.feed(stream[start : start + cut])
            assert len(reader._partial) < 12
    except ConnectorError:
        return
    whole = FrameReader().feed(stream)
    assert [one for one in whole if one.kind is not FrameKind.DATA] == [
        one for one in found if one.kind is not FrameKind.DATA
    ]
    assert b"".join(one.payload for one in whole) == b"".join(one.payload for one in found)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(
    st.builds(frame, st.sampled_from([FrameKind.ACCEPTED]), st.integers(HALF, HALF + 3), st.just(PORT)),
    st.builds(frame, st.sampled_from([FrameKind.END, FrameKind.CLOSE, FrameKind.CREDIT]), st.integers(HALF, HALF + 3)),
    st.builds(data, st.integers(HALF, HALF + 3), st.binary(min_size=1, max_size=9)),
), max_size=30))  # fmt: skip
def test_any_order_of_frames_is_served_or_ends_the_tunnel_and_nothing_stays(said: list[bytes]) -> None:
    async def talk() -> None:
        impostor = Impostor(HELLO, answers=listens)
        tunnel = Tunnel(lambda: impostor)
        await tunnel.listen(PORT, swallow)
        assert tunnel._link is not None
        for one in said:
            tunnel._link._on_chunks([(1, one)])
            await asyncio.sleep(0)
        await tunnel.close()
        assert not tunnel._tasks
        assert not tunnel._link._streams

    asyncio.run(talk())


async def test_an_impostor_that_floods_gets_no_more_handlers_than_there_are_streams() -> None:
    running, all_run, hold = 0, asyncio.Event(), asyncio.Event()

    async def slow(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        nonlocal running
        running += 1
        if running == HALF:
            all_run.set()
        await hold.wait()

    accepts = b"".join(frame(FrameKind.ACCEPTED, HALF + n, PORT) for n in range(HALF))
    closes = b"".join(frame(FrameKind.CLOSE, HALF + n, 0) for n in range(HALF))
    impostor = Impostor(HELLO, answers=listens)
    tunnel = Tunnel(lambda: impostor)
    await tunnel.listen(PORT, slow)
    impostor.say(accepts + closes)
    await all_run.wait()
    assert tunnel._link is not None
    tunnel._link._on_chunks([(1, accepts)])  # while its handler runs a number is not free: this is a lie
    assert isinstance(tunnel._link.ended, ConnectorError)
    assert running == HALF
    await tunnel.close()


async def test_a_connection_that_nobody_waits_for_any_more_ends_no_other() -> None:
    asked, loop = asyncio.Event(), asyncio.get_running_loop()

    def answers(heard: bytes) -> bytes:
        if heard.startswith(frame(FrameKind.OPEN, 0, 80)):
            loop.call_soon_threadsafe(asked.set)
        return frame(FrameKind.OPENED, 1) if frame(FrameKind.OPEN, 1, 81) in heard else b""

    impostor = Impostor(HELLO, answers=answers)
    tunnel = Tunnel(lambda: impostor)
    waiting = asyncio.ensure_future(tunnel.connect(80))
    await asyncio.wait_for(asked.wait(), 20)
    waiting.cancel()
    await asyncio.wait([waiting])
    impostor.say(frame(FrameKind.OPENED, 0))  # on its way when the other was given up
    _, writer = await asyncio.wait_for(tunnel.connect(81), 20)
    writer.close()
    await tunnel.close()


async def test_a_port_that_is_refused_for_an_unheard_of_reason_is_an_ordinary_error() -> None:
    refused = frame(FrameKind.LISTENING, PORT, 0xFFFFFFFF)
    tunnel = Tunnel(lambda: Impostor(HELLO, answers=lambda heard: refused if listens(heard) else b""))
    with pytest.raises(OSError, match="cannot listen there") as told:
        await tunnel.listen(PORT, swallow)
    assert told.value.errno == errno.EIO
    await tunnel.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.001)


class Broken(Impostor):
    """A channel that begins well, and whose named operation fails from then on."""

    def __init__(self, operation: str, error: Exception) -> None:
        super().__init__(HELLO)
        self._operation, self._error = operation, error

    def _fail(self, operation: str) -> None:
        if operation == self._operation:
            raise self._error

    def read(self, timeout_s: float | None = None) -> list[tuple[int, bytes]]:
        if not self._said:
            self._fail("read")
        return super().read(timeout_s)

    def write_some(self, data: memoryview) -> int:  # noqa: ARG002 - the interface
        self._fail("write_some")
        return 0

    def write(self, data: memoryview) -> None:  # noqa: ARG002 - as above
        self._fail("write")


@pytest.mark.parametrize("operation", ["read", "write_some", "write"])
@pytest.mark.parametrize("error", [BrokenPipeError("gone"), SandboxUnavailable("The engine is gone.")])
async def test_a_channel_that_fails_ends_what_waits_for_the_connector(operation: str, error: Exception) -> None:
    tunnel = Tunnel(lambda: Broken(operation, error))
    for wait in (tunnel.listen(PORT, swallow), tunnel.connect(80)):
        with pytest.raises((SandboxUnavailable, ConnectionResetError), match="gone"):
            await asyncio.wait_for(wait, 5)
    await tunnel.close()


async def test_a_connector_that_reads_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.network.tunnel.link._MOST_QUEUED_BYTES", 1000)
    killed = threading.Event()

    class Stuck(Impostor):
        def write_some(self, data: memoryview) -> int:  # noqa: ARG002 - the interface
            return 0

        def write(self, data: memoryview) -> None:  # noqa: ARG002 - as above
            killed.wait()
            raise BrokenPipeError

        def kill(self) -> None:
            killed.set()

    tunnel = Tunnel(lambda: Stuck(HELLO))
    waiting = asyncio.ensure_future(tunnel.connect(80))
    await until(lambda: tunnel._link is not None and tunnel._link._queued)
    assert tunnel._link is not None
    tunnel._link._send(bytes(1000))
    with pytest.raises(ConnectionResetError, match="reads nothing"):
        await asyncio.wait_for(waiting, 5)
    assert await asyncio.to_thread(killed.wait, 5)
    await tunnel.close()


async def test_a_connector_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.network.tunnel.link.HELLO_TIMEOUT_S", 0.02)
    silent = Impostor()
    tunnel = Tunnel(lambda: silent)
    with pytest.raises(SandboxUnavailable, match="said nothing for"):
        await tunnel.connect(80)
    await tunnel.close()
    await until(lambda: silent._over)


async def test_a_closed_tunnel_starts_no_connector() -> None:
    tunnel = Tunnel(lambda: pytest.fail("started"))
    await tunnel.close()
    with pytest.raises(SandboxUnavailable, match="are closed"):
        await tunnel.connect(80)


@contextlib.asynccontextmanager
async def listening(handler: Handler) -> AsyncIterator[tuple[Tunnel, TunnelLink, Impostor]]:
    impostor = Impostor(HELLO, answers=listens)
    tunnel = Tunnel(lambda: impostor)
    await tunnel.listen(PORT, handler)
    assert tunnel._link is not None
    yield tunnel, tunnel._link, impostor
    await tunnel.close()


async def heard(impostor: Impostor, wanted: bytes) -> None:
    await until(lambda: wanted in impostor.heard)


async def test_an_answer_for_which_nobody_waits_any_more_ends_no_connection() -> None:
    async with listening(swallow) as (tunnel, link, _):
        waiting = asyncio.ensure_future(tunnel.listen(PORT + 1, swallow))
        await until(lambda: PORT + 1 in link._asked)
        waiting.cancel()
        await asyncio.wait([waiting])
        link._on_chunks([(1, frame(FrameKind.LISTENING, PORT + 1, 0) + ACCEPTED)])
        assert (link.ended, [*link._streams]) == (None, [HALF])


async def test_a_connection_to_a_port_that_was_just_closed_is_reset() -> None:
    async with listening(swallow) as (tunnel, link, impostor):
        await tunnel.unlisten(PORT)
        link._on_chunks([(1, ACCEPTED)])
        await heard(impostor, frame(FrameKind.CLOSE, HALF, ABORTED))


async def test_a_handler_that_fails_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def fails(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        raise ValueError("a defect")

    async with listening(fails) as (_, link, impostor):
        link._on_chunks([(1, ACCEPTED)])
        await heard(impostor, frame(FrameKind.CLOSE, HALF))
        assert link.ended is None
        assert caplog.records[-1].message == f"a connection of the sandbox to port {PORT} failed"


async def test_a_sandbox_that_sends_on_to_a_closing_connection_gets_credit_until_it_reads() -> None:
    """Without it each side would wait for the other one."""

    async def answers_much(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(WINDOW_BYTES + 1))

    async with listening(answers_much) as (_, link, impostor):
        link._on_chunks([(1, ACCEPTED)])
        await until(link._streams[HALF].is_closing)
        link._on_chunks([(1, data(HALF, bytes(PIECE_BYTES)) * (WINDOW_BYTES // 4 // PIECE_BYTES))])
        await heard(impostor, frame(FrameKind.CREDIT, HALF, WINDOW_BYTES // 4))


async def test_a_sandbox_that_never_accepts_the_end_has_its_connection_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ohsandbox.network.tunnel.stream._ABORT_AFTER_S", 0.02)
    impostor = Impostor(HELLO, answers=lambda heard: frame(FrameKind.OPENED, 0) if b"\x50" in heard else b"")
    tunnel = Tunnel(lambda: impostor)
    _, writer = await tunnel.connect(80)
    writer.close()
    await heard(impostor, frame(FrameKind.CLOSE, 0) + frame(FrameKind.CLOSE, 0, ABORTED))
    await tunnel.close()
