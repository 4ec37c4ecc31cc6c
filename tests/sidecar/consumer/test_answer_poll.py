"""Whether records count as returned, by what becomes of the connection."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Message

from gateway.config.sections.sidecar import Consumer
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.sidecar.consumer.consumers import answer_poll
from gateway.sidecar.consumer.instance import ConsumerInstance
from gateway.sidecar.consumer.instance_options import InstanceOptions
from gateway.sidecar.http.requests import EXPIRY_KEY
from gateway.sidecar.http.status import StatusError, build_error_response

RECORDS = [Record(TopicPartition("t", 0), 5, 0, 0, None, b"v")]
SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


class RecordingInstance(ConsumerInstance):
    """Writes down what it is told."""

    def __init__(self) -> None:
        wishes = InstanceOptions.from_body({}, Consumer())
        super().__init__(None, Consumer(), "g", "i", wishes, dialect="contract")  # type: ignore[arg-type]
        self.calls: list[str] = []

    def mark_returned(self, records: Sequence[Record]) -> None:
        self.calls.append("returned")

    def restore_records(self, records: Sequence[Record]) -> None:
        self.calls.append("given back")


class FakeConnection:
    """Goes away with the nth thing that is sent; 0: before anything is."""

    def __init__(self, gone_at: int | None = None) -> None:
        self.sent: list[Message] = []
        self._sends_left = gone_at
        self._disconnected = asyncio.Event()
        self._has_received = False
        if gone_at == 0:
            self._disconnected.set()

    async def receive(self) -> Message:
        if not self._has_received:
            self._has_received = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if self._sends_left is not None and len(self.sent) >= self._sends_left:
            self._disconnected.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    @property
    def body(self) -> bytes:
        return b"".join(item.get("body", b"") for item in self.sent)


async def deliver_records(
    connection: FakeConnection, read: Any = None, written: Any = None, scope: Any = SCOPE
) -> RecordingInstance:
    instance = RecordingInstance()

    async def read_records(left: float, gone: object) -> Sequence[Record]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return RECORDS

    async def render_records(some: Sequence[Record]) -> tuple[Response, Sequence[Record]]:
        return Response(b"[1]"), some

    try:
        await answer_poll(
            instance, 1.0, read or read_records, written or render_records,
            lambda records, arrived: instance.calls.append(str(arrived)),
            scope, connection.receive, connection.send,
        )  # fmt: skip
    except (BrokerUnavailable, StatusError) as exc:
        await build_error_response(exc)(SCOPE, connection.receive, connection.send)
    return instance


async def test_records_that_were_written_are_returned():
    connection = FakeConnection()
    instance = await deliver_records(connection)
    assert instance.calls == ["returned", "True"]
    assert connection.body == b"[1]" and not connection.sent[-1]["more_body"]


async def test_records_that_the_answer_has_no_room_for_go_back():
    async def render_none(some: Sequence[Record]) -> tuple[Response, Sequence[Record]]:
        return Response(b"[]"), some[:0]

    instance = await deliver_records(FakeConnection(), written=render_none)
    assert instance.calls == ["returned", "given back", "True"]


async def test_records_for_a_client_that_is_gone_go_back():
    for gone_at in (0, 1, 2, 3):
        connection = FakeConnection(gone_at)
        assert (await deliver_records(connection)).calls == ["given back", "False"], gone_at
        assert all(item.get("more_body", True) for item in connection.sent), "no whole answer"


async def test_records_that_cannot_be_shown_go_back_and_the_client_hears_why():
    async def fail_render(some: Sequence[Record]) -> Response:
        raise BrokerUnavailable("the registry is away", retry_after=3.0)

    connection = FakeConnection()
    instance = await deliver_records(connection, written=fail_render)
    assert instance.calls == ["given back", "False"]
    assert connection.sent[0]["status"] == 503


async def test_records_are_not_handed_out_once_the_token_has_expired():
    """A long poll got what was written up to 300 s after the end of its token."""
    scope: dict[str, Any] = {**SCOPE, EXPIRY_KEY: time.time() + 600}

    async def render_late(some: Sequence[Record]) -> tuple[Response, Sequence[Record]]:
        scope[EXPIRY_KEY] = time.time() - 1
        return Response(b"[1]"), some

    connection = FakeConnection()
    instance = await deliver_records(connection, written=render_late, scope=scope)
    assert instance.calls == ["given back", "False"]
    assert connection.sent[0]["status"] == 401


async def test_the_turn_is_over_whatever_became_of_it():
    async def fail_read(left: float, gone: object) -> Sequence[Record]:
        raise BrokerUnavailable("Kafka is away")

    connection = FakeConnection()
    instance = await deliver_records(connection, read=fail_read)
    assert connection.sent[0]["status"] == 503 and instance.calls == []
    async with asyncio.timeout(5), instance.lock_for_change():
        assert not instance.is_polling


async def test_a_body_without_an_end_is_dropped_and_holds_up_no_answer():
    """It was collected before the poll, of any size if it was called NDJSON."""
    connection = FakeConnection()

    async def receive() -> Message:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": bytes(1000), "more_body": True}

    connection.receive = receive  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        assert (await deliver_records(connection)).calls == ["returned", "True"]
