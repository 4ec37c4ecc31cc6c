"""A TCP proxy for tests that does to a connection what networks do.

It knows nothing of the bytes it carries. Faults are verbs on one port: hide (a firewall that
drops every packet), refuse (nobody listens), hang up (accept, then close), delay, throttle, stall
(the client stops reading; also now and then), cut (now, or after so many bytes to the client). The
port stays the proxy's own throughout, so that a fault can be lifted again and nobody else takes the
port.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from enum import StrEnum
from typing import Any, Self, TypeAlias

_READ_SIZE = 65536
ACCEPT_RETRY_S = 0.1

ScheduledPiece: TypeAlias = tuple[float, bytes] | None  # when a piece is due; None ends the stream


class AcceptMode(StrEnum):
    """What a new connection meets."""

    OPEN = "open"
    HIDDEN = "hidden"
    REFUSING = "refusing"
    HANGING_UP = "hanging up"


class TcpProxy:
    """One listening port in front of one target.

    connects: time (`time.monotonic()`) of every connection accepted, refused ones not included.
    to_client, to_target: bytes delivered so far, in all connections.
    receive_buffer: bytes of the kernel's buffer towards the target; a small one makes a stalled
        client be felt soon.
    """

    def __init__(
        self, host: str | None = None, port: int | None = None, *, receive_buffer: int | None = None
    ) -> None:
        self.port = 0
        self.accepted_at: list[float] = []
        self.bytes_to_client = 0
        self.bytes_to_target = 0
        self.accept_mode = AcceptMode.OPEN
        self._target = None if host is None or port is None else (host, port)
        self._receive_buffer = receive_buffer
        self._delay_s = 0.0
        self._bytes_per_s: float | None = None
        self._stall_share, self._stall_s = 0.0, 0.0
        self.stall_count = 0
        self._bytes_until_cut: int | None = None
        self._is_visible = _create_set_event()
        self._clients_reading = _create_set_event()
        self._links: set[ProxyConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._port_holder: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._accept_task: asyncio.Task[None] | None = None
        self._backlog_fillers: list[socket.socket] = []
        self._failures: list[Exception] = []

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connection_count(self) -> int:
        return len(self._links)

    def set_target(self, host: str, port: int) -> None:
        """Where new connections are forwarded to; may be told after `listen`."""
        self._target = (host, port)

    async def listen(self) -> int:
        """Take a port from the OS (kept until `close`) and begin to accept."""
        self._port_holder = _bind_socket(0)
        self.port = int(self._port_holder.getsockname()[1])
        self._start_accepting()
        return self.port

    async def close(self) -> None:
        """End everything. Raises what hooks and accepts raised meanwhile, as an ExceptionGroup."""
        await self._stop_accepting()
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._port_holder is not None:
            self._port_holder.close()
            self._port_holder = None
        if self._failures:
            raise ExceptionGroup(f"the proxy on port {self.port} failed", self._failures)

    async def hide(self) -> None:
        """Black hole: connections stay and carry nothing, either way; new ones are not answered."""
        await self._stop_accepting()
        self.accept_mode = AcceptMode.HIDDEN
        self._is_visible.clear()
        self._listener = _bind_socket(self.port)
        self._listener.listen(0)
        self._backlog_fillers = fill_backlog(self._listener)

    async def refuse(self) -> None:
        """Close all connections; new ones meet a closed port (ECONNREFUSED)."""
        await self._stop_accepting()
        self._is_visible.set()
        self.accept_mode = AcceptMode.REFUSING
        self.cut()

    async def hang_up(self) -> None:
        """Close all connections and every new one at once; `connects` counts the attempts."""
        await self.unhide()
        self.accept_mode = AcceptMode.HANGING_UP
        self.cut()

    async def unhide(self) -> None:
        """Open to all again. What a hidden connection held back is delivered now."""
        self._is_visible.set()
        if self.accept_mode in (AcceptMode.HIDDEN, AcceptMode.REFUSING):
            await self._stop_accepting()
            self._start_accepting()
        self.accept_mode = AcceptMode.OPEN

    async def restore(self) -> None:
        """Lift every fault."""
        self._delay_s = 0.0
        self._bytes_per_s = None
        self._stall_share = 0.0
        self._bytes_until_cut = None
        self._clients_reading.set()
        await self.unhide()

    def set_delay(self, seconds: float) -> None:
        """Deliver to clients this much later; throughput stays."""
        self._delay_s = seconds

    def set_rate(self, bytes_per_s: float | None) -> None:
        """Deliver to each client at most so many bytes a second; None for no limit."""
        self._bytes_per_s = bytes_per_s

    def set_stalls(self, share: float, seconds: float) -> None:
        """Hold back a share of the pieces, chosen by chance, for so long; `stall_count` counts."""
        self._stall_share, self._stall_s = share, seconds

    def stall(self) -> None:
        """The clients stop reading: what the target sends fills its own buffers."""
        self._clients_reading.clear()

    def unstall(self) -> None:
        self._clients_reading.set()

    def cut(self) -> None:
        """Close all connections now; what was not delivered is lost."""
        for link in list(self._links):
            link.abort_both()

    @property
    def is_cut_pending(self) -> bool:
        """Whether the bytes that `cut_after` allowed are not delivered yet."""
        return self._bytes_until_cut is not None

    def cut_after(self, count: int) -> None:
        """Deliver exactly `count` more bytes to clients, then `cut`."""
        self._bytes_until_cut = count
        if count == 0:
            self._end_budget()

    def _start_accepting(self) -> None:
        self._listener = _bind_socket(self.port)
        self._listener.listen(1024)
        self._accept_task = asyncio.create_task(self._accept_connections(self._listener))

    async def _stop_accepting(self) -> None:
        if self._accept_task is not None:
            self._accept_task.cancel()
            await asyncio.gather(self._accept_task, return_exceptions=True)
            self._accept_task = None
        for filler in self._backlog_fillers:
            filler.close()
        self._backlog_fillers = []
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept_connections(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as failure:  # such as no descriptors; clients would hang if this ended
                self._failures.append(failure)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            self.accepted_at.append(time.monotonic())
            if self.accept_mode is AcceptMode.HANGING_UP:
                client.close()
                continue
            task = asyncio.create_task(self._carry_connection(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry_connection(self, client: socket.socket) -> None:
        try:
            target = await self._connect_to_target()
        except OSError:
            client.close()
            return
        try:
            link = ProxyConnection(await _open_streams(client), await _open_streams(target))
        except OSError as failure:
            self._failures.append(failure)
            client.close()
            target.close()
            return
        self._links.add(link)
        try:
            await link.carry_until_done(self._forward_requests(link), self._forward_responses(link))
        finally:
            self._links.discard(link)
            link.abort_both()

    async def _connect_to_target(self) -> socket.socket:
        if self._target is None:
            raise ConnectionRefusedError("the proxy has no target yet")
        target = socket.socket()
        target.setblocking(False)
        if self._receive_buffer is not None:
            target.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        try:
            await asyncio.get_running_loop().sock_connect(target, self._target)
        except BaseException:
            target.close()
            raise
        return target

    async def _forward_requests(self, connection: ProxyConnection) -> None:
        with self._record_failures():
            async for piece in self.iter_requests(connection.client.reader, connection):
                await self._is_visible.wait()
                self.bytes_to_target += len(piece)
                connection.target.writer.write(piece)
                await connection.target.writer.drain()
        await self._is_visible.wait()

    async def _forward_responses(self, connection: ProxyConnection) -> None:
        fetch = asyncio.create_task(self._queue_responses(connection))
        try:
            while (
                item := await connection.scheduled_pieces.get()
            ) is not None and not connection.is_ending:
                await self._deliver_piece(connection, *item)
        finally:
            fetch.cancel()
            await asyncio.gather(fetch, return_exceptions=True)

    async def _queue_responses(self, connection: ProxyConnection) -> None:
        with self._record_failures():
            async for piece in self.iter_responses(connection.target.reader, connection):
                await self.queue_piece(connection, piece)
                await self._clients_reading.wait()
        await self._is_visible.wait()
        await connection.scheduled_pieces.put(None)

    async def queue_piece(self, connection: ProxyConnection, piece: bytes) -> None:
        """Queue a piece for the client, behind those before it."""
        await connection.scheduled_pieces.put((time.monotonic() + self._delay_s, piece))

    @contextlib.contextmanager
    def _record_failures(self) -> Iterator[None]:
        """Lost connections are the proxy's daily bread; what a test's hook raises is not."""
        try:
            yield
        except OSError:
            pass
        except Exception as failure:
            self._failures.append(failure)

    async def _deliver_piece(
        self, connection: ProxyConnection, due_at: float, piece: bytes
    ) -> None:
        if (wait := due_at - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        if self._stall_share and random.random() < self._stall_share:
            self.stall_count += 1
            await asyncio.sleep(self._stall_s)
        if self._bytes_per_s is not None:
            await asyncio.sleep(len(piece) / self._bytes_per_s)
        await self._clients_reading.wait()
        await self._is_visible.wait()
        if self._bytes_until_cut is not None:
            piece = piece[: self._bytes_until_cut]
            self._bytes_until_cut -= len(piece)
        self.bytes_to_client += len(piece)
        connection.client.writer.write(piece)
        if self._bytes_until_cut == 0:
            connection.end_gracefully()
            self._end_budget()
        await connection.client.writer.drain()

    def _end_budget(self) -> None:
        """The bytes allowed are delivered: every connection ends, later ones are untouched."""
        self._bytes_until_cut = None
        self.cut()

    async def iter_requests(
        self, reader: asyncio.StreamReader, connection: ProxyConnection
    ) -> AsyncIterator[bytes]:
        """Pieces from a client, in the units in which they are passed on."""
        async for piece in _iter_pieces(reader):
            yield piece

    async def iter_responses(
        self, reader: asyncio.StreamReader, connection: ProxyConnection
    ) -> AsyncIterator[bytes]:
        async for piece in _iter_pieces(reader):
            yield piece


class _StreamPair:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer


class ProxyConnection:
    """A client's connection and the one to the target that belongs to it."""

    def __init__(self, client: _StreamPair, target: _StreamPair) -> None:
        self.client = client
        self.target = target
        self.is_ending = False
        self.scheduled_pieces: asyncio.Queue[ScheduledPiece] = asyncio.Queue(maxsize=64)
        self.pending_requests: dict[int, Any] = {}

    async def carry_until_done(self, *directions: Coroutine[Any, Any, None]) -> None:
        """Carry both ways until one side is done; then let what is written arrive."""
        tasks = [asyncio.create_task(way) for way in directions]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for end in (self.client, self.target):
                with contextlib.suppress(OSError):
                    end.writer.close()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self.is_ending:
            for end in (self.client, self.target):
                with contextlib.suppress(OSError):
                    await end.writer.wait_closed()

    def end_gracefully(self) -> None:
        """Flush to the client, then close; a later `abort` leaves that be."""
        self.is_ending = True
        self.client.writer.close()

    def abort_both(self) -> None:
        if not self.is_ending:
            self.client.writer.transport.abort()
        self.target.writer.transport.abort()


async def _iter_pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_READ_SIZE):
            yield piece


async def _open_streams(sock: socket.socket) -> _StreamPair:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _StreamPair(*await asyncio.open_connection(sock=sock))


def _bind_socket(port: int) -> socket.socket:
    """A socket bound to a port: several may be, one of them listens."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def fill_backlog(listener: socket.socket) -> list[socket.socket]:
    """Fill the accept queue: Linux then drops every SYN, as a firewall would (measured)."""
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    return fillers


def _create_set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
