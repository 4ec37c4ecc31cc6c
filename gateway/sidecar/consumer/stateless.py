"""Read records of a partition by offset, without a group and without an instance.

It serves `GET /topics/{topic}/partitions/{partition}/records?offset=&max_bytes=&timeout=`, as
Redpanda's proxy does. An offset that the log does not have is answered with 416 and the log's
bounds: continuing at another offset would silently lose or repeat records.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import PartitionFailed, PartitionUnreadable
from gateway.formats.codec import SerializationFormat
from gateway.kafka.group.consumer import GroupConsumer
from gateway.sidecar.component import Component
from gateway.sidecar.context import Context
from gateway.sidecar.http.disconnect import run_for_client
from gateway.sidecar.http.middleware import READ_SCOPE
from gateway.sidecar.http.status import StatusError, build_error_headers, build_json_response
from gateway.sidecar.membership_options import build_consumer_options
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import (
    CONFLUENT,
    create_endpoint,
    negotiate_content_type,
    parse_partition,
    set_content_type,
)
from gateway.sidecar.v2.errors import build_error_body, to_unprocessable
from gateway.sidecar.v2.topics import fetch_bounds

from .dialect import TrailingSlashRoute
from .instance_options import MAX_POLL_TIMEOUT_MS
from .record_json import hold_records, paired_headers, render_records


class OffsetOutOfRange(StatusError):
    """The log does not have an offset. `log_end_offset` is after the last readable one."""

    def __init__(self, tp: TopicPartition, offset: int, first: int, last: int) -> None:
        problem = f"{tp} has no offset {offset}; it begins at {first} and ends before {last}"
        super().__init__(416, f"{problem}; ask for one of those", code="OFFSET_OUT_OF_RANGE")
        self.log_start_offset, self.log_end_offset = first, last


class Stateless(Component):
    """Serve reads by offset; a consumer is created for each request."""

    def __init__(self, context: Context) -> None:
        settings = context.section.consumer
        assert settings is not None
        self._context = context
        self._settings = settings
        path = "/topics/{topic}/partitions/{partition}/records"
        self.routes = [TrailingSlashRoute(path, create_endpoint(self._get_records), "GET")]

    async def _get_records(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        try:
            parameters = self._context.spec["readRecords"].parse_parameters(request)
        except StatusError as exc:
            raise to_unprocessable(exc) from None
        format = _negotiate_format(request)
        offset = parameters["offset"]
        timeout_ms = min(
            parameters.get("timeout", self._settings.request_timeout * 1000), MAX_POLL_TIMEOUT_MS
        )
        max_bytes = max(1, parameters.get("max_bytes", self._settings.request_max_bytes))
        try:
            records = await self._read_records(request, tp, offset, timeout_ms / 1000, max_bytes)
        except OffsetOutOfRange as exc:
            status, body = build_error_body(exc)
            details = {
                **body,
                "log_start_offset": exc.log_start_offset,
                "log_end_offset": exc.log_end_offset,
            }
            return set_content_type(
                build_json_response(details, status, build_error_headers(exc, status)),
                negotiate_content_type(request),
            )
        with hold_records(self._context.client_memory, records):
            rendered, _ = await render_records(
                self._context.codecs,
                records,
                lambda _: (format, format),
                paired_headers,
                omit_empty_headers=True,
            )
        return set_content_type(
            CONFLUENT.build_response(request, rendered), media.build_media_type(format)
        )

    async def _read_records(
        self, request: Request, tp: TopicPartition, offset: int, timeout_s: float, max_bytes: int
    ) -> Sequence[Record]:
        """Read records; raises OffsetOutOfRange, or as `Context.get_topic`."""
        settings = self._settings
        await self._context.get_topic(tp.topic)
        # A consumer without a group: it only fetches. With `none`, an offset out of range raises
        # PartitionFailed.
        consumer = GroupConsumer(
            self._context.cluster,
            "",
            build_consumer_options(settings, auto_offset_reset="none"),
        )
        try:
            consumer.assign([tp])
            consumer.seek(tp, offset)
            records = await self._poll(request, consumer, timeout_s, max_bytes)
        except PartitionUnreadable:
            raise
        except PartitionFailed:
            first, last = await fetch_bounds(self._context, tp)
            raise OffsetOutOfRange(tp, offset, first, last) from None
        finally:
            await consumer.close()
        if not records:  # none is an answer only if Kafka could have sent some
            self._context.require_kafka()
        return records

    async def _poll(
        self, request: Request, consumer: GroupConsumer, timeout_s: float, max_bytes: int
    ) -> Sequence[Record]:
        max_bytes = min(max_bytes, self._settings.request_max_bytes)
        max_records = self._settings.max_poll_records
        polling = consumer.poll(timeout_s, max_bytes=max_bytes, max_records=max_records)
        return await run_for_client(request, self._context.draining, polling) or ()


def _negotiate_format(request: Request) -> SerializationFormat:
    """Return the format of the first type in `Accept` that names one, or binary."""
    for name in media.iter_accepted_types(request.headers):
        media_type = media.parse_media_type(name)
        if media_type is not None and media_type.format is not None:
            return media_type.format
    return SerializationFormat.BINARY
