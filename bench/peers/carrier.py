"""Who carries records to Kafka, or from it, for several clients at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..asking import OFFSET, Asking

Requests = Sequence[Sequence[bytes]]
"""Of each client, those that it sends in turn."""


@dataclass(frozen=True)
class Errand:
    """What is to be done: `produce` or `consume`. clients: at once. batch: records of a request."""

    work: str
    servers: str
    topic: str
    partitions: int
    clients: int
    batch: int


@dataclass
class Carrier:
    """pid: of its process.

    rewind: what is carried from Kafka comes from its start again.
    carry:  so many records; returns when the last has arrived.
    rest:   until nobody asks for more; raises where a record came twice.
    """

    name: str
    pid: int
    rewind: Callable[[], Awaitable[None]]
    carry: Callable[[int], Awaitable[None]]
    rest: Callable[[], Awaitable[None]]


async def nothing() -> None:
    """Where a carrier has nothing to do."""


class Writing:
    """Clients that write over HTTP."""

    def __init__(self, crowd: Sequence[Asking], requests: Requests, batch: int) -> None:
        self._clients = list(zip(crowd, requests, strict=True))
        self._batch = batch
        self._left = 0

    async def carry(self, count: int) -> None:
        """In whole batches."""
        self._left = count
        await asyncio.gather(*(self._write(*client) for client in self._clients))

    async def _write(self, ask: Asking, own: Sequence[bytes]) -> None:
        at = 0
        while self._left > 0:
            self._left -= self._batch
            told = (await ask(own[at % len(own)])).count(OFFSET)
            assert told == self._batch, f"{told} of {self._batch} were written"
            at += 1


class Reading:
    """Clients that read over HTTP."""

    def __init__(self, crowd: Sequence[Asking], requests: Requests) -> None:
        self._clients = list(zip(crowd, requests, strict=True))
        self._left = 0
        self._reading: list[asyncio.Task[None]] = []

    async def carry(self, count: int) -> None:
        """Long polls of clients that have all of theirs are not waited for."""
        self._left, done = count, asyncio.Event()
        self._reading = [asyncio.create_task(self._read(*client, done)) for client in self._clients]
        last = asyncio.create_task(done.wait())
        await asyncio.wait([last, *self._reading], return_when=asyncio.FIRST_COMPLETED)
        last.cancel()

    async def rest(self) -> None:
        await asyncio.gather(*self._reading)
        assert self._left == 0, f"{-self._left} records came more than once"

    async def _read(self, ask: Asking, own: Sequence[bytes], done: asyncio.Event) -> None:
        while self._left > 0:
            got = (await ask(own[0])).count(OFFSET)
            self._left -= got
        done.set()


@asynccontextmanager
async def crowd(port: int, clients: int) -> AsyncIterator[list[Asking]]:
    """So many clients of a server."""
    made = [Asking(port) for _ in range(clients)]
    try:
        yield made
    finally:
        for each in made:
            each.close()
