"""Clients of HTTP/1.0, and clients that end their side of the connection behind their request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from support.admin_api import ADMIN_SECTION, list_streams, open_admin_api
from support.brokers import embedded_kafka
from support.gateways import GatewayThread, build_config, running_gateway
from support.raw_http import RawConnection
from support.records import produce_records
from support.topic_gateway import run_gateway_sync

from gateway.config import Listen
from gateway.kafka.embedded import EmbeddedKafka

T = TypeVar("T")
kafka = embedded_kafka({"orders": 1, "replies": 1})

EVENTS = b"Accept: text/event-stream\r\n"
LINES = b"Accept: application/x-ndjson\r\n"


@pytest.fixture(scope="module")
def gateway(kafka: EmbeddedKafka) -> Iterator[GatewayThread]:
    routes: list[dict[str, Any]] = [
        {"when": [{"path": "/orders"}], "with": {"topic": "orders"}},
        {"when": [{"path": "/ask"}], "with": {
            "capability": "produce", "topic": "orders", "replyTo": "replies", "timeout": "3s",
        }},
    ]  # fmt: skip
    config = build_config(kafka.bootstrap, ["orders", "replies"], routes, admin=ADMIN_SECTION)
    with run_gateway_sync(config) as running:
        yield running


async def talk(
    gateway: GatewayThread, request: bytes, then: Callable[[RawConnection], T], *, half: bool
) -> T:
    """half: end our side behind the request."""
    port = int(gateway.base_url.rpartition(":")[2])

    def run() -> T:
        with RawConnection(port) as wire:
            wire.send_bytes(request)
            if half:
                wire.socket.shutdown(1)
            return then(wire)

    return await asyncio.to_thread(run)


def to_the_end(wire: RawConnection) -> bytes:
    data = b""
    while piece := wire.socket.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("accept", [EVENTS, LINES])
async def test_a_stream_of_http_1_0_ends_with_its_connection(
    gateway: GatewayThread, kafka: EmbeddedKafka, accept: bytes, half: bool
):
    """It came in chunks that HTTP/1.0 does not know (RFC 9112 6.1), and with two headers
    `Connection` that contradicted one another; one who ended its side got nothing."""
    await produce_records(kafka.bootstrap, "orders", [b"first"])
    request = b"GET /orders?from=earliest&until=latest HTTP/1.0\r\n%b\r\n" % accept
    said = await talk(gateway, request, to_the_end, half=half)
    head, _, body = said.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0].endswith(b"200 ok")
    assert not [line for line in lines if line.startswith((b"transfer-encoding", b"keep-alive"))]
    assert [line for line in lines if line.startswith(b"connection")] == [b"connection: close"]
    assert body.startswith(b"retry: " if accept == EVENTS else b'"first"'), "no size of a chunk"
    assert b"first" in body and b'"until"' in body and body.endswith(b"\n")


@pytest.mark.parametrize("half", [False, True])
async def test_a_page_of_http_1_0_has_its_length(gateway: GatewayThread, half: bool):
    request = b"GET /health/live HTTP/1.0\r\nExpect: 100-continue\r\n\r\n"
    said = await talk(gateway, request, to_the_end, half=half)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"transfer-encoding" not in head.lower()
    assert b"content-length: %d" % len(body) in head.lower()


@pytest.mark.parametrize("more", [b"", b"Connection: close\r\n"])
async def test_one_who_ends_its_side_gets_its_stream_as_it_comes(
    gateway: GatewayThread, kafka: EmbeddedKafka, more: bytes
):
    """The end of the client's side was taken for the end of the client."""
    request = b"GET /orders HTTP/1.1\r\nHost: localhost\r\n%b%b\r\n" % (EVENTS, more)

    def one_after_the_other(wire: RawConnection) -> None:
        wire.read_until(b"event: begin")
        for n in range(3):
            asyncio.run(produce_records(kafka.bootstrap, "orders", [b"half-%d" % n]))
            wire.read_until(b"half-%d" % n)

    await talk(gateway, request, one_after_the_other, half=True)


@pytest.mark.parametrize("path", [b"/health/live", b"/orders?until=latest", b"/nowhere"])
async def test_one_who_ends_its_side_gets_what_it_asked_for(gateway: GatewayThread, path: bytes):
    request = b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path
    first, second, _ = await talk(
        gateway,
        2 * request,
        lambda wire: (wire.read_response(), wire.read_response(), wire.read_close()),
        half=True,
    )
    assert first.status == second.status and second.status in (200, 404)


async def test_one_who_ends_its_side_may_wait_for_a_reply(gateway: GatewayThread):
    """Meanwhile it is told to go on waiting, which tells whether it is there."""
    request = b"POST /ask HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n1"

    def answers(wire: RawConnection) -> list[int]:
        found = [wire.read_head().status]
        while found[-1] == 100:
            found.append(wire.read_head().status)
        return found

    *waits, last = await talk(gateway, request, answers, half=True)
    assert last == 504 and waits


async def test_one_who_is_gone_holds_nothing(gateway: GatewayThread):
    """That is found out by writing to it, long before the next heartbeat is due."""
    port = int(gateway.base_url.rpartition(":")[2])
    async with open_admin_api(gateway) as http:
        wires = [RawConnection(port) for _ in range(3)]
        for wire in wires:
            wire.send_bytes(b"GET /orders HTTP/1.1\r\nHost: localhost\r\n%b\r\n" % EVENTS)
            await asyncio.to_thread(wire.read_until, b"event: begin")
        assert len(await list_streams(http)) == 3
        for wire in wires:
            wire.socket.close()
        async with asyncio.timeout(10):  # a heartbeat comes after 15 s
            while await list_streams(http):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_a_connection_without_requests_is_closed_after_the_time_that_is_configured(
    kafka: EmbeddedKafka,
):
    """It was after 5 s, sooner than most proxies close theirs, so that they met closed ones."""
    assert Listen().keep_alive_timeout > 60, "the idle timeout of AWS's load balancers"
    config = build_config(kafka.bootstrap, ["orders"], listen={"keepAliveTimeout": "1s"})
    async with running_gateway(config) as gateway:
        request = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        said = await talk(gateway, request * 2, to_the_end, half=False)
    assert said.count(b"HTTP/1.1 200 OK") == 2
