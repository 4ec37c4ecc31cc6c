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

from support.waiting import wait_until

MAX_CONNECTING = 256  # at the same time
RECORD_TIMEOUT_S = 120.0  # s without any record

_RECORD_PATTERN = re.compile(rb"data: ([^\n~]+)~(\d+)\n")


def build_value(name: str, number: int) -> bytes:
    return b"%b~%d" % (name.encode(), number)


class KeyedClient(asyncio.Protocol):
    """One of them. got: records that were the next of its own. wrong: all others, in words."""

    __slots__ = (
        "_buffer",
        "_clients",
        "_name",
        "begin_future",
        "mismatches",
        "received_count",
        "transport",
    )

    def __init__(self, clients: KeyedClients, name: str) -> None:
        self._clients = clients
        self._name = name.encode()
        self._buffer = b""
        self.received_count = 0
        self.mismatches: list[str] = []
        self.begin_future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        request = b"GET /own/%b HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
        self.transport.write(request % self._name)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        if not self.begin_future.done():
            if not data.startswith(b"HTTP/1.1 200 "):
                self.begin_future.set_exception(ConnectionError(f"no stream: {data[:200]!r}"))
            elif b"event: begin" in data:
                self.begin_future.set_result(None)
        whole = data.rfind(b"\n\n") + 1
        self._buffer = data[whole:]
        for name, number in _RECORD_PATTERN.findall(data, 0, whole):
            self._count_record(name, int(number))

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.lost_count += 1
        if not self.begin_future.done():
            self.begin_future.set_exception(ConnectionError("closed before it began"))

    def _count_record(self, name: bytes, number: int) -> None:
        if name == self._name and number == self.received_count:
            self.received_count += 1
            self._clients.received_count += 1
        else:
            self._clients.mismatch_count += 1
            expected = build_value(self._name.decode(), self.received_count)
            self.mismatches.append(f"{name.decode()}~{number} in place of {expected.decode()}")


class KeyedClients:
    """got, wrong: of all of them. lost: connections that ended."""

    def __init__(self, base_url: str, names: Sequence[str]) -> None:
        self.clients: list[KeyedClient] = []
        self.received_count = self.mismatch_count = self.lost_count = 0
        self._url = urlsplit(base_url)
        self._names = names

    async def __aenter__(self) -> Self:
        slots = asyncio.Semaphore(MAX_CONNECTING)
        try:
            async with asyncio.TaskGroup() as group:
                for name in self._names:
                    group.create_task(self._connect_client(name, slots))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            client.transport.abort()
        await asyncio.sleep(0)

    async def _connect_client(self, name: str, slots: asyncio.Semaphore) -> None:
        client, loop = KeyedClient(self, name), asyncio.get_running_loop()
        async with slots:
            await loop.create_connection(lambda: client, self._url.hostname, self._url.port)
            self.clients.append(client)
            await asyncio.wait_for(client.begin_future, RECORD_TIMEOUT_S)

    async def wait_for_records(self, per_client: int) -> None:
        """Return once every client has so many; or one got what it should not, or nothing comes
        any more."""
        due, before = per_client * len(self.clients), -1
        while (
            self.received_count < due and not self.mismatch_count and self.received_count > before
        ):
            before = self.received_count
            try:
                await wait_until(
                    lambda: self.received_count >= due or self.mismatch_count,
                    timeout_s=RECORD_TIMEOUT_S,
                    interval_s=0.002,
                )
            except TimeoutError:
                continue

    def build_report(self, per_client: int) -> dict[str, int]:
        """What is wrong, counted, where every client was to get so many records."""
        return {
            "foreign or twice": self.mismatch_count,
            "missing": sum(per_client - client.received_count for client in self.clients),
            "lost connections": self.lost_count,
        }
