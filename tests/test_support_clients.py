"""Every real client receives, is cut at any byte, and comes back, from a server of forty lines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from support.app_server import running_app
from support.clients.all_clients import ALL_CLIENTS
from support.clients.client import SseClient
from support.clients.raw import RawClient
from support.message_parser import MessageParser
from support.waiting import wait_until

every_client = pytest.mark.parametrize("client", ALL_CLIENTS)


class Numbers:
    """Counts up from the last id: ids after the data, `begin` first, a tombstone at each tenth.

    upto: it stops there, with the connection open, until it is raised.
    """

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.ids: list[str] = []  # the Last-Event-ID of each connection
        self.status = 200
        self.app = Starlette(routes=[Route("/events", self.events)])

    async def events(self, request: Request) -> Response:
        told = request.headers.get("last-event-id", "")
        if request.headers["host"] != "test":
            self.ids.append(told)
        cors = {"Access-Control-Allow-Origin": "*", "Cache-Control": "no-store"}
        if self.status != 200:
            return Response(status_code=self.status, headers=cors)
        stream = self._count(int(told or 0))
        return StreamingResponse(stream, media_type="text/event-stream", headers=cors)

    async def _count(self, number: int) -> AsyncIterator[str]:
        yield f"retry: 50\nevent: begin\ndata: {{}}\nid: {number}\n\n"
        while True:
            while number < self.upto:
                number += 1
                name = "event: delete\n" if number % 10 == 0 else ""
                yield f"{name}data: number {number}\ndata: gr\u00fcn\nid: {number}\n\n"
            yield ":\n"
            await asyncio.sleep(0.02)


@pytest.fixture
async def numbers() -> Numbers:
    return Numbers(upto=20)


@pytest.fixture
async def base(numbers: Numbers) -> AsyncIterator[str]:
    async with running_app(numbers.app) as url:
        yield url


def records(client: SseClient) -> list[str]:
    return [event["data"].split()[1] for event in client.events if event["event"] != "begin"]


def expected(upto: int) -> list[str]:
    return [str(number) for number in range(1, upto + 1)]


@every_client
async def test_it_receives_events_with_name_id_and_data(
    client: type[SseClient], numbers: Numbers, base: str
) -> None:
    async with client(f"{base}/events?of=numbers") as it:
        await it.wait_for_events(21)
        assert it.events[0] == {"event": "begin", "id": "0", "data": "{}"}
        assert it.events[1] == {"event": "message", "id": "1", "data": "number 1\ngrün"}
        assert it.events[10] == {"event": "delete", "id": "10", "data": "number 10\ngrün"}
        assert records(it) == expected(20)
        assert it.errors == []
        assert numbers.ids == [""]
    assert it.proxy.connection_count == 0


@every_client
async def test_it_resumes_with_its_last_id_after_a_cut(
    client: type[SseClient], numbers: Numbers, base: str
) -> None:
    async with client(f"{base}/events") as it:
        await it.wait_for_events(21)
        it.cut()
        numbers.upto = 40
        await it.reconnect()
        await it.wait_for_events(42)
        assert records(it) == expected(40)
        assert numbers.ids[:2] == ["", "20"]


@every_client
@pytest.mark.parametrize(("place", "resumed"), [(5, ""), (38, ""), (70, "0"), (400, "8")])
async def test_a_cut_at_a_byte_loses_and_repeats_nothing(
    client: type[SseClient], place: int, resumed: str, numbers: Numbers, base: str
) -> None:
    """Of the body: in the retry, in begin's id, in the first record, in a later one."""
    it = client(f"{base}/events")
    it.cut_after(await size_of_head(base) + place)
    async with it:
        await wait_until(lambda: it.is_ended or len(numbers.ids) > 1, "a cut")
        numbers.upto = 40
        await it.reconnect()
        await it.wait_for_events(lambda events: any(event["id"] == "40" for event in events))
        assert records(it) == expected(40)
        assert numbers.ids == ["", resumed]


async def size_of_head(base: str) -> int:
    """Bytes of the answer before its body. This connection is forgotten again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(base.rpartition(":")[2]))
    writer.write(b"GET /events HTTP/1.1\r\nHost: test\r\nLast-Event-ID: 0\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return len(head)


@every_client
async def test_it_finds_the_server_again_after_a_restart(client: type[SseClient]) -> None:
    first, second = Numbers(upto=5), Numbers(upto=15)
    async with AsyncExitStack() as stack:
        async with running_app(first.app) as base:
            it = await stack.enter_async_context(client(f"{base}/events"))
            await it.wait_for_events(6)
        async with running_app(second.app) as base:
            it.set_server(base)
            await it.reconnect()
            await it.wait_for_events(lambda events: any(event["id"] == "15" for event in events))
            assert records(it) == expected(15)
            assert second.ids[0] == "5"


@pytest.mark.parametrize(
    "client", [each for each in ALL_CLIENTS if each.id not in ("httpx-sse", "curl")]
)
async def test_a_status_that_is_no_stream_ends_an_event_source(
    client: type[SseClient], numbers: Numbers, base: str
) -> None:
    numbers.status = 503
    async with client(f"{base}/events") as it:
        await wait_until(lambda: it.is_closed, it.describe_state)
        numbers.status = 200
        await asyncio.sleep(0.2)
        assert numbers.ids == [""]
        assert it.events == []


# -- the raw client alone -------------------------------------------------------------


async def test_the_raw_client_can_be_cut_at_every_byte(numbers: Numbers, base: str) -> None:
    numbers.upto = 3
    async with RawClient(f"{base}/events") as it:
        await it.wait_for_events(4)
        whole = it.received_bytes
    for count in range(0, whole, 7):
        async with RawClient(f"{base}/events", retry=0.001) as it:
            it.cut_after(count, reset=count % 2 == 0)
            await it.wait_for_events(lambda events: any(event["id"] == "3" for event in events))
            assert records(it) == expected(3), count


async def test_the_raw_client_stops_reading_and_goes_on(numbers: Numbers, base: str) -> None:
    async with RawClient(f"{base}/events", receive_buffer=4096) as it:
        await it.wait_for_events(21)
        it.stop_reading()
        numbers.upto = 2_000
        await asyncio.sleep(0.3)
        assert len(it.events) < 500, "what was being read when it stopped may still come"
        it.resume_reading()
        await it.wait_for_events(2_001)
        assert records(it) == expected(2_000)


async def test_the_raw_client_starts_from_an_id(numbers: Numbers, base: str) -> None:
    async with RawClient(f"{base}/events", last_event_id="18", headers={"X-Test": "1"}) as it:
        await it.wait_for_events(3)
        assert records(it) == ["19", "20"]
        assert it.responses[0].headers["cache-control"] == "no-store"


# -- messages of WebSocket, as events -----------------------------------------------------


def test_only_the_last_record_of_a_message_has_its_position():
    parser = MessageParser()
    parser.feed_message('{"type":"begin","topics":["orders"],"position":"A"}')
    found = parser.feed_message('{"type":"records","records":[{"n":1},"text"],"position":"B"}')
    told = [(each.event_type, each.data, each.last_event_id) for each in found]
    assert told == [("message", '{"n": 1}', "A"), ("message", "text", "B")]
    (deleted,) = parser.feed_message('{"type":"delete","record":{"key":"ada"},"position":"C"}')
    assert (deleted.event_type, deleted.data, deleted.last_event_id) == (
        "delete",
        '{"key": "ada"}',
        "C",
    )


@pytest.mark.parametrize(
    "message",
    [
        '{"type":"records","records":[1]}',
        '{"type":"records","id":"b","records":[1]}',
        '{"type":"records","id":"a","records":[1],"more":2}',
    ],
)
def test_a_message_that_is_not_of_the_subscription_is_refused(message: str):
    with pytest.raises(AssertionError):
        MessageParser("a").feed_message(message)
