"""Whether records count as returned, by what becomes of the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import Message

from gateway.config.sections.sidecar import Consumer
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable
from gateway.sidecar.consumer.delivery import Delivery
from gateway.sidecar.consumer.instance import Instance
from gateway.sidecar.consumer.instance_options import Wishes
from gateway.sidecar.http.status import response

RECORDS = [Record(TopicPartition("t", 0), 5, 0, 0, None, b"v")]
SCOPE = {"type": "http", "method": "GET", "path": "/", "headers": []}


class Told(Instance):
    """Writes down what it is told."""

    def __init__(self) -> None:
        wishes = Wishes.of({}, Consumer())
        super().__init__(None, Consumer(), "g", "i", wishes, dialect="contract")  # type: ignore[arg-type]
        self.told: list[str] = []

    def returned(self, records: Sequence[Record]) -> None:
        self.told.append("returned")

    def give_back(self, records: Sequence[Record]) -> None:
        self.told.append("given back")


class Connection:
    """Goes away with the nth thing that is sent; 0: before anything is."""

    def __init__(self, gone_at: int | None = None) -> None:
        self.sent: list[Message] = []
        self._left = gone_at
        self._gone = asyncio.Event()
        self._asked = False
        if gone_at == 0:
            self._gone.set()

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        if self._left is not None and len(self.sent) >= self._left:
            self._gone.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)


async def delivered(connection: Connection, read: Any = None, written: Any = None) -> Told:
    instance = Told()

    async def records(left: float, gone: object) -> Sequence[Record]:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return RECORDS

    async def shown(some: Sequence[Record]) -> Response:
        return Response(b"[1]")

    delivery = Delivery(
        instance, 1.0, read or records, written or shown,
        lambda records, arrived: instance.told.append(str(arrived)), response,
    )  # fmt: skip
    await delivery(SCOPE, connection.receive, connection.send)
    return instance


async def test_records_that_were_written_are_returned():
    connection = Connection()
    instance = await delivered(connection)
    assert instance.told == ["returned", "True"]
    assert connection.body == b"[1]" and not connection.sent[-1]["more_body"]


async def test_records_for_a_client_that_is_gone_go_back():
    for gone_at in (0, 1, 2, 3):
        connection = Connection(gone_at)
        assert (await delivered(connection)).told == ["given back", "False"], gone_at
        assert all(each.get("more_body", True) for each in connection.sent), "no whole answer"


async def test_records_that_cannot_be_shown_go_back_and_the_client_hears_why():
    async def away(some: Sequence[Record]) -> Response:
        raise BrokerUnavailable("the registry is away", retry_after=3.0)

    connection = Connection()
    instance = await delivered(connection, written=away)
    assert instance.told == ["given back", "False"]
    assert connection.sent[0]["status"] == 503


async def test_the_turn_is_over_whatever_became_of_it():
    async def broken(left: float, gone: object) -> Sequence[Record]:
        raise BrokerUnavailable("Kafka is away")

    connection = Connection()
    instance = await delivered(connection, read=broken)
    assert connection.sent[0]["status"] == 503 and instance.told == []
    async with asyncio.timeout(5), instance.turn():
        assert not instance.polling
