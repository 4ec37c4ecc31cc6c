"""The raw client, by which most tests receive, is cut at any byte and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from support.app_server import running_app
from support.clients.raw import RawClient
from support.message_parser import MessageParser


class Numbers:
    """Counts up from the last id: ids after the data, `begin` first, a tombstone at each tenth.

    upto: it stops there, with the connection open, until it is raised.
    """

    def __init__(self, upto: int) -> None:
        self.upto = upto
        self.app = Starlette(routes=[Route("/events", self.events)])

    async def events(self, request: Request) -> Response:
        told = request.headers.get("last-event-id", "")
        stream = self._count(int(told or 0))
        return StreamingResponse(stream, media_type="text/event-stream")

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


def records(client: RawClient) -> list[str]:
    return [event["data"].split()[1] for event in client.events if event["event"] != "begin"]


def expected(upto: int) -> list[str]:
    return [str(number) for number in range(1, upto + 1)]


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
