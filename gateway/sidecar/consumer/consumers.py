"""Create, subscribe, poll and delete consumer instances over HTTP.

Paths and bodies are the contract's. Confluent's dialect (`v2`) is served at the same paths, and at
those for which it has other names. An offset that a client commits is that of the last record it
has processed, as in Confluent's proxy; the group continues with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GatewayError
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.component import Component
from gateway.sidecar.context import AuditEvent, Context, NullAuditor
from gateway.sidecar.http.body import read_body, release_parsed
from gateway.sidecar.http.ids import CORRELATION_HEADER, TRACEABILITY_HEADER
from gateway.sidecar.http.middleware import ADMIN_SCOPE, READ_SCOPE, WRITE_SCOPE
from gateway.sidecar.http.spec import create_invalid_request, parse_timestamp
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.topics import check_offsets, check_partitions, describe_topics
from gateway.sidecar.v2 import errors as v2_errors
from gateway.sidecar.v2 import media
from gateway.sidecar.v2.dialect import CONFLUENT, negotiate_content_type
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .base_uri import build_base_uri
from .dialect import (
    ContractDialect,
    Dialect,
    TrailingSlashRoute,
    build_ambiguous_response,
    format_partitions,
)
from .instance import ConsumerInstance, translate_group_error
from .instance_options import MAX_POLL_TIMEOUT_MS, InstanceOptions, compile_topic_pattern
from .instances import INSTANCE_NOT_FOUND, ConsumerInstances, EndedInstances
from .poll_response import PollResponse
from .record_json import hold_records, render_records

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
GROUP_PATH = "/consumers/{group}"
INSTANCE_PATH = GROUP_PATH + "/instances/{instance}"

POLL_OUTCOMES = ("records", "empty", "left")
CONTRACT = ContractDialect()

DialectHandler = Callable[[Request, Dialect], Awaitable[Response]]
InstanceHandler = Callable[[Request, Dialect, ConsumerInstance], Awaitable[Response]]


class ConsumerComponent(Component):
    """Serve the operations on consumer instances, and own the instances of this process."""

    def __init__(self, context: Context) -> None:
        settings = context.section.consumer
        assert settings is not None
        self._context = context
        self._settings = settings
        self._instances = ConsumerInstances(
            context.cluster, settings, context.section.internal_topics, context.client_memory
        )
        self._record_counts: Counter[str] = Counter()  # by topic
        self._byte_counts: Counter[str] = Counter()  # of keys, values and headers, by topic
        self._poll_counts: Counter[str] = Counter()  # by outcome: records, empty, left
        bind = self._create_instance_endpoint
        self.routes = [
            TrailingSlashRoute(f"{INSTANCE_PATH}/records", bind(self._poll, READ_SCOPE), "GET"),
            TrailingSlashRoute(f"{INSTANCE_PATH}/offsets", bind(self._commit, WRITE_SCOPE), "POST"),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/offsets", bind(self._get_committed, WRITE_SCOPE), "PUT"
            ),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/offsets", bind(self._get_committed, READ_SCOPE), "GET"
            ),
            TrailingSlashRoute(GROUP_PATH, self._create_endpoint(self._create), "POST"),
            TrailingSlashRoute(INSTANCE_PATH, bind(self._delete, WRITE_SCOPE), "DELETE"),
            *self._build_subscription_routes(f"{INSTANCE_PATH}/subscriptions"),
            *self._build_subscription_routes(f"{INSTANCE_PATH}/subscription"),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/assignments", bind(self._assign, WRITE_SCOPE), "POST"
            ),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/assignments", bind(self._get_assignment, READ_SCOPE), "GET"
            ),
            TrailingSlashRoute(f"{INSTANCE_PATH}/positions", bind(self._seek, WRITE_SCOPE), "POST"),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/positions/first", bind(self._seek_to_first, WRITE_SCOPE), "POST"
            ),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/positions/beginning",
                bind(self._seek_to_first, WRITE_SCOPE),
                "POST",
            ),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/positions/last", bind(self._seek_to_last, WRITE_SCOPE), "POST"
            ),
            TrailingSlashRoute(
                f"{INSTANCE_PATH}/positions/end", bind(self._seek_to_last, WRITE_SCOPE), "POST"
            ),
        ]

    def _build_subscription_routes(self, path: str) -> Sequence[BaseRoute]:
        """Build the routes of a subscription, which has one path in the contract and one in v2."""
        bind = self._create_instance_endpoint
        return [
            TrailingSlashRoute(path, bind(self._subscribe, WRITE_SCOPE), "POST"),
            TrailingSlashRoute(path, bind(self._get_subscription, READ_SCOPE), "GET"),
            TrailingSlashRoute(path, bind(self._unsubscribe, WRITE_SCOPE), "DELETE"),
        ]

    async def run(self) -> None:
        await self._instances.run()

    def collect_metrics(self, samples: MetricSamples) -> None:
        states: Counter[str] = Counter({"idle": 0, "subscribed": 0})
        states.update(
            "subscribed" if instance.is_subscribed else "idle" for instance in self._instances
        )
        samples.add_counts(catalog.CONSUMER_INSTANCES, states)
        samples.add(catalog.CONSUMER_CREATED, self._instances.created)
        samples.add_counts(catalog.CONSUMER_ENDED, self._instances.ended)
        samples.add_zeros(catalog.CONSUMER_ENDED, EndedInstances.REASONS)
        samples.add(
            catalog.CONSUMER_POLLING, sum(instance.is_polling for instance in self._instances)
        )
        samples.add_counts(catalog.CONSUMER_POLLS, self._poll_counts)
        samples.add_zeros(catalog.CONSUMER_POLLS, POLL_OUTCOMES)
        samples.add_counts(catalog.CONSUMER_RECORDS, self._record_counts)
        samples.add_counts(catalog.CONSUMER_BYTES, self._byte_counts)

    # Endpoints: who requests something, and in which dialect

    def _create_endpoint(self, handler: DialectHandler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            dialect: Dialect = (
                CONFLUENT if media.is_confluent_request(request.headers) else CONTRACT
            )
            try:
                return await handler(request, dialect)
            except Exception as exc:
                return self._build_error_response(request, dialect, exc)

        return endpoint

    def _create_instance_endpoint(
        self, handler: InstanceHandler, scope: str
    ) -> Callable[[Request], Awaitable[Response]]:
        """Build an endpoint of an instance, which cannot expire while a request uses it."""

        async def endpoint(request: Request) -> Response:
            is_confluent = media.is_confluent_request(request.headers)
            # Errors before the instance is known can only go by the request.
            dialect: Dialect = CONFLUENT if is_confluent else CONTRACT
            group, name = request.path_params["group"], request.path_params["instance"]
            try:
                identity = await self._context.authorize(request, scope, (), group)
                instance = self._instances.get(group, name, identity)
                if instance.dialect == CONFLUENT.name:
                    dialect = CONFLUENT
                with self._instances.keep_alive(instance):
                    response = await handler(request, dialect, instance)
                    if isinstance(response, PollResponse):
                        # It polls while it is sent, so it must be sent here, where the instance
                        # counts as in use.
                        await response(request.scope, request.receive, request._send)
                        return AlreadySentResponse()
                    return response
            except StatusError as exc:
                if exc.code == INSTANCE_NOT_FOUND and not is_confluent and dialect is CONTRACT:
                    return build_ambiguous_response(exc, v2_errors.INSTANCE_NOT_FOUND)
                return self._build_error_response(request, dialect, exc)
            except Exception as exc:
                return self._build_error_response(request, dialect, exc)

        return endpoint

    def _build_error_response(self, request: Request, dialect: Dialect, exc: Exception) -> Response:
        """Build the response for an error; the contract's application answers unexpected ones."""
        exc = translate_group_error(exc)
        if isinstance(exc, GatewayError):
            log.debug("%s %s: %s", request.method, request.url.path, exc)
            return dialect.build_error_response(request, exc)
        if dialect is CONTRACT:
            raise exc
        return dialect.build_error_response(request, exc)

    async def _read_body(self, request: Request, dialect: Dialect, operation: str) -> Any:
        data = await read_body(request, MAX_BODY_BYTES)
        content_type = request.headers.get("content-type")
        return dialect.parse_body(self._context.spec[operation], data, content_type)

    # Instances

    async def _create(self, request: Request, dialect: Dialect) -> Response:
        group = request.path_params["group"]
        # A member takes partitions from the others, and its commits pass over their records.
        scope = ADMIN_SCOPE if group in self._context.section.reactive_groups else WRITE_SCOPE
        identity = await self._context.authorize(request, scope, (), group)
        try:
            self._context.spec["createConsumerInstanceInGroup"].parse_parameters(request)
            body = await self._read_body(request, dialect, "createConsumerInstanceInGroup")
            options = InstanceOptions.from_body(body or {}, self._settings)
        except StatusError as exc:
            raise v2_errors.to_invalid_configuration(exc) if dialect is CONFLUENT else exc from None
        # Checked before the instance exists: one whose answer was refused would be left behind.
        negotiate_content_type(request, strict=dialect is CONFLUENT)
        instance = self._instances.add(
            group, options, dialect=dialect.name, identity=identity, auditor=self._context.auditor
        )
        uri = build_base_uri(request, self._settings.base_uri, group, instance.name)
        return dialect.build_response(request, dialect.format_created(instance.name, uri))

    async def _delete(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        await self._instances.remove(instance)
        return Response(status_code=204)

    # Subscriptions

    async def _subscribe(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        body = await self._read_body(request, dialect, "subscribeTopics")
        topics, pattern = body.get("topics"), body.get("topic_pattern")
        if topics is not None and pattern is not None:
            detail = "a subscription has either topics or topic_pattern; leave out one of them"
            raise StatusError(409, detail, code="OTHER_SUBSCRIPTION")
        try:
            if not topics and not pattern:
                raise create_invalid_request(
                    "topics", "is empty; name topics, or give a topic_pattern"
                )
            compiled = None if pattern is None else compile_topic_pattern(pattern)
        except StatusError as exc:
            raise v2_errors.to_unprocessable(exc) if dialect is CONFLUENT else exc from None
        # A misspelt name would never give records, without an error.
        topics = list(await describe_topics(self._context, topics or ()))
        await self._context.authorize(request, WRITE_SCOPE, topics, instance.group)
        del body
        release_parsed(request)
        async with instance.lock_for_change():
            instance.subscribe(topics, compiled)
        return Response(status_code=204)

    async def _get_subscription(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        topics: Sequence[str] = instance.topics
        if instance.pattern is not None:
            matches = await self._context.cluster.match_topics(instance.pattern)
            topics = sorted(filter(instance.is_visible, matches))
        return dialect.build_response(request, dialect.format_topics(instance, topics))

    async def _unsubscribe(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        async with instance.lock_for_change():
            await instance.unsubscribe()
        return Response(status_code=204)

    async def _assign(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        body = await self._read_body(request, dialect, "assignPartitions")
        tps = _parse_partitions(body, "partitions")
        await check_partitions(self._context, tps)
        del body
        release_parsed(request)
        async with instance.lock_for_change():
            await instance.assign(tps)
        return Response(status_code=204)

    async def _get_assignment(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        return dialect.build_response(request, dialect.format_partitions(instance.assignment))

    # Positions

    async def _seek(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        body = await self._read_body(request, dialect, "overrideFetchOffset")
        offsets = {
            _parse_partition(entry): int(entry["offset"]) for entry in body.get("offsets") or ()
        }
        times: dict[TopicPartition, int | str] = {
            _parse_partition(entry): parse_timestamp(entry["timestamp"], "timestamps")
            for entry in body.get("timestamps") or ()
        }
        await check_partitions(self._context, [*offsets, *times])
        del body
        release_parsed(request)
        async with instance.lock_for_change():
            await instance.wait_for_assignment([*offsets, *times])
            await check_offsets(self._context, offsets)
            await instance.seek(offsets)
            await instance.seek_to_specs(times)
        return Response(status_code=204)

    async def _seek_to_first(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        return await self._seek_to(request, dialect, instance, "seekFirstOffset", "first")

    async def _seek_to_last(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        return await self._seek_to(request, dialect, instance, "seekLastOffset", "last")

    async def _seek_to(
        self,
        request: Request,
        dialect: Dialect,
        instance: ConsumerInstance,
        operation: str,
        position: str,
    ) -> Response:
        body = await self._read_body(request, dialect, operation)
        tps = _parse_partitions(body, "partitions")
        await check_partitions(self._context, tps)
        del body
        release_parsed(request)
        async with instance.lock_for_change():
            await instance.seek_to_specs(dict.fromkeys(tps, position))
        return Response(status_code=204)

    # Committed offsets

    async def _commit(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        body = await self._read_body(request, dialect, "commmitConsumerOffsets")
        offsets: dict[TopicPartition, OffsetAndMetadata] | None = None
        if body is not None:
            # Of `offsets` those of records, of `partitions` those of the next records, as in Kafka.
            name, step = ("offsets", 1) if "offsets" in body else ("partitions", 0)
            offsets = {
                _parse_partition(entry): OffsetAndMetadata(
                    int(entry["offset"]) + step, metadata=entry.get("metadata") or ""
                )
                for entry in body[name]
            }
            await check_partitions(self._context, offsets)
            await check_offsets(self._context, instance.select_unreturned(offsets))
        del body
        release_parsed(request)
        committed = await instance.commit(offsets)
        return dialect.build_response(request, _format_offsets(committed))

    async def _get_committed(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        body = await self._read_body(request, dialect, "getCommittedOffsets")
        tps = _parse_partitions(body or {}, "partitions") or _parse_partitions(
            body or {}, "offsets"
        )
        await check_partitions(self._context, tps)
        del body
        release_parsed(request)
        return dialect.build_response(request, _format_offsets(await instance.committed(tps)))

    # Records

    async def _poll(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        negotiate_content_type(request, strict=dialect is CONFLUENT)
        try:
            parameters = self._context.spec["fetchTopicData"].parse_parameters(request)
        except StatusError as exc:
            raise v2_errors.to_unprocessable(exc) if dialect is CONFLUENT else exc from None
        formats = dialect.resolve_formats(request, instance, self._context)
        headers = dialect.get_header_formatter(request)
        timeout_s = (
            min(parameters.get("timeout", instance.options.timeout_s * 1000), MAX_POLL_TIMEOUT_MS)
            / 1000
        )
        max_bytes = max(1, parameters.get("max_bytes", self._settings.request_max_bytes))
        min_bytes = max(1, parameters.get("responseMinBytes", instance.options.min_bytes))

        async def poll(remaining_s: float, disconnected: asyncio.Future[Any]) -> Sequence[Record]:
            records = await instance.poll(
                remaining_s, max_bytes, min_bytes, self._context.draining, disconnected
            )
            if not records:  # none is an answer only if Kafka could have sent some
                self._context.require_kafka()
            return records

        async def build_response(records: Sequence[Record]) -> tuple[Response, Sequence[Record]]:
            codecs = self._context.codecs
            with hold_records(self._context.client_memory, records):
                body, count = await render_records(
                    codecs, records, formats, headers,
                    omit_empty_headers=dialect.omits_empty_headers,
                )  # fmt: skip
            return dialect.build_records_response(request, instance, body), records[:count]

        return PollResponse(
            instance, timeout_s, poll, build_response, self._record_poll,
            lambda exc: self._build_error_response(request, dialect, exc),
        )  # fmt: skip

    def _record_poll(self, records: Sequence[Record], is_sent: bool) -> None:
        self._poll_counts["left" if not is_sent else "records" if records else "empty"] += 1
        if not is_sent:
            return
        for topic in {record.tp.topic for record in records}:
            topic_records = [record for record in records if record.tp.topic == topic]
            self._record_counts[topic] += len(topic_records)
            self._byte_counts[topic] += sum(record.payload_size for record in topic_records)
        if isinstance(self._context.auditor, NullAuditor):
            return
        for record in records:
            headers = {name: (value or b"").decode("latin-1") for name, value in record.headers}
            ids = headers.get(CORRELATION_HEADER, ""), headers.get(TRACEABILITY_HEADER, "")
            self._context.auditor.record(
                AuditEvent("ACTIVE_CONSUMER", record.tp, record.offset, record.key, *ids)
            )


class AlreadySentResponse(Response):
    """Stand for a response that was sent before its endpoint returned."""

    async def __call__(self, *_: Any) -> None:
        return None


def _parse_partition(entry: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(entry["topic"], int(entry["partition"]))


def _parse_partitions(body: Mapping[str, Any], name: str) -> list[TopicPartition]:
    return list(dict.fromkeys(_parse_partition(entry) for entry in body.get(name) or ()))


def _format_offsets(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, Any]:
    return {
        "offsets": [
            {**partition, "offset": position.offset, "metadata": position.metadata or ""}
            for partition, position in zip(
                format_partitions(committed),
                (committed[tp] for tp in sorted(committed)),
                strict=True,
            )
        ]
    }
