"""Records of a partition by their offset, for who needs no group and no instance:
`GET /topics/{topic}/partitions/{partition}/records?offset=&max_bytes=&timeout=`, as Redpanda's
proxy has it.

An offset that the log has not (any more) is answered with 416 and the log's bounds: going on from
another one would lose records, or give them twice, without a word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import PartitionFailed
from gateway.formats.codec import Format
from gateway.kafka.group.consumer import GroupConsumer
from gateway.sidecar.context import Context
from gateway.sidecar.http.scope import READ
from gateway.sidecar.http.status import Refusal, answer, headers_of
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import CONFLUENT, answered_as, typed
from gateway.sidecar.v2.errors import body_of, invalid
from gateway.sidecar.v2.served import asked_partition, spoken
from gateway.sidecar.v2.topics import bounds

from .delivery import client_gone
from .dialect import Slashed
from .instance_options import LONGEST_WAIT
from .record_json import paired_headers, shown


class OutOfRange(Refusal):
    """first, last: offsets that the log has, the last excluded."""

    def __init__(self, tp: TopicPartition, offset: int, first: int, last: int) -> None:
        what = f"{tp} has no offset {offset}; it begins at {first} and ends before {last}"
        super().__init__(416, f"{what}; ask for one of those", code="OFFSET_OUT_OF_RANGE")
        self.first, self.last = first, last


class Stateless:
    """The part; see the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.consumer
        assert settings is not None
        self._context = context
        self._settings = settings
        path = "/topics/{topic}/partitions/{partition}/records"
        self.routes: Sequence[BaseRoute] = [Slashed(path, spoken(self._records), "GET")]

    async def run(self) -> None:
        """Nothing runs beside it."""

    async def check(self) -> None:
        """Kafka is checked for all parts."""

    async def _records(self, request: Request) -> Response:
        await self._context.scope(request, READ, [request.path_params["topic"]])
        tp = await asked_partition(self._context, request)
        try:
            given = self._context.spec["readRecords"].parameters(request)
        except Refusal as exc:
            raise invalid(exc) from None
        format = _format(request)
        offset = given["offset"]
        wait = min(given.get("timeout", self._settings.request_timeout * 1000), LONGEST_WAIT)
        most = max(1, given.get("max_bytes", self._settings.request_max_bytes))
        try:
            records = await self._read(request, tp, offset, wait / 1000, most)
        except OutOfRange as exc:
            status, body = body_of(exc)
            told = {**body, "log_start_offset": exc.first, "log_end_offset": exc.last}
            return typed(answer(told, status, headers_of(exc, status)), answered_as(request))
        made = await shown(
            self._context.codecs, records, lambda _: (format, format), paired_headers, bare=True
        )
        return typed(CONFLUENT.answer(request, made), media.of_format(format))

    async def _read(
        self, request: Request, tp: TopicPartition, offset: int, wait: float, most: int
    ) -> Sequence[Record]:
        """Raises OutOfRange; as `Context.topic`."""
        settings = self._settings
        await self._context.topic(tp.topic)
        consumer = GroupConsumer(
            self._context.cluster,
            "",
            auto_offset_reset="none",
            isolation=settings.isolation,
            max_partition_bytes=settings.max_partition_fetch_bytes,
            max_fetch_bytes=settings.fetch_max_bytes,
        )
        try:
            consumer.assign([tp])
            consumer.seek(tp, offset)
            records = await self._polled(request, consumer, wait, most)
        except PartitionFailed:
            first, last = await bounds(self._context, tp)
            raise OutOfRange(tp, offset, first, last) from None
        finally:
            await consumer.close()
        if not records:
            self._context.reachable()
        return records

    async def _polled(
        self, request: Request, consumer: GroupConsumer, wait: float, most: int
    ) -> Sequence[Record]:
        """Until the client is gone, or the sidecar is about to end."""
        size, count = min(most, self._settings.request_max_bytes), self._settings.max_poll_records
        polling = asyncio.ensure_future(consumer.poll(wait, max_bytes=size, max_records=count))
        draining = asyncio.ensure_future(self._context.draining.wait())
        gone = asyncio.ensure_future(client_gone(request.receive))
        try:
            waited = [polling, draining, gone]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else []
        finally:
            for each in (polling, draining, gone):
                each.cancel()
            await asyncio.wait([polling])


def _format(request: Request) -> Format:
    """Of the first type in Accept that names one; binary, where none does."""
    for name in media.accepted(request.headers):
        found = media.parsed(name)
        if found is not None and found.format is not None:
            return found.format
    return Format.BINARY
