"""Run the sidecar, the library that it is built on, and a bridge that is written by hand."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from support.gateways import build_config, create_http_client, running_gateway_process

from .. import orders
from ..http_client import build_get, build_post
from ..machine import pin_command
from .gateway_peer import build_environment
from .peer import ROOT, running_process
from .transfer import (
    ClientRequests,
    ReadingClients,
    TransferServer,
    TransferTask,
    WritingClients,
    do_nothing,
    open_clients,
)

POLL_TIMEOUT_MS = 300  # ms of a poll
JOIN_TIMEOUT_S = 60.0  # s until all members of a group have their share
BODIES_PER_CLIENT = 20  # different requests of a client, in turn
SIDECAR_COMMAND = (sys.executable, "-m", "gateway", "sidecar", "-c")

# As the library's own defaults, and aiokafka's: the sidecar's are a tenth of it, for small pods.
FETCH_LIMITS = {
    "maxPartitionFetchBytes": "1MiB",
    "fetchMaxBytes": "16MiB",
    "requestMaxBytes": "16MiB",
}
LIBRARY, BRIDGE = "library, no HTTP", "bridge, json"

# How a value is written in the body of a request.
FORMATS: Mapping[str, Callable[[int], Any]] = {
    "json": orders.build_order,
    "string": lambda n: orders.encode_order(n).decode(),
    "binary": lambda n: b64encode(orders.encode_order(n)).decode(),
}


@dataclass(frozen=True)
class TransferPeer:
    """All of them, as what takes part in a bench. checkout: the folder whose sidecar it is."""

    name: str = "sidecar"
    checkout: Path = ROOT
    skipped_works: frozenset[str] = frozenset()

    def describe_missing(self) -> str:
        return ""


@asynccontextmanager
async def running_library(task: TransferTask) -> AsyncIterator[TransferServer]:
    async with _running_server("library_server", task) as (pid, (port,)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def send_line(line: bytes) -> None:
            writer.write(line)
            assert await reader.readline() == line, "the library failed"

        async def transfer(count: int) -> None:
            await send_line(b"%d\n" % count)

        async def rewind() -> None:
            await send_line(b"rewind\n")

        try:
            yield TransferServer(LIBRARY, pid, rewind, transfer, do_nothing)
        finally:
            writer.close()


@asynccontextmanager
async def running_bridge(task: TransferTask) -> AsyncIterator[TransferServer]:
    async with (
        _running_server("bridge_server", task) as (pid, (port,)),
        open_clients(port, task.client_count) as clients,
    ):

        async def get_shares() -> list[int]:
            found: list[int] = orjson.loads(await clients[0](build_post("/rewind", b"")))
            return found

        async def rewind() -> None:
            await _wait_for_shares(get_shares, task)

        if task.work == "produce":
            requests = _build_writes(task, "/produce", "json")
            writing = WritingClients(clients, requests, task.batch_records)
            yield TransferServer(BRIDGE, pid, do_nothing, writing.transfer, do_nothing)
        else:
            reads = [[build_get(f"/records/{n}")] for n in range(task.client_count)]
            reading = ReadingClients(clients, reads)
            yield TransferServer(BRIDGE, pid, rewind, reading.transfer, reading.finish)


@asynccontextmanager
async def running_sidecar(
    task: TransferTask, formats: Sequence[str], checkout: Path
) -> AsyncIterator[list[TransferServer]]:
    """One process, and a carrier for each format of values."""
    consumer = {"maxPollRecords": task.batch_records, **FETCH_LIMITS}
    section = {"producer": {}, "consumer": consumer}
    config = build_config(task.servers, [], [], sidecar=section)
    async with (
        running_gateway_process(
            config,
            command=pin_command(*SIDECAR_COMMAND),
            environment=build_environment(checkout),
        ) as gateway,
        create_http_client(gateway) as http,
        open_clients(gateway.port, task.client_count) as clients,
    ):
        pid, path = gateway.pid, f"/producers/{task.topic}"
        if task.work == "produce":
            writing = [
                WritingClients(clients, _build_writes(task, path, each), task.batch_records)
                for each in formats
            ]
            yield [
                TransferServer(f"sidecar, {format}", pid, do_nothing, each.transfer, do_nothing)
                for format, each in zip(formats, writing, strict=True)
            ]
            return
        group = SidecarGroup(http, task, [await _create_member(http, task.topic) for _ in clients])
        reading = [ReadingClients(clients, group.build_reads(each)) for each in formats]
        yield [
            TransferServer(f"sidecar, {format}", pid, group.rewind, each.transfer, each.finish)
            for format, each in zip(formats, reading, strict=True)
        ]


class SidecarGroup:
    """Consumer instances of the sidecar, each of which has its share of the partitions."""

    def __init__(self, http: httpx.AsyncClient, task: TransferTask, members: Sequence[str]) -> None:
        self._http, self._task, self._members = http, task, members
        self._assignments: list[Any] = []

    def build_reads(self, format: str) -> ClientRequests:
        query = f"timeout={POLL_TIMEOUT_MS}&keyFormat=string&valueFormat={format}"
        return [[build_get(f"{member}/records?{query}")] for member in self._members]

    async def rewind(self) -> None:
        await _wait_for_shares(self._fetch_shares, self._task)
        for member, owned in zip(self._members, self._assignments, strict=True):
            answer = await self._http.post(f"{member}/positions/beginning", json=owned)
            answer.raise_for_status()

    async def _fetch_shares(self) -> list[int]:
        answers = [await self._http.get(f"{each}/assignments") for each in self._members]
        self._assignments = [answer.raise_for_status().json()[0] for answer in answers]
        return [len(each["partitions"]) for each in self._assignments]


async def _create_member(http: httpx.AsyncClient, topic: str) -> str:
    """The path of a new one."""
    wanted = {"autoOffsetReset": "earliest"}
    made = (await http.post("/consumers/sidecar", json=wanted)).raise_for_status().json()
    path = f"/consumers/sidecar/instances/{made['instanceId']}"
    subscribed = await http.post(f"{path}/subscriptions", json={"topics": [topic]})
    subscribed.raise_for_status()
    return path


async def _wait_for_shares(
    get_shares: Callable[[], Awaitable[Sequence[int]]], task: TransferTask
) -> None:
    """Until all partitions are given, and everybody has some."""

    async with asyncio.timeout(JOIN_TIMEOUT_S):
        while True:
            found = await get_shares()
            if sum(found) == task.partitions and min(found) > 0:
                return
            await asyncio.sleep(0.1)


def _build_writes(task: TransferTask, path: str, format: str) -> ClientRequests:
    bodies = [
        _build_body(n * task.batch_records, task.batch_records, format)
        for n in range(BODIES_PER_CLIENT)
    ]
    return [[build_post(path, body) for body in bodies]] * task.client_count


def _build_body(first: int, count: int, format: str) -> bytes:
    written = FORMATS[format]
    numbers = range(first, first + count)
    records = [{"key": orders.build_key(n), "value": written(n)} for n in numbers]
    return orjson.dumps({"keyFormat": "string", "valueFormat": format, "records": records})


def _running_server(
    module: str, task: TransferTask
) -> AbstractAsyncContextManager[tuple[int, tuple[int, ...]]]:
    numbers = str(task.client_count), str(task.batch_records)
    about = task.work, task.servers, task.topic, *numbers
    return running_process(sys.executable, "-m", f"bench.peers.{module}", *about)
