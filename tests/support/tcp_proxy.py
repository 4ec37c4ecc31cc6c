"""A TCP proxy for tests that does to a connection what networks do.

It knows nothing of the bytes it carries. Faults are verbs on one port: hide (a firewall that
drops every packet), refuse (nobody listens), hang up (accept, then close), delay, stall (the
client stops reading), cut (now, or after so many bytes to the client). The port stays the
proxy's own throughout, so that a fault can be lifted again and nobody else takes the port.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from enum import StrEnum
from typing import Any, Self, TypeAlias

_PIECE = 65536

Due: TypeAlias = tuple[float, bytes] | None  # when a piece is due; None ends the stream


class Door(StrEnum):
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
        self,
        host: str | None = None,
        port: int | None = None,
        *,
        receive_buffer: int | None = None,
    ) -> None:
        self.port = 0
        self.connects: list[float] = []
        self.to_client = 0
        self.to_target = 0
        self.door = Door.OPEN
        self._target = None if host is None or port is None else (host, port)
        self._receive_buffer = receive_buffer
        self._latency = 0.0
        self._budget: int | None = None
        self._visible = _set_event()
        self._reading = _set_event()
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holder: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._fillers: list[socket.socket] = []
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
    def open_connections(self) -> int:
        return len(self._links)

    def target(self, host: str, port: int) -> None:
        """Where new connections are forwarded to; may be told after `listen`."""
        self._target = (host, port)

    async def listen(self) -> int:
        """Take a port from the OS (kept until `close`) and begin to accept."""
        self._holder = _bound(0)
        self.port = int(self._holder.getsockname()[1])
        self._open_door()
        return self.port

    async def close(self) -> None:
        """End everything. Raises what a hook raised meanwhile, as an ExceptionGroup."""
        await self._shut_door()
        self.cut()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._holder is not None:
            self._holder.close()
            self._holder = None
        if self._failures:
            raise ExceptionGroup(f"hooks of the proxy on port {self.port} failed", self._failures)

    async def hide(self) -> None:
        """Black hole: connections stay and carry nothing, either way; new ones are not answered."""
        await self._shut_door()
        self.door = Door.HIDDEN
        self._visible.clear()
        self._listener = _bound(self.port)
        self._listener.listen(0)
        self._fillers = _fill_backlog(self._listener, self.port)

    async def refuse(self) -> None:
        """Close all connections; new ones meet a closed port (ECONNREFUSED)."""
        await self._shut_door()
        self._visible.set()
        self.door = Door.REFUSING
        self.cut()

    async def hang_up(self) -> None:
        """Close all connections and every new one at once; `connects` counts the attempts."""
        await self.unhide()
        self.door = Door.HANGING_UP
        self.cut()

    async def unhide(self) -> None:
        """Open to all again. What a hidden connection held back is delivered now."""
        self._visible.set()
        if self.door in (Door.HIDDEN, Door.REFUSING):
            await self._shut_door()
            self._open_door()
        self.door = Door.OPEN

    async def restore(self) -> None:
        """Lift every fault."""
        self._latency = 0.0
        self._budget = None
        self._reading.set()
        await self.unhide()

    def delay(self, seconds: float) -> None:
        """Deliver to clients this much later; throughput stays."""
        self._latency = seconds

    def stall(self) -> None:
        """The clients stop reading: what the target sends fills its own buffers."""
        self._reading.clear()

    def unstall(self) -> None:
        self._reading.set()

    def cut(self) -> None:
        """Close all connections now; what was not delivered is lost."""
        for link in list(self._links):
            link.abort()

    def cut_after(self, count: int) -> None:
        """Deliver exactly `count` more bytes to clients, then `cut`."""
        self._budget = count
        if count == 0:
            self._spent()

    def _open_door(self) -> None:
        self._listener = _bound(self.port)
        self._listener.listen(1024)
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _shut_door(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        for filler in self._fillers:
            filler.close()
        self._fillers = []
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            self.connects.append(time.monotonic())
            if self.door is Door.HANGING_UP:
                client.close()
                continue
            task = asyncio.create_task(self._carry(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, client: socket.socket) -> None:
        try:
            target = await self._connect()
        except OSError:
            client.close()
            return
        link = Link(await _streams(client), await _streams(target))
        self._links.add(link)
        try:
            await link.run(self._upward(link), self._downward(link))
        finally:
            self._links.discard(link)
            link.abort()

    async def _connect(self) -> socket.socket:
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

    async def _upward(self, link: Link) -> None:
        with self._noting_failures():
            async for piece in self.requests(link.client.reader, link):
                await self._visible.wait()
                self.to_target += len(piece)
                link.target.writer.write(piece)
                await link.target.writer.drain()
        await self._visible.wait()

    async def _downward(self, link: Link) -> None:
        fetch = asyncio.create_task(self._read_target(link))
        try:
            while (item := await link.due.get()) is not None and not link.ending:
                await self._deliver(link, *item)
        finally:
            fetch.cancel()
            await asyncio.gather(fetch, return_exceptions=True)

    async def _read_target(self, link: Link) -> None:
        with self._noting_failures():
            async for piece in self.responses(link.target.reader, link):
                await self.send(link, piece)
                await self._reading.wait()
        await self._visible.wait()
        await link.due.put(None)

    async def send(self, link: Link, piece: bytes) -> None:
        """Queue a piece for the client, behind those before it."""
        await link.due.put((time.monotonic() + self._latency, piece))

    @contextlib.contextmanager
    def _noting_failures(self) -> Iterator[None]:
        """Lost connections are the proxy's daily bread; what a test's hook raises is not."""
        try:
            yield
        except OSError:
            pass
        except Exception as failure:
            self._failures.append(failure)

    async def _deliver(self, link: Link, at: float, piece: bytes) -> None:
        if (wait := at - time.monotonic()) > 0:
            await asyncio.sleep(wait)
        await self._reading.wait()
        await self._visible.wait()
        if self._budget is not None:
            piece = piece[: self._budget]
            self._budget -= len(piece)
        self.to_client += len(piece)
        link.client.writer.write(piece)
        if self._budget == 0:
            link.end()
            self._spent()
        await link.client.writer.drain()

    def _spent(self) -> None:
        """The bytes allowed are delivered: every connection ends, later ones are untouched."""
        self._budget = None
        self.cut()

    async def requests(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        """Pieces from a client, in the units in which they are passed on."""
        async for piece in _pieces(reader):
            yield piece

    async def responses(self, reader: asyncio.StreamReader, link: Link) -> AsyncIterator[bytes]:
        async for piece in _pieces(reader):
            yield piece


class _End:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer


class Link:
    """A client's connection and the one to the target that belongs to it."""

    def __init__(self, client: _End, target: _End) -> None:
        self.client = client
        self.target = target
        self.ending = False
        self.due: asyncio.Queue[Due] = asyncio.Queue(maxsize=64)
        self.pending: dict[int, Any] = {}

    async def run(self, *ways: Coroutine[Any, Any, None]) -> None:
        """Carry both ways until one side is done; then let what is written arrive."""
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for end in (self.client, self.target):
                with contextlib.suppress(OSError):
                    end.writer.close()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not self.ending:
            for end in (self.client, self.target):
                with contextlib.suppress(OSError):
                    await end.writer.wait_closed()

    def end(self) -> None:
        """Flush to the client, then close; a later `abort` leaves that be."""
        self.ending = True
        self.client.writer.close()

    def abort(self) -> None:
        if not self.ending:
            self.client.writer.transport.abort()
        self.target.writer.transport.abort()


async def _pieces(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            yield piece


async def _streams(sock: socket.socket) -> _End:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return _End(*await asyncio.open_connection(sock=sock))


def _bound(port: int) -> socket.socket:
    """A socket bound to a port: several may be, one of them listens."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


def _fill_backlog(listener: socket.socket, port: int) -> list[socket.socket]:
    """Fill the accept queue: Linux then drops every SYN, as a firewall would (measured)."""
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(("127.0.0.1", port))
        fillers.append(filler)
    return fillers


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
