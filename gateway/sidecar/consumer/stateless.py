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
from gateway.formats.codec import SerializationFormat
from gateway.kafka.group.consumer import GroupConsumer
from gateway.sidecar.context import Context
from gateway.sidecar.http.authorization import READ_SCOPE
from gateway.sidecar.http.status import StatusError, build_error_headers, build_json_response
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import CONFLUENT, negotiate_content_type, set_content_type
from gateway.sidecar.v2.endpoints import create_endpoint, parse_partition
from gateway.sidecar.v2.errors import build_error_body, to_unprocessable
from gateway.sidecar.v2.topics import fetch_bounds

from .dialect import TrailingSlashRoute
from .instance_options import MAX_POLL_TIMEOUT_MS
from .poll_response import wait_for_disconnect
from .record_json import paired_headers, render_records


class OffsetOutOfRange(StatusError):
    """first, last: offsets that the log has, the last excluded."""

    def __init__(self, tp: TopicPartition, offset: int, first: int, last: int) -> None:
        what = f"{tp} has no offset {offset}; it begins at {first} and ends before {last}"
        super().__init__(416, f"{what}; ask for one of those", code="OFFSET_OUT_OF_RANGE")
        self.log_start_offset, self.log_end_offset = first, last


class Stateless:
    """The part; see the module, and `part.Part`."""

    def __init__(self, context: Context) -> None:
        settings = context.section.consumer
        assert settings is not None
        self._context = context
        self._settings = settings
        path = "/topics/{topic}/partitions/{partition}/records"
        self.routes: Sequence[BaseRoute] = [
            TrailingSlashRoute(path, create_endpoint(self._get_records), "GET")
        ]

    async def run(self) -> None:
        """Nothing runs beside it."""

    async def check_ready(self) -> None:
        """Kafka is checked for all parts."""

    async def _get_records(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        try:
            given = self._context.spec["readRecords"].parse_parameters(request)
        except StatusError as exc:
            raise to_unprocessable(exc) from None
        format = _negotiate_format(request)
        offset = given["offset"]
        wait = min(given.get("timeout", self._settings.request_timeout * 1000), MAX_POLL_TIMEOUT_MS)
        most = max(1, given.get("max_bytes", self._settings.request_max_bytes))
        try:
            records = await self._read_records(request, tp, offset, wait / 1000, most)
        except OffsetOutOfRange as exc:
            status, body = build_error_body(exc)
            told = {
                **body,
                "log_start_offset": exc.log_start_offset,
                "log_end_offset": exc.log_end_offset,
            }
            return set_content_type(
                build_json_response(told, status, build_error_headers(exc, status)),
                negotiate_content_type(request),
            )
        made = await render_records(
            self._context.codecs,
            records,
            lambda _: (format, format),
            paired_headers,
            omit_empty_headers=True,
        )
        return set_content_type(
            CONFLUENT.build_response(request, made), media.build_media_type(format)
        )

    async def _read_records(
        self, request: Request, tp: TopicPartition, offset: int, timeout_s: float, max_bytes: int
    ) -> Sequence[Record]:
        """Raises OutOfRange; as `Context.topic`."""
        settings = self._settings
        await self._context.get_topic(tp.topic)
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
            records = await self._poll(request, consumer, timeout_s, max_bytes)
        except PartitionFailed:
            first, last = await fetch_bounds(self._context, tp)
            raise OffsetOutOfRange(tp, offset, first, last) from None
        finally:
            await consumer.close()
        if not records:
            self._context.require_kafka()
        return records

    async def _poll(
        self, request: Request, consumer: GroupConsumer, timeout_s: float, max_bytes: int
    ) -> Sequence[Record]:
        """Until the client is gone, or the sidecar is about to end."""
        size, count = (
            min(max_bytes, self._settings.request_max_bytes),
            self._settings.max_poll_records,
        )
        polling = asyncio.ensure_future(consumer.poll(timeout_s, max_bytes=size, max_records=count))
        draining = asyncio.ensure_future(self._context.draining.wait())
        gone = asyncio.ensure_future(wait_for_disconnect(request.receive))
        try:
            waited = [polling, draining, gone]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            return polling.result() if polling.done() else []
        finally:
            for each in (polling, draining, gone):
                each.cancel()
            await asyncio.wait([polling])


def _negotiate_format(request: Request) -> SerializationFormat:
    """Of the first type in Accept that names one; binary, where none does."""
    for name in media.iter_accepted_types(request.headers):
        found = media.parse_media_type(name)
        if found is not None and found.format is not None:
            return found.format
    return SerializationFormat.BINARY
