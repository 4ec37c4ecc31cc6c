"""Streams and pages for those who accept gzip: whole for strict readers, shared by all.

Browsers accept it as well: `test_websocket_clients` has theirs.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import zlib
from collections.abc import AsyncIterator, Callable, Sequence

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.client import ReceivedEvent, SseClient
from support.clients.curl import CurlClient
from support.clients.httpx_sse import HttpxSseClient
from support.clients.node_sse import FetchEventSourceClient
from support.gateways import GatewayThread
from support.head_recorder import HeadRecorder
from support.oracle import StreamOracle, parse_events
from support.raw_http import RawConnection
from support.records import produce_records
from support.topic_gateway import topic_fixture, topic_gateway_fixture
from support.waiting import WAIT_TIMEOUT_S, wait_until

from gateway.core.log.record import TopicPartition
from gateway.kafka.embedded import EmbeddedKafka

GZIP = {"Accept-Encoding": "gzip"}
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
WHOLE = "?from=earliest&until=latest"
PARTITIONS = 3

Topic = Callable[..., str]

kafka = embedded_kafka()
gateway = topic_gateway_fixture()
topic = topic_fixture()


@pytest.fixture
async def http(gateway: GatewayThread) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=gateway.base_url, headers=GZIP, trust_env=False, timeout=WAIT_TIMEOUT_S
    ) as http:
        yield http


def orders(count: int, note: str = "") -> list[bytes]:
    return [b'{"order":%d,"note":"%b"}' % (n, note.encode()) for n in range(count)]


def numbers(text: bytes) -> list[int]:
    return [int(found) for found in re.findall(rb'"order":(\d+)', text)]


async def raw(answer: httpx.Response) -> bytes:
    """The body as it came, without HTTP's chunks."""
    return b"".join([piece async for piece in answer.aiter_raw()])


# -- negotiation -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("route", "asked", "coding"),
    [
        ("value", "gzip, deflate, br, zstd", "gzip"),
        ("value", "gzip;q=0.5, identity;q=0.1", "gzip"),
        ("value", "identity", None),
        ("value", "br", None),
        ("value", "br, zstd", None),
        ("value", "gzip;q=0, *", None),
        ("plain", "gzip", None),
    ],
)
@pytest.mark.parametrize("kind", [EVENTS, LINES])
async def test_who_asks_for_gzip_gets_it_where_the_route_lets(
    http: httpx.AsyncClient, topic: Topic, kind: str, route: str, asked: str, coding: str | None
):
    headers = {"Accept": kind, "Accept-Encoding": asked}
    async with http.stream("GET", f"/{route}/{topic()}{WHOLE}", headers=headers) as answer:
        assert answer.headers.get("content-encoding") == coding
        assert "Accept-Encoding" in answer.headers["vary"].split(", ")
        body = await raw(answer)
    text = gzip.decompress(body) if coding else body
    assert b'"reason":"until"' in text


async def test_a_head_has_no_body_and_says_of_no_coding(http: httpx.AsyncClient, topic: Topic):
    for kind in (EVENTS, LINES):
        answer = await http.head(f"/value/{topic()}", headers={"Accept": kind})
        assert answer.status_code == 200 and answer.content == b""
        assert "content-encoding" not in answer.headers
        assert "Accept-Encoding" in answer.headers["vary"]


async def test_what_went_wrong_is_told_plainly(http: httpx.AsyncClient, topic: Topic):
    answer = await http.get(f"/value/{topic()}?from=yesterday")
    assert answer.status_code == 400 and "content-encoding" not in answer.headers


# -- whole for strict readers ------------------------------------------------------


@pytest.mark.parametrize("kind", [EVENTS, LINES])
async def test_a_stream_that_ends_is_a_right_file_of_gzip(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic, kind: str
):
    """Lengths and CRC are right, and there is nothing behind."""
    name = topic(PARTITIONS)
    await produce_records(kafka.bootstrap, name, orders(200, "x" * 50))
    async with http.stream("GET", f"/value/{name}{WHOLE}", headers={"Accept": kind}) as answer:
        body = await raw(answer)
    decoder = zlib.decompressobj(31)
    text = decoder.decompress(body)
    assert decoder.eof and decoder.unused_data == b""
    assert sorted(numbers(text)) == list(range(200))
    assert len(body) < len(text) / 2


async def test_a_page_is_compressed_whole_where_that_is_worthwhile(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    name = topic()
    http.headers["Accept"] = LINES
    nothing = await http.get(f"/value/{name}?wait=0")
    assert "content-encoding" not in nothing.headers
    await produce_records(kafka.bootstrap, name, orders(100))
    async with http.stream("GET", f"/value/{name}?from=earliest&wait=30s") as answer:
        body = await raw(answer)
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(body)
    assert 'rel="next"' in answer.headers["link"]
    assert numbers(gzip.decompress(body)) == list(range(100))


async def test_a_rider_whose_time_is_up_has_a_right_end(
    kafka: EmbeddedKafka, http: httpx.AsyncClient, topic: Topic
):
    """Of shared blocks, as it rode until then."""
    name = topic(PARTITIONS)
    async with http.stream("GET", f"/brief/{name}") as answer:
        await produce_records(kafka.bootstrap, name, orders(20, "x" * 300))
        text = gzip.decompress(await raw(answer))
    assert b'{"reason":"lifetime"}' in text
    assert set(numbers(text)) <= set(range(20))


async def test_those_who_came_at_different_times_are_sent_the_same_blocks(
    kafka: EmbeddedKafka, gateway: GatewayThread, topic: Topic
):
    name = topic()
    with RawConnection(gateway.port) as early, RawConnection(gateway.port) as late:
        for wire in (early, late):
            host = "Host: localhost\r\nAccept-Encoding: gzip\r\n\r\n"
            wire.send_bytes(f"GET /value/{name} HTTP/1.1\r\n{host}".encode())
            assert (await asyncio.to_thread(wire.read_head)).headers["content-encoding"] == "gzip"
            begin = await asyncio.to_thread(wire.read_chunk)
            assert b"event: begin" in gzip_so_far(begin)
            if wire is early:
                await produce_records(kafka.bootstrap, name, orders(1, "x" * 400))
                first = await asyncio.to_thread(wire.read_chunk)
        await produce_records(kafka.bootstrap, name, orders(1, "y" * 400))
        blocks = [await asyncio.to_thread(wire.read_chunk) for wire in (early, late)]
        assert blocks[0] == blocks[1] != first
        assert numbers(zlib.decompressobj(-15).decompress(blocks[0])) == [0]


def gzip_so_far(body: bytes) -> bytes:
    return zlib.decompressobj(31).decompress(body)


# -- clients that others wrote -----------------------------------------------------


class CompressedCurl(CurlClient):
    extra_options = ("--compressed",)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(HttpxSseClient, id="httpx-sse"),
        pytest.param(
            CompressedCurl, id="curl", marks=[pytest.mark.needs("curl"), pytest.mark.night]
        ),
        pytest.param(
            FetchEventSourceClient,
            id="fetch-event-source",
            marks=[pytest.mark.needs("node", "npm"), pytest.mark.night],
        ),
    ],
)
async def test_programs_inflate_as_they_read_and_find_a_right_end(
    kind: type[SseClient], kafka: EmbeddedKafka, gateway: GatewayThread, topic: Topic
):
    name = topic(PARTITIONS)
    await is_exact(kind(f"{gateway.base_url}/records/{name}"), kafka, name)
    end = kind(f"{gateway.base_url}/records/{name}{WHOLE}")
    async with end:
        await end.wait_for_events(lambda events: events and events[-1]["event"] == "end")
        if not end.reconnects_itself:
            await wait_until(lambda: end.is_ended, end.describe_state)
        assert len([each for each in end.events if each["event"] == "message"]) == 60
        assert set(end.errors) <= {"Error: closed by the server"}, end.describe_state()


async def is_exact(client: SseClient, kafka: EmbeddedKafka, name: str) -> None:
    """Each record once, also those that were written while it was cut off."""
    client.proxy = proxy = HeadRecorder()
    async with StreamOracle(",".join(kafka.bootstrap)) as oracle, client:
        await client.wait_for_events(begun)
        for _ in range(2):
            for fields in ({}, {"pad": "x" * 500}):
                await oracle.produce_records(name, 10, fields=fields)
                await client.wait_for_events(
                    lambda events: not oracle.list_missing(parse_events(events))
                )
            client.cut()
            await oracle.produce_records(name, 10)
            await client.reconnect()
            await client.wait_for_events(
                lambda events: not oracle.list_missing(parse_events(events))
            )
        oracle.check_events(
            client.events, start={TopicPartition(name, n): 0 for n in range(PARTITIONS)}
        )
        assert len(proxy.response_heads) >= 3 and proxy.are_all_compressed


def begun(events: Sequence[ReceivedEvent]) -> bool:
    return any(each["event"] == "begin" for each in events)
