"""The sidecar, the library that it is built on, and a bridge by hand."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from support.gateways import browsing, config_for, running_gateway

from .. import orders
from ..asking import get, post
from ..machine import pinned
from .carrier import Carrier, Errand, Reading, Requests, Writing, crowd, nothing
from .peer import process

WAIT = 300  # ms of a poll
JOINED = 60.0  # s until all members of a group have their share
BODIES = 20  # different requests of a client, in turn
COMMAND = (sys.executable, "-m", "gateway", "sidecar", "-c")

# As the library's own defaults, and aiokafka's: the sidecar's are a tenth of it, for small pods.
FETCHED = {"maxPartitionFetchBytes": "1MiB", "fetchMaxBytes": "16MiB", "requestMaxBytes": "16MiB"}
LIBRARY, BRIDGE = "library, no HTTP", "bridge, json"

# How a value is written in the body of a request.
FORMATS: Mapping[str, Callable[[int], Any]] = {
    "json": orders.order,
    "string": lambda n: orders.written(n).decode(),
    "binary": lambda n: b64encode(orders.written(n)).decode(),
}


@dataclass(frozen=True)
class Carriers:
    """All of them, as what takes part in a bench."""

    name: str = "sidecar"
    skips: frozenset[str] = frozenset()

    def missing(self) -> str:
        return ""


@asynccontextmanager
async def library(errand: Errand) -> AsyncIterator[Carrier]:
    async with _process("library_server", errand) as (pid, (port,)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def say(line: bytes) -> None:
            writer.write(line)
            assert await reader.readline() == line, "the library failed"

        async def carry(count: int) -> None:
            await say(b"%d\n" % count)

        async def rewind() -> None:
            await say(b"rewind\n")

        try:
            yield Carrier(LIBRARY, pid, rewind, carry, nothing)
        finally:
            writer.close()


@asynccontextmanager
async def bridge(errand: Errand) -> AsyncIterator[Carrier]:
    async with (
        _process("bridge_server", errand) as (pid, (port,)),
        crowd(port, errand.clients) as clients,
    ):

        async def shares() -> list[int]:
            found: list[int] = orjson.loads(await clients[0](post("/rewind", b"")))
            return found

        async def rewound() -> None:
            await _joined(shares, errand)

        if errand.work == "produce":
            requests = _writes(errand, "/produce", "json")
            writing = Writing(clients, requests, errand.batch)
            yield Carrier(BRIDGE, pid, nothing, writing.carry, nothing)
        else:
            reads = [[get(f"/records/{n}")] for n in range(errand.clients)]
            reading = Reading(clients, reads)
            yield Carrier(BRIDGE, pid, rewound, reading.carry, reading.rest)


@asynccontextmanager
async def sidecar(errand: Errand, formats: Sequence[str]) -> AsyncIterator[list[Carrier]]:
    """One process, and a carrier for each format of values."""
    consumer = {"maxPollRecords": errand.batch, **FETCHED}
    section = {"producer": {}, "consumer": consumer}
    config = config_for(errand.servers, [], [], sidecar=section)
    async with (
        running_gateway(config, command=pinned(*COMMAND)) as gateway,
        browsing(gateway) as http,
        crowd(gateway.port, errand.clients) as clients,
    ):
        pid, path = gateway.pid, f"/producers/{errand.topic}"
        if errand.work == "produce":
            writing = [
                Writing(clients, _writes(errand, path, each), errand.batch) for each in formats
            ]
            yield [
                Carrier(f"sidecar, {format}", pid, nothing, each.carry, nothing)
                for format, each in zip(formats, writing, strict=True)
            ]
            return
        group = Group(http, errand, [await _member(http, errand.topic) for _ in clients])
        reading = [Reading(clients, group.reads(each)) for each in formats]
        yield [
            Carrier(f"sidecar, {format}", pid, group.rewind, each.carry, each.rest)
            for format, each in zip(formats, reading, strict=True)
        ]


class Group:
    """Consumer instances of the sidecar, each of which has its share of the partitions."""

    def __init__(self, http: httpx.AsyncClient, errand: Errand, members: Sequence[str]) -> None:
        self._http, self._errand, self._members = http, errand, members
        self._owned: list[Any] = []

    def reads(self, format: str) -> Requests:
        query = f"timeout={WAIT}&keyFormat=string&valueFormat={format}"
        return [[get(f"{member}/records?{query}")] for member in self._members]

    async def rewind(self) -> None:
        await _joined(self._shares, self._errand)
        for member, owned in zip(self._members, self._owned, strict=True):
            answer = await self._http.post(f"{member}/positions/beginning", json=owned)
            answer.raise_for_status()

    async def _shares(self) -> list[int]:
        answers = [await self._http.get(f"{each}/assignments") for each in self._members]
        self._owned = [answer.raise_for_status().json()[0] for answer in answers]
        return [len(each["partitions"]) for each in self._owned]


async def _member(http: httpx.AsyncClient, topic: str) -> str:
    """The path of a new one."""
    wanted = {"autoOffsetReset": "earliest"}
    made = (await http.post("/consumers/sidecar", json=wanted)).raise_for_status().json()
    path = f"/consumers/sidecar/instances/{made['instanceId']}"
    subscribed = await http.post(f"{path}/subscriptions", json={"topics": [topic]})
    subscribed.raise_for_status()
    return path


async def _joined(shares: Callable[[], Awaitable[Sequence[int]]], errand: Errand) -> None:
    """Until all partitions are given, and everybody has some."""

    async with asyncio.timeout(JOINED):
        while True:
            found = await shares()
            if sum(found) == errand.partitions and min(found) > 0:
                return
            await asyncio.sleep(0.1)


def _writes(errand: Errand, path: str, format: str) -> Requests:
    bodies = [_body(n * errand.batch, errand.batch, format) for n in range(BODIES)]
    return [[post(path, body) for body in bodies]] * errand.clients


def _body(first: int, count: int, format: str) -> bytes:
    written = FORMATS[format]
    numbers = range(first, first + count)
    records = [{"key": orders.key(n), "value": written(n)} for n in numbers]
    return orjson.dumps({"keyFormat": "string", "valueFormat": format, "records": records})


def _process(
    module: str, errand: Errand
) -> AbstractAsyncContextManager[tuple[int, tuple[int, ...]]]:
    numbers = str(errand.clients), str(errand.batch)
    about = errand.work, errand.servers, errand.topic, *numbers
    return process(sys.executable, "-m", f"bench.peers.{module}", *about)
