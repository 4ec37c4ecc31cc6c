"""A connection past its handshake, over a pair of sockets. What is broken, and how connections
end, is in `test_upgraded`, as a client sees it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop
from support.raw_websocket import PING, PONG, TEXT, close, frame
from support.until import until

from gateway.web.websocket.connection import Peer
from gateway.web.websocket.pings import Pulse
from gateway.web.websocket.socket import GONE
from gateway.wire import websocket
from gateway.wire.reader import Reader

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


class Ear:
    """Hears until it has heard `most`."""

    def __init__(self, most: int = 1_000_000) -> None:
        self.said: list[str | bytes] = []
        self.most = most
        self.emptied = 0
        self.ends: list[tuple[int, str]] = []

    @property
    def busy(self) -> bool:
        return len(self.said) >= self.most

    def heard(self, message: str | bytes) -> None:
        self.said.append(message)

    def drained(self) -> None:
        self.emptied += 1

    def lost(self, code: int, reason: str) -> None:
        self.ends.append((code, reason))


class Line:
    """A peer, and the socket of its client."""

    def __init__(self, peer: Peer, client: socket.socket, connections: set[Any]) -> None:
        self.peer, self.client, self.connections = peer, client, connections

    def heard(self) -> bytes:
        """What came so far, and was not heard yet."""
        try:
            return self.client.recv(1 << 20)
        except BlockingIOError:
            return b""

    async def fill(self) -> int:
        """Write until the client takes no more; how much that was."""
        size = 0
        while not self.peer.full:
            self.peer.write(b"x" * 65536)
            size += 65536
        return size

    async def take(self, size: int) -> bytes:
        data = b""

        def enough() -> bool:
            nonlocal data
            data += self.heard()
            return len(data) >= size

        await until(enough)
        return data


@asynccontextmanager
async def connected(kind: type[Peer] = Peer) -> AsyncIterator[Line]:
    loop = asyncio.get_running_loop()
    ours, client = socket.socketpair()
    client.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    connections: set[Any] = set()
    peer = kind(transport, Reader(), Pulse(loop, kind.PING_SECONDS), connections)
    try:
        yield Line(peer, client, connections)
    finally:
        transport.abort()
        client.close()
        await until(lambda: not connections, "the end of the connection")


Test = Callable[[Line], Coroutine[Any, Any, None]]


def on_both_loops(test: Test) -> Callable[[str], None]:
    async def run(line: AbstractAsyncContextManager[Line]) -> None:
        async with line as its:
            await test(its)

    @pytest.mark.parametrize("loop", LOOPS)
    def on(loop: str) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(run(connected()))

    on.__doc__ = test.__doc__
    return on


# Hearing


@on_both_loops
async def test_what_comes_before_somebody_listens_is_heard_then(line: Line):
    line.client.send(frame(TEXT, b"early"))
    await until(lambda: line.peer._reader.held)
    ear = Ear()
    line.peer.attend(ear)
    await until(lambda: ear.said == ["early"])


@on_both_loops
async def test_no_more_than_a_slice_is_held_for_nobody(line: Line):
    line.client.setblocking(True)
    line.client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            await asyncio.to_thread(line.client.sendall, frame(TEXT, b"a" * 60_000))
    assert line.peer._reader.held <= 512 * 1024
    ear = Ear()
    line.peer.attend(ear)
    await until(lambda: ear.said)


@on_both_loops
async def test_a_busy_listener_hears_no_more_and_the_kernel_holds_the_rest(line: Line):
    ear = Ear(most=3)
    line.peer.attend(ear)
    line.client.send(b"".join(frame(TEXT, b"%d" % n) for n in range(10)))
    await until(lambda: len(ear.said) == 3)
    line.client.send(frame(TEXT, b"more"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(ear.said) == 3 and not line.peer.transport.is_reading()
    ear.most = 1_000_000
    line.peer.go_on()
    await until(lambda: len(ear.said) == 11)
    assert ear.said == [*(f"{n}" for n in range(10)), "more"]
    await until(line.peer.transport.is_reading)


@on_both_loops
async def test_of_a_flood_only_so_much_is_heard_at_once(line: Line):
    """The others have their turns between."""
    ear = Ear()
    line.peer.attend(ear)
    line.peer.data_received(frame(TEXT) * 1000)
    assert 0 < len(ear.said) <= Peer.TURN
    await until(lambda: len(ear.said) == 1000)
    line.peer.data_received(frame(TEXT, b"a" * 4000) * 10)
    assert 1000 < len(ear.said) <= 1003


async def test_a_listener_that_fails_ends_its_connection_only(caplog: Any):
    class Failing(Ear):
        def heard(self, message: str | bytes) -> None:
            raise LookupError("on purpose")

    ear = Failing()
    async with connected() as line:
        line.peer.attend(ear)
        line.client.send(frame(TEXT))
        await until(lambda: ear.ends == [(1011, "the gateway failed; its log says why")])
    assert "on purpose" in caplog.text


# Saying


async def test_small_messages_go_past_the_transport():
    class Past(Peer):
        __slots__ = ()

        def _push(self, data: bytes | memoryview) -> None:
            raise AssertionError(data)

    async with connected(Past) as line:
        line.peer.write(websocket.frame(b"a"))
        assert line.heard() == b"\x81\x01a"


@on_both_loops
async def test_what_is_not_taken_waits_and_nothing_overtakes_it(line: Line):
    ear = Ear()
    line.peer.attend(ear)
    size = await line.fill()
    assert line.peer.transport.get_write_buffer_size() > 0
    line.peer.write(b"end")
    data = await line.take(size + 3)
    assert data == b"x" * size + b"end"
    await until(lambda: not line.peer.full)
    assert ear.emptied == 1


@on_both_loops
async def test_what_is_in_the_transport_at_the_handover_goes_first(line: Line):
    loop = asyncio.get_running_loop()
    ours, client = socket.socketpair()
    client.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.write(b"x" * 4_000_000)
    connections: set[Any] = set()
    peer = Peer(transport, Reader(), Pulse(loop, 60.0), connections)
    assert peer.full
    other = Line(peer, client, connections)
    peer.write(b"end")
    assert (await other.take(4_000_003)).endswith(b"xend")
    await until(lambda: not peer.full)
    transport.abort()
    client.close()
    await until(lambda: not connections)


@on_both_loops
async def test_a_descriptor_is_not_written_to_once_its_connection_is_closing(line: Line):
    """Its number may be another's at once: what it is then, gets nothing."""
    number = line.peer.transport.get_extra_info("socket").fileno()
    line.peer.transport.abort()
    line.peer.write(b"not for you")
    await until(lambda: not line.connections)
    other, its_client = socket.socketpair()
    with other, its_client:
        if other.fileno() != number:
            os.dup2(other.fileno(), number)
        line.peer.write(b"not for you")
        its_client.setblocking(False)
        with pytest.raises(BlockingIOError):
            its_client.recv(100)
        if other.fileno() != number:
            os.close(number)


@on_both_loops
async def test_pings_are_answered_and_to_who_reads_nothing_the_latest_only(line: Line):
    line.peer.attend(Ear())
    line.client.send(frame(PING, b"first"))
    await until(lambda: line.heard() == websocket.pong(b"first"))
    size = await line.fill()
    before = line.peer.transport.get_write_buffer_size()
    line.client.send(b"".join(frame(PING, b"%d" % n) for n in range(100)))
    await until(lambda: line.peer._pong == websocket.pong(b"99"))
    assert line.peer.transport.get_write_buffer_size() == before
    data = await line.take(size + 4)
    assert data[size:] == websocket.pong(b"99")


# Liveness, by a clock of its own


def beat(line: Line, now: float) -> bytes:
    """What the client gets."""
    payload = b"%4d" % now
    line.peer.beat(now, payload, websocket.ping(payload))
    return line.heard()


@on_both_loops
async def test_a_ping_is_due_each_round_and_one_without_an_answer_ends_it(line: Line):
    ear = Ear()
    line.peer.attend(ear)
    assert beat(line, 100.0) == websocket.ping(b" 100")
    line.client.send(frame(PONG, b" 100"))
    await until(lambda: line.peer._pinged is None)
    assert beat(line, 120.0) == websocket.ping(b" 120")
    line.client.send(frame(PONG, b" 100") + frame(TEXT))  # of another ping
    await until(lambda: ear.said)
    assert beat(line, 130.0) == b"", "sooner than an answer is due"
    assert beat(line, 140.0) == websocket.close(1011, "a ping was not answered")
    assert ear.ends == [(1011, "a ping was not answered")]


@on_both_loops
async def test_who_does_not_read_or_is_not_read_is_not_blamed(line: Line):
    ear = Ear(most=1)
    line.peer.attend(ear)
    assert beat(line, 100.0)
    size = await line.fill()
    size -= len(beat(line, 200.0))  # full
    await line.take(size)
    await until(lambda: not line.peer.full)
    line.peer._drained = 250.0
    assert beat(line, 300.0) == websocket.ping(b" 300"), "it took something since"
    line.client.send(frame(TEXT) + frame(PONG, b" 300"))
    await until(lambda: ear.busy and not line.peer.transport.is_reading())
    assert beat(line, 400.0) == websocket.ping(b" 400"), "its pong may be there unread"
    assert not line.peer.closed


# Its end


@on_both_loops
async def test_its_listener_is_told_once(line: Line):
    ear = Ear()
    line.peer.attend(ear)
    line.peer.close(1000, "done")
    line.peer.close(1001)
    line.client.send(close(1000))
    line.client.shutdown(socket.SHUT_WR)
    await until(lambda: not line.connections)
    assert ear.ends == [(1000, "done")]
    assert line.heard() == websocket.close(1000, "done")


@on_both_loops
async def test_a_client_that_vanishes_is_told_as_such(line: Line):
    ear = Ear()
    line.peer.attend(ear)
    line.client.close()
    await until(lambda: ear.ends == [(GONE, "")])
    line.peer.write(b"late")
    line.peer.go_on()


@on_both_loops
async def test_nothing_of_a_lost_connection_is_held(line: Line):
    line.peer.attend(Ear())
    line.peer.shutdown()
    line.client.close()
    await until(lambda: not line.connections)
    pulse = line.peer._pulse
    assert pulse._timer is None and not any(pulse._slots)
    assert line.peer._timer is line.peer._listener is None


def test_an_idle_connection_has_no_dictionary():
    for each in (Peer, Reader):
        assert "__dict__" not in dir(each), each
