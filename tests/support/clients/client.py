"""What all SSE clients of the tests have in common.

Each is a black box that somebody else wrote and browsers or programs really use. Between it and
the server stands a TCP proxy, so that every one of them can be cut at any byte, kept waiting or
led to another server without knowing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Self, TypedDict
from urllib.parse import urlsplit

from support.tcp_proxy import TcpProxy
from support.waiting import WAIT_TIMEOUT_S, wait_until


class ReceivedEvent(TypedDict):
    event: str
    id: str
    data: str


class SseClient(ABC):
    """A client of one stream: `async with XClient(url) as client`.

    events:  all it got, over all connections, in its own order.
    errors:  what it complained of, in its own words.
    opened:  how many times it had a stream, where it tells.
    closed:  it has given up for good.
    network: the proxy in front of the server: `delay`, `stall`, `hide`...
    """

    name: ClassVar[str]
    reconnects_itself: ClassVar[bool]  # by itself; others connect again on `resume`

    def __init__(
        self, url: str, *, last_event_id: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        self.events: list[ReceivedEvent] = []
        self.errors: list[str] = []
        self.open_count = 0
        self.is_closed = False
        self.headers = dict(headers or {})
        self.proxy = TcpProxy()
        self._initial_id = last_event_id
        self._url_parts = urlsplit(url)

    async def __aenter__(self) -> Self:
        await self.proxy.listen()
        self.set_server(self._url_parts.netloc)
        try:
            await self.start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.stop()
        finally:
            await self.proxy.close()

    @property
    def url(self) -> str:
        """The stream's address, by way of the proxy."""
        return self._url_parts._replace(netloc=self.proxy.address).geturl()

    @property
    def is_ended(self) -> bool:
        """It reads nothing more unless it is told to `resume`."""
        return self.is_closed

    @property
    def last_event_id(self) -> str:
        """What it should resume with."""
        return self.events[-1]["id"] if self.events else self._initial_id

    def set_server(self, netloc: str) -> None:
        """From the next connection on, talk to the server at host:port."""
        host, _, port = netloc.removeprefix("http://").rpartition(":")
        self.proxy.set_target(host, int(port))

    @abstractmethod
    async def start(self) -> None:
        """Connect, with `last_event_id`."""

    @abstractmethod
    async def stop(self) -> None:
        """End it and all that it started; its events stay."""

    def cut(self) -> None:
        """The network fails now."""
        self.proxy.cut()

    def cut_after(self, count: int) -> None:
        """The network fails `count` bytes (of HTTP) further on."""
        self.proxy.cut_after(count)

    async def reconnect(self) -> None:
        """Connect again after a cut; does nothing for those that do so by themselves."""
        if not self.reconnects_itself:
            await self.stop()
            await self.start()

    async def wait_for_events(
        self,
        enough: int | Callable[[Sequence[ReceivedEvent]], object],
        within: float = WAIT_TIMEOUT_S,
    ) -> None:
        """Until it has so many events, or the condition on its events holds."""
        met = (lambda events: len(events) >= enough) if isinstance(enough, int) else enough
        await wait_until(lambda: met(self.events), self.describe_state, within)

    def describe_state(self) -> str:
        """For messages of failure."""
        last = self.events[-1] if self.events else None
        return f"{self.name} has {len(self.events)} events, last {last}, errors {self.errors[-5:]}"


class ProcessClient(SseClient):
    """A client that is a process of its own and writes to its standard output."""

    def __init__(
        self, url: str, *, last_event_id: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(url, last_event_id=last_event_id, headers=headers)
        self._process: Process | None = None
        self._readers: list[asyncio.Task[None]] = []

    @abstractmethod
    async def build_command(self) -> Sequence[str]: ...

    @abstractmethod
    def feed_output(self, data: bytes) -> None:
        """Bytes of its standard output, cut anywhere."""

    async def start(self) -> None:
        command = await self.build_command()
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        assert self._process.stdout and self._process.stderr
        self._readers = [
            asyncio.create_task(_read_stream(self._process.stdout, self.feed_output)),
            asyncio.create_task(_read_stream(self._process.stderr, self._feed_errors)),
        ]

    async def stop(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):  # its children, too: the group is its own
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)
        self._process = None

    @property
    def is_ended(self) -> bool:
        return self.is_closed or self._process is None or self._process.returncode is not None

    def _feed_errors(self, piece: bytes) -> None:
        self.errors += piece.decode(errors="replace").splitlines()


async def _read_stream(stream: asyncio.StreamReader, consume: Callable[[bytes], None]) -> None:
    while piece := await stream.read(65536):
        consume(piece)
