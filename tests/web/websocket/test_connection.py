"""A connection past its handshake, over a pair of sockets. What is broken, and how connections
end, is in `test_protocol`, as a client sees it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
import uvloop
from support.raw_websocket import OPCODE_PING, OPCODE_PONG, OPCODE_TEXT, build_close, build_frame
from support.waiting import wait_until

from gateway.web.websocket.connection import ABNORMAL_CLOSURE, PingScheduler, WebSocketConnection
from gateway.wire import websocket
from gateway.wire.message_reader import MessageReader

NO_PING_INTERVAL_S = 3600.0
LOOPS = {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


class RecordingListener:
    """Hears until it has heard `most`."""

    def __init__(self, max_messages: int = 1_000_000) -> None:
        self.messages: list[str | bytes] = []
        self.max_messages = max_messages
        self.drain_count = 0
        self.closings: list[tuple[int, str]] = []

    @property
    def is_busy(self) -> bool:
        return len(self.messages) >= self.max_messages

    def on_message(self, message: str | bytes) -> None:
        self.messages.append(message)

    def on_drained(self) -> None:
        self.drain_count += 1

    def on_closed(self, code: int, reason: str) -> None:
        self.closings.append((code, reason))


class ConnectionPair:
    """A peer, and the socket of its client."""

    def __init__(self, transport: asyncio.Transport, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.client = client
        self.connections: set[Any] = set()
        self.reader = MessageReader()
        # Pings would come amid what the tests read on a slow machine; they make their own.
        self.ping_scheduler = PingScheduler(loop, NO_PING_INTERVAL_S)
        self.peer = WebSocketConnection(
            transport, self.reader, self.ping_scheduler, self.connections
        )

    def read_available(self) -> bytes:
        """What came so far, and was not heard yet."""
        try:
            return self.client.recv(1 << 20)
        except BlockingIOError:
            return b""

    async def fill_buffers(self) -> int:
        """Write until the client takes no more; how much that was."""
        size = 0
        while not self.peer.full:
            self.peer.write(b"x" * 65536)
            size += 65536
        return size

    async def read_exactly(self, size: int) -> bytes:
        data = b""

        def enough() -> bool:
            nonlocal data
            data += self.read_available()
            return len(data) >= size

        await wait_until(enough)
        return data


@asynccontextmanager
async def open_pair(
    sockets: tuple[socket.socket, socket.socket] | None = None,
) -> AsyncIterator[ConnectionPair]:
    loop = asyncio.get_running_loop()
    ours, client = sockets or socket.socketpair()
    client.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    made = ConnectionPair(transport, client)
    try:
        yield made
    finally:
        transport.abort()
        client.close()
        await wait_until(lambda: not made.connections, "the end of the connection")


Test = Callable[[ConnectionPair], Coroutine[Any, Any, None]]


def on_both_loops(test: Test) -> Callable[[str], None]:
    async def run(line: AbstractAsyncContextManager[ConnectionPair]) -> None:
        async with line as its:
            await test(its)

    @pytest.mark.parametrize("loop", LOOPS)
    def on(loop: str) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
            runner.run(run(open_pair()))

    on.__doc__ = test.__doc__
    return on


# Hearing


@on_both_loops
async def test_what_comes_before_somebody_listens_is_heard_then(line: ConnectionPair):
    line.client.send(build_frame(OPCODE_TEXT, b"early"))
    await wait_until(lambda: line.reader.buffered_bytes)
    ear = RecordingListener()
    line.peer.set_listener(ear)
    await wait_until(lambda: ear.messages == ["early"])


@on_both_loops
async def test_no_more_than_a_slice_is_held_for_nobody(line: ConnectionPair):
    line.client.setblocking(True)
    line.client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        for _ in range(1000):
            await asyncio.to_thread(line.client.sendall, build_frame(OPCODE_TEXT, b"a" * 60_000))
    assert line.reader.buffered_bytes <= 512 * 1024
    ear = RecordingListener()
    line.peer.set_listener(ear)
    await wait_until(lambda: ear.messages)


@on_both_loops
async def test_a_busy_listener_hears_no_more_and_the_kernel_holds_the_rest(line: ConnectionPair):
    ear = RecordingListener(max_messages=3)
    line.peer.set_listener(ear)
    line.client.send(b"".join(build_frame(OPCODE_TEXT, b"%d" % n) for n in range(10)))
    await wait_until(lambda: len(ear.messages) == 3)
    line.client.send(build_frame(OPCODE_TEXT, b"more"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(ear.messages) == 3 and not line.peer.transport.is_reading()
    ear.max_messages = 1_000_000
    line.peer.resume_reading()
    await wait_until(lambda: len(ear.messages) == 11)
    assert ear.messages == [*(f"{n}" for n in range(10)), "more"]
    await wait_until(line.peer.transport.is_reading)


@on_both_loops
async def test_of_a_flood_only_so_much_is_heard_at_once(line: ConnectionPair):
    """The others have their turns between."""
    ear = RecordingListener()
    line.peer.set_listener(ear)
    line.peer.data_received(build_frame(OPCODE_TEXT) * 1000)
    assert 0 < len(ear.messages) <= WebSocketConnection.MAX_MESSAGES_PER_TURN
    await wait_until(lambda: len(ear.messages) == 1000)
    line.peer.data_received(build_frame(OPCODE_TEXT, b"a" * 4000) * 10)
    assert 1000 < len(ear.messages) <= 1003


async def test_a_listener_that_fails_ends_its_connection_only(caplog: Any):
    class FailingListener(RecordingListener):
        def on_message(self, message: str | bytes) -> None:
            raise LookupError("on purpose")

    ear = FailingListener()
    async with open_pair() as line:
        line.peer.set_listener(ear)
        line.client.send(build_frame(OPCODE_TEXT))
        await wait_until(lambda: ear.closings == [(1011, "the gateway failed; its log says why")])
    assert "on purpose" in caplog.text


async def test_bad_frames_are_not_logged_one_by_one(caplog: Any):
    with caplog.at_level(logging.INFO):
        for _ in range(20):
            async with open_pair() as line:
                ear = RecordingListener()
                line.peer.set_listener(ear)
                line.peer.data_received(b"\xff\xff")
                assert ear.closings
    assert len([each for each in caplog.records if each.getMessage().startswith("closed ")]) < 20


# Saying


@on_both_loops
async def test_what_is_not_taken_waits_and_nothing_overtakes_it(line: ConnectionPair):
    ear = RecordingListener()
    line.peer.set_listener(ear)
    size = await line.fill_buffers()
    assert line.peer.transport.get_write_buffer_size() > 0
    line.peer.write(b"end")
    data = await line.read_exactly(size + 3)
    assert data == b"x" * size + b"end"
    await wait_until(lambda: not line.peer.full)
    assert ear.drain_count == 1


@on_both_loops
async def test_what_is_in_the_transport_at_the_handover_goes_first(line: ConnectionPair):
    loop = asyncio.get_running_loop()
    ours, client = socket.socketpair()
    client.setblocking(False)
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    transport.write(b"x" * 4_000_000)
    other = ConnectionPair(transport, client)
    peer = other.peer
    assert peer.full
    peer.write(b"end")
    assert (await other.read_exactly(4_000_003)).endswith(b"xend")
    await wait_until(lambda: not peer.full)
    transport.abort()
    client.close()
    await wait_until(lambda: not other.connections)


@on_both_loops
async def test_a_descriptor_is_not_written_to_once_its_connection_is_closing(line: ConnectionPair):
    """Its number may be another's at once: what it is then, gets nothing."""
    number = line.peer.transport.get_extra_info("socket").fileno()
    line.peer.transport.abort()
    line.peer.write(b"not for you")
    await wait_until(lambda: not line.connections)
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
async def test_pings_are_answered_and_to_who_reads_nothing_the_latest_only(line: ConnectionPair):
    ear = RecordingListener()
    line.peer.set_listener(ear)
    line.client.send(build_frame(OPCODE_PING, b"first"))
    await wait_until(lambda: line.read_available() == websocket.encode_pong(b"first"))
    size = await line.fill_buffers()
    before = line.peer.transport.get_write_buffer_size()
    pings = b"".join(build_frame(OPCODE_PING, b"%d" % n) for n in range(100))
    line.client.send(pings + build_frame(OPCODE_TEXT, b"behind them"))
    await wait_until(lambda: ear.messages == ["behind them"])
    assert line.peer.transport.get_write_buffer_size() == before
    data = await line.read_exactly(size + 4)
    assert data[size:] == websocket.encode_pong(b"99")


# Liveness, by a clock of its own


def get_ping(line: ConnectionPair, now: float) -> bytes:
    """What the client gets."""
    payload = b"%4d" % now
    line.peer.on_ping_due(now, payload, websocket.encode_ping(payload))
    return line.read_available()


@on_both_loops
async def test_a_ping_is_due_each_round_and_one_without_an_answer_ends_it(line: ConnectionPair):
    ear = RecordingListener()
    line.peer.set_listener(ear)
    assert get_ping(line, 100.0) == websocket.encode_ping(b" 100")
    line.client.send(build_frame(OPCODE_PONG, b" 100") + build_frame(OPCODE_TEXT))
    await wait_until(lambda: len(ear.messages) == 1)
    assert get_ping(line, 120.0) == websocket.encode_ping(b" 120")
    line.client.send(
        build_frame(OPCODE_PONG, b" 100") + build_frame(OPCODE_TEXT)
    )  # of another ping
    await wait_until(lambda: len(ear.messages) == 2)
    assert get_ping(line, 130.0) == b"", "sooner than an answer is due"
    assert get_ping(line, 140.0) == websocket.encode_close(1011, "a ping was not answered")
    assert ear.closings == [(1011, "a ping was not answered")]


@on_both_loops
async def test_who_does_not_read_or_is_not_read_is_not_blamed(line: ConnectionPair):
    ear = RecordingListener(max_messages=1)
    line.peer.set_listener(ear)
    now = asyncio.get_running_loop().time()  # by which it is known when the client took something
    assert get_ping(line, now - 100.0)
    size = await line.fill_buffers()
    size -= len(get_ping(line, now - 50.0))  # full
    await line.read_exactly(size)
    await wait_until(lambda: not line.peer.full)
    assert get_ping(line, now + 50.0), "it took something since"
    line.client.send(build_frame(OPCODE_TEXT) + build_frame(OPCODE_PONG, b"%4d" % (now + 50.0)))
    await wait_until(lambda: ear.is_busy and not line.peer.transport.is_reading())
    assert get_ping(line, now + 150.0), "its pong may be there unread"
    assert not line.peer.closed


# Its end


@on_both_loops
async def test_its_listener_is_told_once(line: ConnectionPair):
    ear = RecordingListener()
    line.peer.set_listener(ear)
    line.peer.close(1000, "done")
    line.peer.close(1001)
    line.client.send(build_close(1000))
    line.client.shutdown(socket.SHUT_WR)
    await wait_until(lambda: not line.connections)
    assert ear.closings == [(1000, "done")]
    assert line.read_available() == websocket.encode_close(1000, "done")


@on_both_loops
async def test_a_client_that_vanishes_is_told_as_such(line: ConnectionPair):
    ear = RecordingListener()
    line.peer.set_listener(ear)
    line.client.close()
    await wait_until(lambda: ear.closings == [(ABNORMAL_CLOSURE, "")])
    line.peer.write(b"late")
    line.peer.resume_reading()


async def test_a_socket_that_is_closed_behind_the_close_frame_is_no_error(caplog: Any):
    """A browser that was closed logged an error with a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        ours, _ = server.accept()
    async with open_pair((ours, client)) as its:
        its.peer.set_listener(listener := RecordingListener())
        client.send(build_close(1001))
        client.close()  # so that the kernel answers our close frame with a reset
        await wait_until(lambda: not its.connections)
    assert listener.closings == [(1001, "")]
    assert not caplog.records


@on_both_loops
async def test_nothing_of_a_lost_connection_is_held(line: ConnectionPair):
    ear = RecordingListener()
    line.peer.set_listener(ear)
    line.peer.shutdown()
    line.client.close()
    await wait_until(lambda: not line.connections)
    assert not line.ping_scheduler.is_running
    is_held = weakref.ref(ear)
    del ear
    gc.collect()
    assert is_held() is None


def test_an_idle_connection_has_no_dictionary():
    for each in (WebSocketConnection, MessageReader):
        assert "__dict__" not in dir(each), each
