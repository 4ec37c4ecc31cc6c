"""Serve very many clients in one process, without sockets.

    python -m bench.crowded_gateway OPTIONS

It is the application as `gateway run` serves it, with streams as requests open them: routes,
limits, registry, hub, channels, rounds and heartbeats. Only the connections are missing: an outlet
counts what is written to it. The options are one JSON object (`Options`); so is each line printed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx
from aiokafka import AIOKafkaProducer
from starlette.requests import Request
from support.gateways import build_config
from support.waiting import wait_until

from gateway.config import Settings
from gateway.hub.wires.sse import SseWire
from gateway.hub.wires.wrapping import ChunkedWire
from gateway.web.app.app import Application, create_app, tune_garbage_collector
from gateway.web.routing.routes import Routes
from gateway.web.streams.http_stream import HttpStream

from .machine import get_pss_bytes
from .timed_gateway import GarbageTimer, TimedLoop, long_callbacks

WIRE = ChunkedWire(SseWire())
OPENS_PER_TURN = 100  # streams that are opened before other tasks run
WITHIN_S = 600.0


@dataclass(frozen=True)
class Options:
    """counts: clients at which everything is measured. records: sent one by one at each count.

    own_keys: each client has a view of its own, and gets nothing of the others'.
    """

    servers: str
    topic: str
    counts: tuple[int, ...]
    own_keys: bool = False
    records: int = 5
    idle_s: float = 5.0


@dataclass
class Phase:
    """What one phase took. longest: callback, in seconds of CPU, and what it was."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    longest_cpu_s: float = 0.0
    longest: str = ""
    longest_pause_s: float = 0.0  # of the garbage collector


@dataclass
class Result:
    """At one count of clients. sizes in bytes, times in seconds.

    garbage: objects that were not freed by their reference counts, but by a collection at the end.
    """

    clients: int
    bytes_per_client: float = 0.0
    open_cpu_s: float = 0.0  # of a client
    phases: dict[str, Phase] = field(default_factory=dict)
    garbage: int = 0


@dataclass(slots=True)
class Totals:
    writes: int = 0
    finished: int = 0


class CountingOutlet:
    """A connection that takes everything at once, and keeps none of it."""

    __slots__ = ("_totals",)
    full = False
    transport = None

    def __init__(self, totals: Totals) -> None:
        self._totals = totals

    def write(self, data: bytes) -> None:
        self._totals.writes += 1

    def finish(self, data: bytes) -> None:
        self._totals.finished += 1

    def hand_over(self) -> None:
        raise AssertionError("nothing is reloaded")


class CrowdedGateway:
    def __init__(self, app: Application, options: Options) -> None:
        self._app = app
        self._options = options
        # Starlette keeps what the middleware was created with.
        self._routes: Routes = app.user_middleware[-1].kwargs["routes"]
        self._totals = Totals()
        self._streams: list[HttpStream] = []
        self._sent_count = 0
        self._producer: AIOKafkaProducer

    async def measure(self) -> AsyncIterator[Result]:
        async with AIOKafkaProducer(bootstrap_servers=self._options.servers) as self._producer:
            await self._open_streams(10)
            await self._send_record()  # what is made once is made
            for count in self._options.counts:
                yield await self._measure_count(count)

    async def _measure_count(self, count: int) -> Result:
        result, opened = Result(count), count - len(self._streams)
        before = get_pss_bytes(os.getpid())
        with measure_phase(result, "open"):
            await self._open_streams(opened)
        result.open_cpu_s = result.phases["open"].cpu_s / max(1, opened)
        gc.collect()
        result.bytes_per_client = (get_pss_bytes(os.getpid()) - before) / max(1, opened)
        with measure_phase(result, "records"):
            for _ in range(self._options.records):
                await self._send_record()
        with measure_phase(result, "idle"):
            await asyncio.sleep(self._options.idle_s)
        for name, app, path in (
            ("scrape", self._app, "/metrics"),
            ("list", self._app.admin.app, "/streams"),
        ):
            with measure_phase(result, name):
                await _get(app, path)
        token = self._streams[-1].client.subscription.token.decode()  # type: ignore[union-attr]
        finished = self._totals.finished
        with measure_phase(result, "drain"):
            for hub in self._app.gateway.hubs:
                hub.drain()
            await wait_until(lambda: self._totals.finished - finished == count, timeout_s=WITHIN_S)
        for hub in self._app.gateway.hubs:
            hub.draining = False
        self._streams.clear()
        await self._send_record(is_heard=False)
        with measure_phase(result, "return"):
            await self._open_streams(count, token)
            await self._wait_until_live()
        result.garbage = gc.collect()
        return result

    async def _wait_until_live(self) -> None:
        waiting = list(self._streams)

        def are_live() -> bool:
            while waiting:
                client = waiting[-1].client
                if client is None or client.state is not None:
                    return False
                waiting.pop()
            return True

        await wait_until(are_live, timeout_s=WITHIN_S)

    async def _open_streams(self, count: int, token: str = "") -> None:
        first = len(self._streams)
        for number in range(first, first + count):
            self._streams.append(await self._open_stream(number, token))
            if number % OPENS_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _open_stream(self, number: int, token: str) -> HttpStream:
        path = f"/own/{number}" if self._options.own_keys else "/all"
        headers = [(b"accept", b"text/event-stream"), (b"host", b"localhost")]
        if token:
            headers.append((b"last-event-id", token.encode()))
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET", "path": path,
            "raw_path": path.encode(), "query_string": b"", "headers": headers, "scheme": "http",
            "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80), "root_path": "",
        }  # fmt: skip
        request = Request(scope)
        match = await self._routes.admit(self._routes.match(path, "GET"), request)
        stream = await HttpStream.open(self._routes, match, request, WIRE)
        await stream.wait_until_ready()
        stream.attach(CountingOutlet(self._totals), b"")  # type: ignore[arg-type]
        return stream

    async def _send_record(self, *, is_heard: bool = True) -> None:
        """Send a record, and return when every client whose it is has it."""
        expected = 1 if self._options.own_keys else len(self._streams)
        before = self._totals.writes
        key = b"%d" % (self._sent_count % max(1, len(self._streams)))
        value = b'{"order":%d,"pad":"%b"}' % (self._sent_count, b"x" * 480)
        self._sent_count += 1
        await self._producer.send_and_wait(self._options.topic, value, key, partition=0)
        if is_heard:
            # Heartbeats are writes, too: more than one each is no record lost.
            await wait_until(lambda: self._totals.writes - before >= expected, timeout_s=WITHIN_S)


async def _get(app: Any, path: str) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        (await http.get(path)).raise_for_status()


@contextmanager
def measure_phase(result: Result, name: str) -> Iterator[None]:
    long_callbacks.clear()
    wall, cpu = time.monotonic(), time.process_time()
    yield
    phase = Phase(time.monotonic() - wall, time.process_time() - cpu)
    pauses = [each for each in long_callbacks if each["what"].startswith("garbage")]
    phase.longest_pause_s = max((each["cpu"] for each in pauses), default=0.0)
    # What this process does besides, such as to open streams, is none of the gateway's callbacks.
    callbacks = [
        each for each in long_callbacks if each not in pauses and " run at " not in each["what"]
    ]
    if callbacks:
        worst = max(callbacks, key=lambda each: each["cpu"])
        phase.longest_cpu_s = worst["cpu"]
        phase.longest = worst["what"][:200]
    result.phases[name] = phase


@asynccontextmanager
async def running_app(options: Options) -> AsyncIterator[Application]:
    path, filters = ("/own/{key}", [{"key": "${params.key}"}]) if options.own_keys else ("/all", [])
    target = {"topic": options.topic, "format": "value", "filters": filters, "compression": "none"}
    admin = {"admin": {"port": 0}}
    config = build_config(
        options.servers, [options.topic], [{"when": [{"path": path}], "with": target}], **admin
    )
    app = create_app(Settings.model_validate(config))
    async with app.lifespan():
        yield app


async def run(options: Options) -> None:
    async with running_app(options) as app:
        async for result in CrowdedGateway(app, options).measure():
            print(json.dumps(asdict(result)), flush=True)


def main() -> None:
    told = json.loads(sys.argv[1])
    gc.callbacks.append(GarbageTimer())
    tune_garbage_collector()
    runner: Callable[[Awaitable[None]], None] = TimedLoop().run_until_complete
    runner(run(Options(**{**told, "counts": tuple(told["counts"])})))


if __name__ == "__main__":
    main()
