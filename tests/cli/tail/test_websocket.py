"""What a gateway says over a WebSocket, as items, and what it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from gateway.cli.tail.source import ConnectionLost, StreamEvent, StreamRefused
from gateway.cli.tail.target import Target
from gateway.cli.tail.websocket import WebSocketSource, parse_message

BEGIN = '{"type":"begin","topics":["o"],"partitions":{"o":1},"pending":[],"position":"p0"}'
END = '{"type":"end","reason":"until","position":"p9"}'
Handler = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(handler: Handler, **options) -> AsyncIterator[str]:
    async with serve(handler, "127.0.0.1", 0, **options) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def source(url: str, filters: list[str] | None = None, **options: Any) -> WebSocketSource:
    target = Target.parse(url)
    query = target.query.with_selection(filters or [], None)
    made = Target(target.scheme, target.location, target.path, target.socket_path, query)
    return WebSocketSource(made, headers={"Authorization": "Bearer x"}, tls=None, **options)


async def heard(it: WebSocketSource, position: str | None = None, left: int | None = None):
    """All items, and why it was over."""
    items: list[StreamEvent] = []
    try:
        async with contextlib.aclosing(it.iter_events(position, left)) as batches:
            async for batch in batches:
                items += batch
    except (ConnectionLost, StreamRefused) as over:
        return items, over
    raise AssertionError("a connection ends with a reason")


def test_records_are_what_events_of_them_would_be():
    text = '{"type":"records","records":[{"n": 1.0},"text","",null,7],"position":"p5","id":"t"}'
    assert parse_message(text) == [
        StreamEvent("message", b'{"n": 1.0}'),
        StreamEvent("message", b"text"),
        StreamEvent("message", b""),
        StreamEvent("message", b"null"),
        StreamEvent("message", b"7", "p5"),
    ]


def test_a_batch_without_a_position_has_none():
    assert parse_message('{"type":"records","records":[1]}') == [StreamEvent("message", b"1")]


def test_a_tombstone_is_what_its_event_has_as_data():
    text = '{"type":"delete","record":{"key":"a"},"position":"p1"}'
    assert parse_message(text) == [StreamEvent("delete", b'{"key":"a"}', "p1")]


def test_other_messages_are_control_events():
    assert parse_message(BEGIN) == [StreamEvent("begin", BEGIN.encode(), "p0")]
    assert parse_message('{"type":"pong"}') == []


@pytest.mark.parametrize("text", ["hello", "[]", "{}", '{"type":"records"}', '{"type":"delete"}'])
def test_what_is_no_message_of_a_gateway_is_refused(text):
    with pytest.raises(StreamRefused, match="another protocol"):
        parse_message(text)


async def test_a_stream_of_its_own_is_asked_for_by_its_path():
    asked = []

    async def handler(socket: ServerConnection) -> None:
        asked.append((socket.request.path, socket.request.headers["Authorization"]))
        assert socket.subprotocol == "gateway.v1"
        for text in (BEGIN, '{"type":"records","records":[1],"position":"p1"}', END):
            await socket.send(text)

    async with served(handler, subprotocols=["gateway.v1"]) as url:
        it = source(f"{url}/events/o?from=earliest&x=1", filters=["/n>=1"])
        items, over = await heard(it)
        await heard(it, "p1", 5)
    assert [item.name for item in items] == ["begin", "message", "end"]
    assert isinstance(over, ConnectionLost) and over.was_reached
    assert asked == [
        ("/events/o?x=1&filter=%2Fn%3E%3D1&from=earliest", "Bearer x"),
        ("/events/o?x=1&filter=%2Fn%3E%3D1&lastEventId=p1&credit=5", "Bearer x"),
    ]


async def test_one_stream_of_many_is_subscribed_to():
    asked = []

    async def handler(socket: ServerConnection) -> None:
        asked.append((socket.request.path, json.loads(await socket.recv())))
        await socket.send(BEGIN)

    async with served(handler) as url:
        it = source(f"{url}/ws#/events/o?from=-5m")
        await heard(it)
        await heard(it, "p1", 5)
    whole = {"type": "subscribe", "id": "tail"}
    assert asked == [
        ("/ws", {**whole, "path": "/events/o?from=-5m"}),
        ("/ws", {**whole, "path": "/events/o", "lastEventId": "p1", "credit": 5}),
    ]


async def test_an_error_before_the_beginning_is_a_refusal_unless_kafka_is_away():
    async def handler(socket: ServerConnection) -> None:
        code = "kafka-unavailable" if "away" in socket.request.path else "unknown-path"
        await socket.send(json.dumps({"type": "error", "code": code, "message": "no"}))
        await socket.close(1013)

    async with served(handler) as url:
        _, over = await heard(source(f"{url}/other"))
        assert isinstance(over, StreamRefused) and str(over) == "unknown-path: no"
        _, over = await heard(source(f"{url}/away"))
        assert isinstance(over, ConnectionLost) and over.was_reached


async def test_an_error_later_is_an_event():
    error = '{"type":"error","code":"no-leader","message":"m","topic":"o","partition":0}'

    async def handler(socket: ServerConnection) -> None:
        await socket.send(BEGIN)
        await socket.send(error)

    async with served(handler) as url:
        items, over = await heard(source(f"{url}/o"))
    assert items[1] == StreamEvent("error", error.encode())
    assert isinstance(over, ConnectionLost)


@pytest.mark.parametrize(
    ("status", "kind"), [(404, StreamRefused), (401, StreamRefused), (503, ConnectionLost)]
)
async def test_a_handshake_refused_is_told_by_its_problem(status, kind):
    def refuse(socket, request):
        answer = socket.respond(HTTPStatus(status), '{"detail": "no; do this"}')
        answer.headers["Retry-After"] = "7"
        return answer

    async def handler(socket: ServerConnection) -> None:
        raise AssertionError("nobody comes in")

    async with served(handler, process_request=refuse) as url:
        _, over = await heard(source(f"{url}/o"))
    assert isinstance(over, kind) and str(over) == f"{status}: no; do this"
    assert isinstance(over, StreamRefused) or over.retry_after == 7


async def test_nobody_at_home_and_a_cut_are_told_apart():
    async def handler(socket: ServerConnection) -> None:
        await socket.send(BEGIN)
        socket.transport.abort()

    async with served(handler) as url:
        _, over = await heard(source(f"{url}/o"))
    assert isinstance(over, ConnectionLost) and over.was_reached
    _, over = await heard(source(f"{url}/o"))
    assert isinstance(over, ConnectionLost) and not over.was_reached
    assert str(over) == "Connection refused"


async def test_silence_is_asked_about_and_then_lost():
    asked = []

    async def handler(socket: ServerConnection) -> None:
        await socket.send(BEGIN)
        with contextlib.suppress(Exception):
            async for text in socket:
                asked.append(json.loads(text))
                if len(asked) == 1:
                    await socket.send('{"type":"pong"}')

    async with served(handler) as url:
        _, over = await asyncio.wait_for(heard(source(f"{url}/o", idle_timeout_s=0.4)), 60)
    assert isinstance(over, ConnectionLost) and "nothing received" in str(over)
    assert len(asked) >= 2 and asked[0] == {"type": "ping"}
