"""Define the servers that write records to Kafka or read them for several clients at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..http_client import OFFSET_KEY, HttpClient

ClientRequests = Sequence[Sequence[bytes]]
"""Of each client, those that it sends in turn."""


@dataclass(frozen=True)
class TransferTask:
    """What is to be done: `produce` or `consume`. clients: at once. batch: records of a request."""

    work: str
    servers: str
    topic: str
    partitions: int
    client_count: int
    batch_records: int


@dataclass
class TransferServer:
    """pid: of its process.

    rewind: what is carried from Kafka comes from its start again.
    carry:  so many records; returns when the last has arrived.
    rest:   until nobody asks for more; raises where a record came twice.
    """

    name: str
    pid: int
    rewind: Callable[[], Awaitable[None]]
    transfer: Callable[[int], Awaitable[None]]
    finish: Callable[[], Awaitable[None]]


async def do_nothing() -> None:
    """Where a carrier has nothing to do."""


class WritingClients:
    """Clients that write over HTTP."""

    def __init__(
        self, clients: Sequence[HttpClient], requests: ClientRequests, batch_records: int
    ) -> None:
        self._clients = list(zip(clients, requests, strict=True))
        self._batch_records = batch_records
        self._remaining = 0

    async def transfer(self, count: int) -> None:
        """In whole batches."""
        self._remaining = count
        await asyncio.gather(*(self._write(*client) for client in self._clients))

    async def _write(self, client: HttpClient, requests: Sequence[bytes]) -> None:
        at = 0
        while self._remaining > 0:
            self._remaining -= self._batch_records
            told = (await client(requests[at % len(requests)])).count(OFFSET_KEY)
            assert told == self._batch_records, f"{told} of {self._batch_records} were written"
            at += 1


class ReadingClients:
    """Clients that read over HTTP."""

    def __init__(self, clients: Sequence[HttpClient], requests: ClientRequests) -> None:
        self._clients = list(zip(clients, requests, strict=True))
        self._remaining = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def transfer(self, count: int) -> None:
        """Long polls of clients that have all of theirs are not waited for."""
        self._remaining, done = count, asyncio.Event()
        self._tasks = [asyncio.create_task(self._read(*client, done)) for client in self._clients]
        last = asyncio.create_task(done.wait())
        await asyncio.wait([last, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        last.cancel()

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks)
        assert self._remaining == 0, f"{-self._remaining} records came more than once"

    async def _read(
        self, client: HttpClient, requests: Sequence[bytes], done: asyncio.Event
    ) -> None:
        while self._remaining > 0:
            got = (await client(requests[0])).count(OFFSET_KEY)
            self._remaining -= got
        done.set()


@asynccontextmanager
async def open_clients(port: int, count: int) -> AsyncIterator[list[HttpClient]]:
    """So many clients of a server."""
    made = [HttpClient(port) for _ in range(count)]
    try:
        yield made
    finally:
        for each in made:
            each.close()
