"""List topics, partitions and brokers, and read records of a partition by offset, without a group.

The lists are those of Confluent's dialect. `GET /topics/{topic}/partitions/{partition}/records?
offset=&max_bytes=&timeout=` reads, as in Redpanda's proxy. An offset that the log does not have is
answered with 416 and the log's bounds: continuing at another offset would silently lose or repeat
records.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.group.partition_state import prefetched_size
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, PartitionFailed, PartitionUnreadable
from gateway.formats.codec import SerializationFormat
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import EARLIEST, LATEST, READ_COMMITTED, OffsetAndTimestamp
from gateway.kafka.group.consumer import GroupConsumer
from gateway.kafka.protocol.requests import PartitionMetadata
from gateway.kafka.protocol.topic_messages import DescribeConfigsRequest
from gateway.sidecar.context import Component, Context, build_consumer_options
from gateway.sidecar.http.middleware import READ_SCOPE, TrailingSlashRoute
from gateway.sidecar.http.requests import check_lifetime, run_for_client
from gateway.sidecar.http.status import StatusError, build_error_headers, build_json_response
from gateway.sidecar.lookups import describe_topic
from gateway.sidecar.turns import SharedPlaces

from .dialect import (
    CONFLUENT,
    build_error_body,
    build_media_type,
    create_endpoint,
    iter_accepted_types,
    negotiate_content_type,
    parse_media_type,
    parse_partition,
    set_content_type,
)
from .instance_options import MAX_POLL_TIMEOUT_MS
from .record_json import hold_records, paired_headers, render_records

MAX_PARALLEL_READS = 16  # by offset, of up to 4 MiB each that count only when they are rendered


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
        self._reads = SharedPlaces(MAX_PARALLEL_READS)
        path = "/topics/{topic}/partitions/{partition}/records"
        self.routes = [TrailingSlashRoute(path, create_endpoint(self._get_records), "GET")]

    async def _get_records(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        try:
            parameters = self._context.spec["readRecords"].parse_parameters(request)
        except StatusError as exc:
            raise CONFLUENT.translate_invalid(exc) from None
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
        sizes = [prefetched_size(record) for record in records]
        with hold_records(self._context.client_memory, sizes) as held:
            rendered, _ = await render_records(
                self._context.codecs,
                held,
                records,
                lambda _: (format, format),
                paired_headers,
                omit_empty_headers=True,
            )
        check_lifetime(request.scope)
        return set_content_type(
            CONFLUENT.build_response(request, rendered), build_media_type(format)
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
        poll = partial(consumer.poll, max_bytes=max_bytes, max_records=max_records)

        async def read() -> Sequence[Record]:
            async with self._reads:  # not while the brokers wait for records
                records = await poll(0.0)
            return records or await poll(timeout_s)

        return await run_for_client(request, self._context.draining, read()) or ()


def _negotiate_format(request: Request) -> SerializationFormat:
    """Return the format of the first type in `Accept` that names one, or binary."""
    for name in iter_accepted_types(request.headers):
        media_type = parse_media_type(name)
        if media_type is not None and media_type.format is not None:
            return media_type.format
    return SerializationFormat.BINARY


class Topics(Component):
    def __init__(self, context: Context) -> None:
        self._context = context
        partition_path = "/topics/{topic}/partitions/{partition}"
        self.routes = [
            TrailingSlashRoute("/topics", create_endpoint(self._list_topics), "GET"),
            TrailingSlashRoute("/topics/{topic}", create_endpoint(self._get_topic), "GET"),
            TrailingSlashRoute(
                "/topics/{topic}/partitions", create_endpoint(self._list_partitions), "GET"
            ),
            TrailingSlashRoute(partition_path, create_endpoint(self._get_partition), "GET"),
            TrailingSlashRoute(
                f"{partition_path}/offsets", create_endpoint(self._get_offsets), "GET"
            ),
            TrailingSlashRoute("/brokers", create_endpoint(self._list_brokers), "GET"),
        ]

    async def _list_topics(self, request: Request) -> Response:
        """Answer with all topics but Kafka's internal ones, as Java's clients list them."""
        await self._context.authorize(request, READ_SCOPE)
        self._context.require_kafka()
        names = await self._context.cluster.list_topics()
        return CONFLUENT.build_response(request, sorted(name for name in names if name[:2] != "__"))

    async def _get_topic(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.authorize(request, READ_SCOPE, [name])
        topic = await describe_topic(self._context, name)
        description = {
            "name": name,
            "configs": await self._describe_configs(name),
            "partitions": _format_partitions(topic.partitions),
        }
        return CONFLUENT.build_response(request, description)

    async def _list_partitions(self, request: Request) -> Response:
        name = request.path_params["topic"]
        await self._context.authorize(request, READ_SCOPE, [name])
        topic = await describe_topic(self._context, name)
        return CONFLUENT.build_response(request, _format_partitions(topic.partitions))

    async def _get_partition(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        topic = await describe_topic(self._context, tp.topic)
        return CONFLUENT.build_response(
            request, _format_partition(tp.partition, topic.partitions[tp.partition])
        )

    async def _get_offsets(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE, [request.path_params["topic"]])
        tp = await parse_partition(self._context, request)
        first, last = await fetch_bounds(self._context, tp)
        return CONFLUENT.build_response(request, {"beginning_offset": first, "end_offset": last})

    async def _list_brokers(self, request: Request) -> Response:
        await self._context.authorize(request, READ_SCOPE)
        self._context.require_kafka()
        return CONFLUENT.build_response(
            request, {"brokers": sorted(self._context.cluster.metadata.brokers)}
        )

    async def _describe_configs(self, topic: str) -> dict[str, str | None]:
        """Return the configuration of a topic; nothing while no broker has answered yet."""
        cluster = self._context.cluster
        node = cluster.metadata.last_responder  # any broker knows the configs of topics
        if node is None:
            return {}
        request = DescribeConfigsRequest(topic, None)
        return (await cluster.connections.send(node, ConnectionRole.CONTROL, request)).values


async def fetch_bounds(
    context: Context, tp: TopicPartition, isolation: int = READ_COMMITTED
) -> tuple[int, int]:
    """Return the first offset of a partition, and the offset after the last one that may be read.

    Raises BrokerUnavailable if Kafka does not say, or as `Context.get_topic`.
    """
    await context.get_topic(tp.topic)
    bounds: list[int] = []
    for spec in (EARLIEST, LATEST):
        answer = (await context.cluster.list_offsets({tp: spec}, isolation))[tp]
        if not isinstance(answer, OffsetAndTimestamp):
            problem = f"{tp} does not say where it begins and ends (code {answer}); try again"
            raise BrokerUnavailable(problem, retry_after=1.0)
        bounds.append(answer.offset)
    return bounds[0], bounds[1]


def _format_partitions(partitions: dict[int, PartitionMetadata]) -> list[dict[str, Any]]:
    return [_format_partition(number, partitions[number]) for number in sorted(partitions)]


def _format_partition(number: int, partition: PartitionMetadata) -> dict[str, Any]:
    replicas = [
        {"broker": node, "leader": node == partition.leader, "in_sync": node in partition.isr}
        for node in partition.replicas
    ]
    return {"partition": number, "leader": partition.leader, "replicas": replicas}
