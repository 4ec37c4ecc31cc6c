"""Many clients in one loop, each to get the records of its own key, in their order, and no other.

A record says whose it is and which of theirs, `NAME~NUMBER`; it is looked for in the bytes as they
come, so that ten thousand clients cost less than what serves them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Self, cast
from urllib.parse import urlsplit

from support.until import until

CONNECTING = 256  # at the same time
WITHIN = 120.0  # s without any record

_RECORD = re.compile(rb"data: ([^\n~]+)~(\d+)\n")


def value_of(name: str, number: int) -> bytes:
    return b"%b~%d" % (name.encode(), number)


class OwnKey(asyncio.Protocol):
    """One of them. got: records that were the next of its own. wrong: all others, in words."""

    __slots__ = ("_crowd", "_name", "_rest", "begun", "got", "transport", "wrong")

    def __init__(self, crowd: OwnKeys, name: str) -> None:
        self._crowd = crowd
        self._name = name.encode()
        self._rest = b""
        self.got = 0
        self.wrong: list[str] = []
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        request = b"GET /own/%b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        self.transport.write(request % self._name)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not self.begun.done():
            if not data.startswith(b"HTTP/1.1 200 "):
                self.begun.set_exception(ConnectionError(f"no stream: {data[:200]!r}"))
            elif b"event: begin" in data:
                self.begun.set_result(None)
        whole = data.rfind(b"\n\n") + 1
        self._rest = data[whole:]
        for name, number in _RECORD.findall(data, 0, whole):
            self._hear(name, int(number))

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.lost += 1
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("closed before it began"))

    def _hear(self, name: bytes, number: int) -> None:
        if name == self._name and number == self.got:
            self.got += 1
            self._crowd.got += 1
        else:
            self._crowd.wrong += 1
            expected = value_of(self._name.decode(), self.got)
            self.wrong.append(f"{name.decode()}~{number} in place of {expected.decode()}")


class OwnKeys:
    """got, wrong: of all of them. lost: connections that ended."""

    def __init__(self, base_url: str, names: Sequence[str]) -> None:
        self.clients: list[OwnKey] = []
        self.got = self.wrong = self.lost = 0
        self._at = urlsplit(base_url)
        self._names = names

    async def __aenter__(self) -> Self:
        slots = asyncio.Semaphore(CONNECTING)
        try:
            async with asyncio.TaskGroup() as group:
                for name in self._names:
                    group.create_task(self._open(name, slots))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.transport.abort()
        await asyncio.sleep(0)

    async def _open(self, name: str, slots: asyncio.Semaphore) -> None:
        client, loop = OwnKey(self, name), asyncio.get_running_loop()
        async with slots:
            await loop.create_connection(lambda: client, self._at.hostname, self._at.port)
            self.clients.append(client)
            await asyncio.wait_for(client.begun, WITHIN)

    async def have(self, each: int) -> None:
        """Return once every client has so many; or one got what it should not, or nothing comes
        any more."""
        due, before = each * len(self.clients), -1
        while self.got < due and not self.wrong and self.got > before:
            before = self.got
            try:
                await until(lambda: self.got >= due or self.wrong, within=WITHIN, every=0.002)
            except TimeoutError:
                continue

    def told(self, each: int) -> dict[str, int]:
        """What is wrong, counted, where every client was to get so many records."""
        return {
            "foreign or twice": self.wrong,
            "missing": sum(each - client.got for client in self.clients),
            "lost connections": self.lost,
        }
