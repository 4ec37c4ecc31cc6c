"""A client that stops reading costs itself alone: neither the others' time nor memory.

Several MB more flow than the kernel's buffers and the channel's ring hold, so the slow ones
fall out of the ring; then each gets what its route's `slowClient` promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.brokers import KafkaCluster
from support.clients.fast_reconnect import FastReconnectClient
from support.clients.wires import WireName, client_for_wire
from support.gateways import GatewayProcess, build_config, running_gateway_process
from support.oracle import Position, StreamOracle
from support.received import GapEvent, parse_gaps
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.log.record import TopicPartition

STALL = 12.0  # s; more where the machine is busy
CALM = 4.0  # s before
OTHERS = 19
RATE = 100  # records/s
SIZE = 12_000  # bytes; 14 MB in a stall
PARTITIONS = 12
IMPATIENT = """
from gateway.web.http import edge
edge.USER_TIMEOUT_S = 3.0
from gateway.cli import main
main()
"""


class Reader(asyncio.Protocol):
    """Reads on and on, and notes how old each record is when it comes: seconds, by the time
    of its arrival."""

    def __init__(self, request: bytes) -> None:
        self.latencies: list[tuple[float, float]] = []
        self.begun = False
        self.lost = False
        self._request = request
        self._rest = b""

    @classmethod
    async def start(cls, url: str) -> Reader:
        parts = urlsplit(url)
        head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode()
        loop = asyncio.get_running_loop()
        _, reader = await loop.create_connection(lambda: cls(head), parts.hostname, parts.port)
        return reader

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        at, wall = time.monotonic(), time.time()
        text = self._rest + data
        self.begun = self.begun or b"event: begin" in text
        last = 0
        for found in re.finditer(rb'"timestamp":(\d+),', text):
            self.latencies.append((at, wall - int(found[1]) / 1000))
            last = found.end()
        self._rest = text[max(last, len(text) - 40) :]

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True


def latencies(readers: list[Reader], since: float, until: float) -> list[float]:
    return [each for r in readers for at, each in r.latencies if since <= at < until]


def shown(values: list[float]) -> str:
    if len(values) < 2:
        return "nothing"
    cuts = statistics.quantiles(values, n=100)
    p50, p90, p99 = (1000 * cuts[n - 1] for n in (50, 90, 99))
    return f"p50 {p50:.1f} p90 {p90:.1f} p99 {p99:.1f} max {1000 * max(values):.0f} ms"


def route(topic: str, policy: str) -> dict[str, Any]:
    target = {"topic": topic, "format": "envelope", "slowClient": policy}
    return {"when": [{"path": f"/{policy}"}], "with": target}


def unique(serial: int) -> bytes:
    return str(serial).encode()


async def flow(oracle: StreamOracle, topic: str, seconds: float) -> None:
    """Records at an even rate, over all partitions: as many as that is, however long it takes."""
    due = time.monotonic()
    for _ in range(round(seconds * RATE)):
        await oracle.produce_records(topic, 1, key=unique, fields={"pad": "x" * SIZE})
        due += 1 / RATE
        await asyncio.sleep(max(0.0, due - time.monotonic()))


def told(client: FastReconnectClient) -> list[GapEvent]:
    return [gap for e in client.events if e["event"] == "gap" for gap in parse_gaps(e["data"])]


async def whole(
    oracle: StreamOracle, client: FastReconnectClient, count: int, start: Position
) -> None:
    """It has so many records, the right ones."""
    with contextlib.suppress(TimeoutError):  # the oracle says better what is missing
        await client.wait_for_events(
            lambda e: sum(each["event"] == "message" for each in e) >= count
        )
    oracle.check_events(client.events, start=start)


@asynccontextmanager
async def readers(url: str, count: int) -> AsyncIterator[list[Reader]]:
    started: list[Reader] = []
    try:
        for _ in range(count):
            started.append(await Reader.start(url))
        await wait_until(lambda: all(reader.begun for reader in started), "all streams")
        yield started
    finally:
        for reader in started:
            reader.transport.close()


async def watch_memory(gateway: GatewayProcess, seen: list[int]) -> None:
    while True:
        seen.append(gateway.memory_bytes)
        await asyncio.sleep(0.5)


@pytest.mark.night
async def test_clients_that_stop_reading_for_a_while_harm_nobody_and_lose_nothing(
    kafka: KafkaCluster, topic: Callable[..., str]
) -> None:
    """Slow clients got what was written in some seconds, and the others were to be as fast as
    before: on a busy machine that was too little, and nobody was. What is counted now is records,
    and the gateway's CPU time."""
    name = topic(partitions=PARTITIONS)
    policies = ("catchUp", "skip", "disconnect")
    made = {"name": name, "cache": {"bytes": "512KiB"}}
    config = build_config(
        kafka.bootstrap_servers, [made], [route(name, policy) for policy in policies]
    )
    start = {TopicPartition(name, p): 0 for p in range(PARTITIONS)}
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        gateway = await stack.enter_async_context(running_gateway_process(config))
        base = gateway.base_url
        others = await stack.enter_async_context(readers(f"{base}/catchUp", OTHERS))
        slow = {
            policy: FastReconnectClient(f"{base}/{policy}", receive_buffer=16_384)
            for policy in policies
        }
        for client in slow.values():
            await stack.enter_async_context(client)
            await client.wait_for_events(1)
        memory: list[int] = []
        watching = asyncio.create_task(watch_memory(gateway, memory))
        stack.callback(watching.cancel)

        async def wait_for_others() -> None:
            count = len(oracle.list_acked())
            await wait_until(lambda: all(len(r.latencies) == count for r in others), "the others")

        calm, calm_cpu = time.monotonic(), gateway.cpu_seconds
        await flow(oracle, name, CALM)
        await wait_for_others()
        calm_cpu = gateway.cpu_seconds - calm_cpu
        for client in slow.values():
            client.stop_reading()
        stalled, before, cpu = time.monotonic(), max(memory), gateway.cpu_seconds
        await flow(oracle, name, STALL)
        await wait_for_others()  # who do not wait for the slow ones
        released, during, cpu = time.monotonic(), max(memory), gateway.cpu_seconds - cpu
        had = {policy: len(client.events) for policy, client in slow.items()}
        for client in slow.values():
            client.resume_reading()
        await flow(oracle, name, 2.0)
        count = len(oracle.list_acked())
        await wait_for_others()
        for policy in ("catchUp", "disconnect"):
            await whole(oracle, slow[policy], count, start)
            assert not told(slow[policy])
        caught_up = time.monotonic() - released
        skipping = slow["skip"]
        skipped = sum(gap.end - gap.start for gap in told(skipping))
        await whole(oracle, skipping, count - skipped, start)

        quiet = latencies(others, calm + 1.0, stalled)
        busy = latencies(others, stalled, released)
        after = latencies(others, released, released + 2.0)
        print(f"\n{count} records of {SIZE} bytes; slow had {had}")
        print(f"others before      : {shown(quiet)}")
        print(f"others in the stall: {shown(busy)}")
        print(f"others at release  : {shown(after)}")
        print(
            f"memory: {before >> 20} MB before, {during >> 20} in it, {max(memory) >> 20} at most"
        )
        print(f"cpu {calm_cpu / CALM:.0%} before, {cpu / STALL:.0%} in the stall")
        print(f"all slow ones whole {caught_up:.1f} s after")
        print(f"skip: {skipped} records in {len(told(skipping))} gaps")
        ends = [json.loads(e["data"]) for e in slow["disconnect"].events if e["event"] == "end"]
        print(f"disconnect: {ends}, opened {slow['disconnect'].open_count}")
        assert not any(reader.lost for reader in others)
        assert cpu / STALL < 3 * calm_cpu / CALM + 0.1
        assert during < before + (48 << 20)
        assert slow["catchUp"].open_count == slow["skip"].open_count == 1
        assert {gap.reason for gap in told(skipping)} == {"skipped"}
        assert {gap.tp for gap in told(skipping)} == set(start)
        assert skipped > RATE * STALL / 3, "it was not led to the live end"
        # It may be slow again: records go on coming while it reads what it has missed.
        assert ends and all(end == {"reason": "slow"} for end in ends)
        assert slow["disconnect"].open_count == 1 + len(ends)


@pytest.mark.parametrize(
    "wire",
    ["sse", *(pytest.param(wire, marks=pytest.mark.night) for wire in ("ndjson", "websocket"))],
)
async def test_a_client_that_never_reads_is_cut_at_last_and_the_others_go_on(
    kafka: KafkaCluster, topic: Callable[..., str], wire: WireName
) -> None:
    """By TCP_USER_TIMEOUT: 60 s, here 3 s."""
    name = topic(partitions=PARTITIONS)
    config = build_config(kafka.bootstrap_servers, [name], [route(name, "catchUp")])
    command = (sys.executable, "-c", IMPATIENT, "run", "-c")
    async with AsyncExitStack() as stack:
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap_servers))
        gateway = await stack.enter_async_context(running_gateway_process(config, command=command))
        url = f"{gateway.base_url}/catchUp"
        others = await stack.enter_async_context(readers(url, 5))
        before = gateway.connection_count
        never = client_for_wire(wire, FastReconnectClient)(url, receive_buffer=16_384)
        await stack.enter_async_context(never)
        await never.wait_for_events(1)
        never.stop_reading()
        assert gateway.connection_count == before + 1
        began = time.monotonic()
        for _ in range(10):
            await oracle.produce_records(name, 80, key=unique, fields={"pad": "x" * SIZE})
        while gateway.connection_count > before and time.monotonic() < began + WAIT_TIMEOUT_S:
            await flow(oracle, name, 0.2)
        taken = time.monotonic() - began
        print(f"cut after {taken:.1f} s")
        assert gateway.connection_count == before
        assert taken > 2.0
        count = len(oracle.list_acked())
        await wait_until(lambda: all(len(r.latencies) == count for r in others), "the others")
        assert not any(reader.lost for reader in others)
        never.resume_reading()
        start = {TopicPartition(name, p): 0 for p in range(PARTITIONS)}
        await whole(oracle, never, count, start)
        assert never.open_count == 2
        assert "Traceback" not in gateway.log, gateway.read_log_tail()
