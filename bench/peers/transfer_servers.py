"""Run the sidecar and the library that it is built on, to write records or to read them."""

from __future__ import annotations

import asyncio
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from support.gateways import build_config, create_http_client, running_gateway_process
from support.waiting import wait_until

from ..machine import pin_command
from . import orders
from .gateway_peer import build_environment
from .peer import ROOT, Participant, running_process

LIBRARY = "library, no HTTP"
RECORDS_PER_CPU = "records of a CPU second"
OFFSET_KEY = b'"offset"'  # comes once in what is said of a record, and in no value
POLL_TIMEOUT_MS = 300  # ms of a poll
JOIN_TIMEOUT_S = 60.0  # s until all members of a group have their share
BODY_COUNT = 20  # different requests, in turn
SIDECAR_COMMAND = (sys.executable, "-m", "gateway", "sidecar", "-c")
JSON_HEADERS = {"Content-Type": "application/json"}

# As the library's own defaults, and aiokafka's: the sidecar's are a tenth of it, for small pods.
FETCH_LIMITS = {
    "maxPartitionFetchBytes": "1MiB", "fetchMaxBytes": "16MiB", "requestMaxBytes": "16MiB",
}  # fmt: skip
# How a value is written in the body of a request.
FORMATS: Mapping[str, Callable[[int], Any]] = {
    "json": orders.build_order,
    "string": lambda n: orders.encode_order(n).decode(),
    "binary": lambda n: b64encode(orders.encode_order(n)).decode(),
}


@dataclass(frozen=True)
class TransferPeer(Participant):
    """Both, as what takes part in a bench. checkout: the folder whose sidecar it is."""

    kind = "sidecar"
    checkout: Path = ROOT


@dataclass(frozen=True)
class TransferTask:
    """What is to be done: `produce` or `consume`. client_count: at once."""

    work: str
    servers: str
    topic: str
    partitions: int
    client_count: int
    batch_records: int


async def do_nothing() -> None:
    """Where a server has nothing to do."""


@dataclass
class TransferServer:
    """A server that carries records. transfer: so many; returns when the last has arrived.

    rewind: what is carried from Kafka comes from its start again.
    finish: return when nobody asks for more; raises where a record came twice.
    """

    name: str
    pid: int
    transfer: Callable[[int], Awaitable[None]]
    rewind: Callable[[], Awaitable[None]] = do_nothing
    finish: Callable[[], Awaitable[None]] = do_nothing


@asynccontextmanager
async def running_library(task: TransferTask) -> AsyncIterator[TransferServer]:
    numbers = str(task.client_count), str(task.batch_records)
    about = task.work, task.servers, task.topic, *numbers
    command = (sys.executable, "-m", "bench.peers.library_server", *about)
    async with running_process(*command) as (pid, (port,)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def transfer(count: int) -> None:
            line = b"%d\n" % count
            writer.write(line)
            assert await reader.readline() == line, "the library failed"

        try:
            yield TransferServer(LIBRARY, pid, transfer, rewind=lambda: transfer(0))
        finally:
            writer.close()


@asynccontextmanager
async def running_sidecar(
    task: TransferTask, formats: Sequence[str], checkout: Path
) -> AsyncIterator[list[TransferServer]]:
    """One process, and a server for each format of values."""
    consumer = {"maxPollRecords": task.batch_records, **FETCH_LIMITS}
    config = build_config(task.servers, [], [], sidecar={"producer": {}, "consumer": consumer})
    environment = build_environment(checkout)
    async with (
        running_gateway_process(
            config, command=pin_command(*SIDECAR_COMMAND), environment=environment
        ) as gateway,
        create_http_client(gateway) as http,
    ):
        if task.work == "produce":
            yield [
                TransferServer(f"sidecar, {each}", gateway.pid, _build_writer(http, task, each))
                for each in formats
            ]
            return
        group = SidecarGroup(http, task)
        await group.join()
        readers = {each: Readers(http, group.members, each) for each in formats}
        yield [
            TransferServer(
                f"sidecar, {name}", gateway.pid, each.transfer, group.rewind, each.finish
            )
            for name, each in readers.items()
        ]


def _build_writer(
    http: httpx.AsyncClient, task: TransferTask, format: str
) -> Callable[[int], Awaitable[None]]:
    """Clients that write so many records, in whole batches."""
    bodies = [
        _build_body(n * task.batch_records, task.batch_records, format) for n in range(BODY_COUNT)
    ]

    async def transfer(count: int) -> None:
        batches = iter(range(count // task.batch_records))

        async def write_batches() -> None:
            for n in batches:
                body, path = bodies[n % len(bodies)], f"/producers/{task.topic}"
                answer = await http.post(path, content=body, headers=JSON_HEADERS)
                told = answer.raise_for_status().content.count(OFFSET_KEY)
                assert told == task.batch_records, f"{told} of {task.batch_records} were written"

        await asyncio.gather(*(write_batches() for _ in range(task.client_count)))

    return transfer


def _build_body(first: int, count: int, format: str) -> bytes:
    encode = FORMATS[format]
    numbers = range(first, first + count)
    records = [{"key": orders.build_key(n), "value": encode(n)} for n in numbers]
    return orjson.dumps({"keyFormat": "string", "valueFormat": format, "records": records})


class SidecarGroup:
    """Consumer instances of the sidecar, each of which has its share of the partitions."""

    def __init__(self, http: httpx.AsyncClient, task: TransferTask) -> None:
        self.members: list[str] = []
        self._http, self._task = http, task

    async def join(self) -> None:
        for _ in range(self._task.client_count):
            made = await self._post("/consumers/sidecar", {"autoOffsetReset": "earliest"})
            path = f"/consumers/sidecar/instances/{made.json()['instanceId']}"
            await self._post(f"{path}/subscriptions", {"topics": [self._task.topic]})
            self.members.append(path)

    async def rewind(self) -> None:
        """Read from the start, once all partitions are given, and everybody has some."""
        async with asyncio.timeout(JOIN_TIMEOUT_S):
            while True:
                answers = [await self._http.get(f"{each}/assignments") for each in self.members]
                assignments = [answer.raise_for_status().json()[0] for answer in answers]
                shares = [len(each["partitions"]) for each in assignments]
                if sum(shares) == self._task.partitions and min(shares) > 0:
                    break
                await asyncio.sleep(0.1)
        for member, owned in zip(self.members, assignments, strict=True):
            await self._post(f"{member}/positions/beginning", owned)

    async def _post(self, path: str, content: Any) -> httpx.Response:
        return (await self._http.post(path, json=content)).raise_for_status()


class Readers:
    """Clients that read by the members of a group."""

    def __init__(self, http: httpx.AsyncClient, members: Sequence[str], format: str) -> None:
        query = f"timeout={POLL_TIMEOUT_MS}&keyFormat=string&valueFormat={format}"
        self._http = http
        self._paths = [f"{member}/records?{query}" for member in members]
        self._remaining = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def transfer(self, count: int) -> None:
        """Long polls of clients that have all of theirs are not waited for."""
        self._remaining = count
        self._tasks = [asyncio.create_task(self._read(path)) for path in self._paths]
        await wait_until(
            lambda: self._remaining <= 0 or any(task.done() for task in self._tasks),
            interval_s=0.001,
        )

    async def finish(self) -> None:
        await asyncio.gather(*self._tasks)
        assert self._remaining == 0, f"{-self._remaining} records came more than once"

    async def _read(self, path: str) -> None:
        while self._remaining > 0:
            answer = await self._http.get(path)
            self._remaining -= answer.raise_for_status().content.count(OFFSET_KEY)
