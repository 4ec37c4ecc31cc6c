"""Input that is dear to read: one request or record costs a gateway no more than any of its size.

What is compared is the CPU time that the gateway's process takes, with that for the same number of
requests as long whose text means nothing to it. Health is asked meanwhile, and must be answered.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process
from support.raw_http import RawConnection, RawResponse, build_request
from support.raw_websocket import (
    DEFLATE_HEADER,
    OPCODE_TEXT,
    RawWebSocket,
    build_frame,
    deflate_payload,
)
from support.topic_gateway import run_gateway_process_sync

from gateway.kafka.embedded import EmbeddedKafka

pytestmark = pytest.mark.night

TIMES = 3
RATIO = 8.0
SLACK_S = 0.1
"""What the clock of a process and a heartbeat may add."""
MiB = 1 << 20

TOPICS = {"orders": 1, "bombs": 1}
kafka = embedded_kafka(TOPICS)


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayProcess]:
    routes = [
        build_route("orders", "value"),
        {"when": [{"path": "/open"}], "with": {"topic": "orders", "clientFilters": True}},
    ]
    listen = {"forwarded": ["127.0.0.1"], "websocket": {"compression": True}}
    with run_gateway_process_sync(
        build_config(kafka.bootstrap, TOPICS, routes, listen=listen)
    ) as gateway:
        yield gateway


def exchange(port: int, request: bytes, times: int = 1) -> RawResponse:
    with RawConnection(port) as wire:
        for _ in range(times):
            wire.send_bytes(request)
            answer = wire.read_response()
        return answer


async def ask(gateway: GatewayProcess, request: bytes) -> RawResponse:
    """`TIMES` times, while somebody asks for its health."""
    answer, *healths = await asyncio.gather(
        asyncio.to_thread(exchange, gateway.port, request, TIMES),
        *(
            asyncio.to_thread(exchange, gateway.port, build_request("/health/live"))
            for _ in range(3)
        ),
    )
    assert [each.status for each in healths] == [200] * 3
    return answer


async def costs_no_more_than_any(gateway: GatewayProcess, request: bytes) -> RawResponse:
    plain = build_request("/health/live?" + "x" * (len(request) - 90))
    before = gateway.cpu_seconds
    await ask(gateway, plain)
    between = gateway.cpu_seconds
    answer = await ask(gateway, request)
    taken, allowed = gateway.cpu_seconds - between, RATIO * (between - before) + SLACK_S
    assert taken <= allowed, f"{taken:.2f} s of CPU, {allowed:.2f} s are allowed"
    return answer


@pytest.mark.parametrize(
    ("path", "count", "status"),
    [
        ("/events/orders", 70, 403),
        ("/events/orders", 250, 403),
        ("/open", 70, 400),
        ("/open", 250, 400),
    ],
)
async def test_filters_without_number_are_refused_at_once(
    gateway: GatewayProcess, path: str, count: int, status: int
):
    """7,200 filters were merged in quadratic time, for 7 s, before anybody looked whether the route
    takes one: nobody else was answered meanwhile."""
    request = build_request(f"{path}?" + "&".join(["filter=/"] * count))
    answer = await costs_no_more_than_any(gateway, request)
    assert answer.status == status


@pytest.mark.parametrize("path", ["/events/orders", "/open"])
async def test_a_query_of_thousands_of_parameters_is_refused_unread(
    gateway: GatewayProcess, path: str
):
    """To read 7,200 of them took 6 ms."""
    request = build_request(f"{path}?" + "&".join(["filter=/"] * 7200))
    before = gateway.cpu_seconds
    answer = await asyncio.to_thread(exchange, gateway.port, request)
    assert answer.status == 400 and b"more than 256 parameters" in answer.body
    assert gateway.cpu_seconds - before < SLACK_S


def asked(sent: dict[str, Any]) -> bytes:
    return build_frame(OPCODE_TEXT, json.dumps(sent).encode())


async def test_filters_without_number_are_refused_on_a_socket(gateway: GatewayProcess):
    """A path of 16 KB took 0.6 s."""
    cases = [
        ("/events/orders", 250, "not-to-be-chosen"),
        ("/open", 250, "bad-request"),
        ("/events/orders", 1800, "bad-request"),
        ("/open", 1800, "bad-request"),
    ]
    with RawWebSocket.open_socket(gateway.port) as socket:
        before = gateway.cpu_seconds
        for path, count, code in cases:
            path += "?" + "&".join(["filter=/"] * count)
            socket.send_bytes(asked({"type": "subscribe", "id": "a", "path": path}))
            told = json.loads(socket.read_text())
            assert (told["type"], told["code"]) == ("error", code), told
        assert gateway.cpu_seconds - before < SLACK_S


@pytest.mark.parametrize("header", ['"' + '\\"' * 30_000, '"a' * 30_000, "a=" + '"' * 59_000])
async def test_a_forwarded_certificate_is_not_looked_at_where_nobody_asks_for_it(
    gateway: GatewayProcess, header: str
):
    """60 KB of an opened quote took 28 s, on `/health/live` and without any guard for it."""
    said = f"X-Forwarded-Client-Cert: {header}".encode()
    answer = await costs_no_more_than_any(gateway, build_request("/health/live", said))
    assert answer.status == 200


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ({"type": "x" * (MiB - 100)}, "unknown type 'xxx"),
        ({"type": "produce", "id": "a", "y" * (MiB - 100): 1}, "unknown member of produce 'yyy"),
        ({"type": "ping", "y" * (MiB - 100): 1}, "unknown member of ping 'yyy"),
        ({"type": "subscribe", "id": "a", "path": "/open", "fields": [1] * 30_000}, "'fields'"),
        ({"type": "subscribe", "id": "a", "path": "/open", "filter": [1] * 30_000}, "'filter'"),
        ({"type": "subscribe", "id": "a", "path": "/open", "fields": [1] * 300_000}, "65536 bytes"),
    ],
    ids=["type", "member", "member of a command", "fields", "filter", "many fields"],
)
async def test_a_compressed_message_that_is_none_costs_what_it_takes_to_read_it(
    gateway: GatewayProcess, sent: dict[str, Any], words: str
):
    """1 KB of frames made difflib look at 1 MB of letters, and pydantic make 300,000 errors."""
    known = {"type": "produce", "id": "a", "path": "/none", "value": "z" * (MiB - 200)}
    with RawWebSocket.open_socket(gateway.port, "/ws", DEFLATE_HEADER) as socket:

        def costs(message: dict[str, Any]) -> tuple[float, str]:
            before = gateway.cpu_seconds
            for _ in range(10):
                socket.send_bytes(
                    build_frame(OPCODE_TEXT, deflate_payload(json.dumps(message).encode()), rsv=4)
                )
            told = [json.loads(socket.read_text()) for _ in range(10)]
            return gateway.cpu_seconds - before, told[-1]["message"]

        plain, _ = costs(known)
        taken, told = costs(sent)
    assert words in told
    assert taken <= RATIO * plain + 2 * SLACK_S


def produce_bomb(kafka: EmbeddedKafka, count: int, size: int) -> None:
    """Records of zeros in one batch of zstd, which is some KB."""
    producer = Producer(
        {
            "bootstrap.servers": ",".join(kafka.bootstrap),
            "compression.type": "zstd",
            "linger.ms": 2000,
            "batch.size": 1_000_000_000,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 1_000_000_000,
            "queue.buffering.max.messages": 10_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    value = bytes(size)
    for _ in range(count):
        producer.produce("bombs", value)
    assert producer.flush(60) == 0


@contextmanager
def peak(gateway: GatewayProcess) -> Iterator[Callable[[], int]]:
    """What its process holds at most, looked at by a thread: it may answer nobody meanwhile."""
    most, over = gateway.memory_bytes, Event()

    def look() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, gateway.memory_bytes)

    thread = Thread(target=look)
    thread.start()
    try:
        yield lambda: most
    finally:
        over.set()
        thread.join()


async def test_a_batch_of_some_kilobytes_does_not_take_hundreds_of_megabytes(kafka: EmbeddedKafka):
    """A batch of 15 KB took 653 MB at its peak, and 0.8 s in which nobody was served."""
    config = build_config(kafka.bootstrap, ["bombs"], memory="64MiB")
    async with (
        running_gateway_process(config) as gateway,
        httpx.AsyncClient(trust_env=False) as http,
        RawClient(f"{gateway.base_url}/events/bombs") as client,
    ):
        await client.wait_for_events(1)
        idle = gateway.memory_bytes
        with peak(gateway) as most:
            producing = asyncio.create_task(asyncio.to_thread(produce_bomb, kafka, 110, MiB))
            async with asyncio.timeout(120):
                while sum(each["event"] == "message" for each in client.events) < 110:
                    assert (await http.get(f"{gateway.base_url}/health/live")).status_code == 200
                    await asyncio.sleep(0.01)
            await producing
        held = most() - idle
        # `memory`, the largest batch, and what is between Kafka and a socket: some 260 MiB
        assert held < (64 + 128 + 128) * MiB, f"{held // MiB} MiB"
