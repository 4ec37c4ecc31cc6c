"""Create, subscribe, poll and delete consumer instances over HTTP.

Paths and bodies are the contract's. Confluent's dialect (`v2`) is served at the same paths, and at
those for which it has other names. An offset that a client commits is that of the last record it
has processed, as in Confluent's proxy; the group continues with the next one.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.core.group.partition_state import EARLIEST, LATEST
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import GatewayError, KafkaError
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.context import AuditEvent, Component, Context
from gateway.sidecar.http.middleware import (
    ADMIN_SCOPE,
    READ_SCOPE,
    WRITE_SCOPE,
    TrailingSlashRoute,
)
from gateway.sidecar.http.requests import (
    CORRELATION_HEADER,
    TRACEABILITY_HEADER,
    check_lifetime,
    get_lifetime,
    read_body,
    release_parsed,
    wait_for_disconnect,
)
from gateway.sidecar.http.spec import create_invalid_request, parse_timestamp
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.lookups import (
    check_offsets,
    check_partitions,
    describe_topics,
    parse_tp,
)
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples

from .dialect import (
    CONFLUENT,
    CONTRACT,
    ERROR_CODES,
    Dialect,
    build_ambiguous_response,
    is_confluent_request,
    negotiate_content_type,
)
from .instance import ConsumerInstance, translate_group_error
from .instance_options import (
    MAX_POLL_TIMEOUT_MS,
    InstanceOptions,
    build_base_uri,
    compile_topic_pattern,
)
from .instances import INSTANCE_NOT_FOUND, ConsumerInstances, EndedInstances
from .record_json import hold_records, render_records

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 20
GROUP_PATH = "/consumers/{group}"
INSTANCE_PATH = GROUP_PATH + "/instances/{instance}"

POLL_OUTCOMES = ("records", "empty", "left")

T = TypeVar("T")

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
        self.routes = [
            TrailingSlashRoute(GROUP_PATH, self._create_endpoint(self._create), "POST"),
            *(
                TrailingSlashRoute(
                    INSTANCE_PATH + path, self._create_instance_endpoint(handler, scope), method
                )
                for method, path, handler, scope in self._list_instance_operations()
            ),
        ]

    def _list_instance_operations(self) -> Sequence[tuple[str, str, InstanceHandler, str]]:
        """Return method, path, handler and scope of each; some have another path in v2."""
        seek_first = partial(self._seek_to, "seekFirstOffset", EARLIEST)
        seek_last = partial(self._seek_to, "seekLastOffset", LATEST)
        return [
            ("GET", "/records", self._poll, READ_SCOPE),
            ("POST", "/offsets", self._commit, WRITE_SCOPE),
            ("PUT", "/offsets", self._get_committed, WRITE_SCOPE),
            ("GET", "/offsets", self._get_committed, READ_SCOPE),
            ("DELETE", "", self._delete, WRITE_SCOPE),
            *(
                operation
                for path in ("/subscriptions", "/subscription")
                for operation in (
                    ("POST", path, self._subscribe, WRITE_SCOPE),
                    ("GET", path, self._get_subscription, READ_SCOPE),
                    ("DELETE", path, self._unsubscribe, WRITE_SCOPE),
                )
            ),
            ("POST", "/assignments", self._assign, WRITE_SCOPE),
            ("GET", "/assignments", self._get_assignment, READ_SCOPE),
            ("POST", "/positions", self._seek, WRITE_SCOPE),
            ("POST", "/positions/first", seek_first, WRITE_SCOPE),
            ("POST", "/positions/beginning", seek_first, WRITE_SCOPE),
            ("POST", "/positions/last", seek_last, WRITE_SCOPE),
            ("POST", "/positions/end", seek_last, WRITE_SCOPE),
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
            dialect = _select_dialect(request)
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
            # Errors before the instance is known can only go by the request.
            requested = dialect = _select_dialect(request)
            group, name = request.path_params["group"], request.path_params["instance"]
            try:
                identity = await self._context.authorize(request, scope, (), group)
                instance = self._instances.get(group, name, identity)
                if instance.dialect == CONFLUENT.name:
                    dialect = CONFLUENT
                with self._instances.keep_alive(instance):
                    return await handler(request, dialect, instance)
            except Exception as exc:
                is_missing = isinstance(exc, StatusError) and exc.code == INSTANCE_NOT_FOUND
                if is_missing and requested is CONTRACT and dialect is CONTRACT:
                    return build_ambiguous_response(exc, ERROR_CODES[INSTANCE_NOT_FOUND])
                return self._build_error_response(request, dialect, exc)

        return endpoint

    def _build_error_response(self, request: Request, dialect: Dialect, exc: Exception) -> Response:
        """Build the response for an error; the contract's application answers unexpected ones."""
        if isinstance(exc, KafkaError):  # the consumer keeps it, and the frames with it
            exc.__traceback__ = None
        exc = translate_group_error(exc)
        if isinstance(exc, GatewayError):
            log.debug("%s %s: %s", request.method, request.url.path, exc)
        elif dialect is CONTRACT:
            raise exc
        return dialect.build_error_response(request, exc)

    async def _read_body(
        self,
        request: Request,
        dialect: Dialect,
        operation: str,
        parse: Callable[[Any], Awaitable[T]],
    ) -> T:
        """Return what `parse` takes from the body, which is freed and not counted from then on."""
        data = await read_body(request, MAX_BODY_BYTES)
        content_type = request.headers.get("content-type")
        parsed = await parse(dialect.parse_body(self._context.spec[operation], data, content_type))
        release_parsed(request)
        return parsed

    async def _parse_partitions(self, body: Any) -> list[TopicPartition]:
        body = body or {}
        entries = body.get("partitions") or body.get("offsets")
        tps = list(dict.fromkeys(tp for tp, _ in _iter_partitions(entries)))
        await check_partitions(self._context, tps)
        return tps

    # Instances

    async def _create(self, request: Request, dialect: Dialect) -> Response:
        group = request.path_params["group"]
        # A member takes partitions from the others, and its commits pass over their records.
        scope = ADMIN_SCOPE if group in self._context.section.reactive_groups else WRITE_SCOPE
        identity = await self._context.authorize(request, scope, (), group)

        async def parse(body: Any) -> InstanceOptions:
            return InstanceOptions.from_body(body or {}, self._settings)

        operation = "createConsumerInstanceInGroup"
        try:
            self._context.spec[operation].parse_parameters(request)
            options = await self._read_body(request, dialect, operation, parse)
        except StatusError as exc:
            raise dialect.translate_invalid(exc, "INVALID_CONFIGURATION") from None
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
        async def parse(body: Any) -> tuple[list[str], re.Pattern[str] | None]:
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
                raise dialect.translate_invalid(exc) from None
            # A misspelt name would never give records, without an error.
            return list(await describe_topics(self._context, topics or ())), compiled

        topics, pattern = await self._read_body(request, dialect, "subscribeTopics", parse)
        await self._context.authorize(request, WRITE_SCOPE, topics, instance.group)
        async with instance.lock_for_change():
            instance.subscribe(topics, pattern)
        return Response(status_code=204)

    async def _get_subscription(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        topics: Sequence[str] = instance.topics
        if instance.pattern is not None:
            matches = await self._context.cluster.match_topics(instance.pattern)
            topics = sorted(filter(instance.is_visible, matches))
        return dialect.build_response(request, dialect.format_topics(topics))

    async def _unsubscribe(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        async with instance.lock_for_change():
            await instance.unsubscribe()
        return Response(status_code=204)

    async def _assign(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        tps = await self._read_body(request, dialect, "assignPartitions", self._parse_partitions)
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
        async def parse(body: Any) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
            offsets = {
                tp: int(entry["offset"]) for tp, entry in _iter_partitions(body.get("offsets"))
            }
            times = {
                tp: parse_timestamp(entry["timestamp"], "timestamps")
                for tp, entry in _iter_partitions(body.get("timestamps"))
            }
            await check_partitions(self._context, [*offsets, *times])
            return offsets, times

        offsets, times = await self._read_body(request, dialect, "overrideFetchOffset", parse)
        async with instance.lock_for_change():
            await instance.wait_for_assignment([*offsets, *times])
            await check_offsets(self._context, offsets)
            await instance.seek(offsets)
            await instance.seek_to_specs(times)
        return Response(status_code=204)

    async def _seek_to(
        self,
        operation: str,
        spec: int,
        request: Request,
        dialect: Dialect,
        instance: ConsumerInstance,
    ) -> Response:
        tps = await self._read_body(request, dialect, operation, self._parse_partitions)
        async with instance.lock_for_change():
            await instance.seek_to_specs(dict.fromkeys(tps, spec))
        return Response(status_code=204)

    # Committed offsets

    async def _commit(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        async def parse(body: Any) -> dict[TopicPartition, OffsetAndMetadata] | None:
            if body is None:
                return None
            # Of `offsets` those of records, of `partitions` those of the next records, as in Kafka.
            name, step = ("offsets", 1) if "offsets" in body else ("partitions", 0)
            offsets = {
                parse_tp(entry): OffsetAndMetadata(
                    int(entry["offset"]) + step, metadata=entry.get("metadata") or ""
                )
                for entry in body[name]
            }
            await check_partitions(self._context, offsets)
            await check_offsets(self._context, instance.select_unreturned(offsets))
            return offsets

        offsets = await self._read_body(request, dialect, "commmitConsumerOffsets", parse)
        committed = await instance.commit(offsets)
        return dialect.build_response(request, _format_offsets(committed))

    async def _get_committed(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        operation = "getCommittedOffsets"
        tps = await self._read_body(request, dialect, operation, self._parse_partitions)
        return dialect.build_response(request, _format_offsets(await instance.committed(tps)))

    # Records

    async def _poll(
        self, request: Request, dialect: Dialect, instance: ConsumerInstance
    ) -> Response:
        negotiate_content_type(request, strict=dialect is CONFLUENT)
        try:
            parameters = self._context.spec["fetchTopicData"].parse_parameters(request)
        except StatusError as exc:
            raise dialect.translate_invalid(exc) from None
        formats = dialect.resolve_formats(request, instance.options, self._context)
        headers = dialect.get_header_formatter(request)
        timeout_ms = parameters.get("timeout", instance.options.timeout_s * 1000)
        max_bytes = max(1, parameters.get("max_bytes", self._settings.request_max_bytes))
        min_bytes = max(1, parameters.get("responseMinBytes", instance.options.min_bytes))

        async def poll(remaining_s: float, disconnected: asyncio.Future[Any]) -> Sequence[Record]:
            records = await instance.poll(
                remaining_s, max_bytes, min_bytes, self._context.draining, disconnected
            )
            if not records:  # none is an answer only if Kafka could have sent some
                self._context.require_kafka()
            return records

        payload_sizes: list[int] = []

        async def build_response(records: Sequence[Record]) -> tuple[Response, Sequence[Record]]:
            payload_sizes.extend(record.payload_size for record in records)
            with hold_records(self._context.client_memory, payload_sizes) as held:
                body, count = await render_records(
                    self._context.codecs, held, records, formats, headers,
                    omit_empty_headers=dialect.omits_empty_headers,
                )  # fmt: skip
            response = dialect.build_records_response(request, instance.options, body)
            return response, records[:count]

        try:
            await answer_poll(
                instance, min(timeout_ms, MAX_POLL_TIMEOUT_MS) / 1000, poll, build_response,
                partial(self._record_poll, payload_sizes), request.scope, request.receive,
                request._send,
            )  # fmt: skip
        except Exception as exc:
            return self._build_error_response(request, dialect, exc)
        return AlreadySentResponse()

    def _record_poll(
        self, payload_sizes: Sequence[int], records: Sequence[Record], is_sent: bool
    ) -> None:
        self._poll_counts["left" if not is_sent else "records" if records else "empty"] += 1
        if not is_sent:
            return
        for record, size in zip(records, payload_sizes, strict=False):
            self._record_counts[record.tp.topic] += 1
            self._byte_counts[record.tp.topic] += size
        if self._context.auditor is None:
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


def _select_dialect(request: Request) -> Dialect:
    return CONFLUENT if is_confluent_request(request.headers) else CONTRACT


def _iter_partitions(
    entries: Iterable[Mapping[str, Any]] | None,
) -> Iterator[tuple[TopicPartition, Mapping[str, Any]]]:
    """Yield each entry and its partition; one text is the name of a topic in all that are kept."""
    names: dict[str, str] = {}
    for entry in entries or ():
        tp = parse_tp(entry)
        yield tp._replace(topic=names.setdefault(tp.topic, tp.topic)), entry


def _format_offsets(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, Any]:
    return {
        "offsets": [
            {**tp._asdict(), "offset": position.offset, "metadata": position.metadata or ""}
            for tp, position in sorted(committed.items())
        ]
    }


async def answer_poll(
    instance: ConsumerInstance,
    timeout_s: float,
    poll: Callable[[float, asyncio.Future[Any]], Awaitable[Sequence[Record]]],
    build_response: Callable[[Sequence[Record]], Awaitable[tuple[Response, Sequence[Record]]]],
    on_finished: Callable[[Sequence[Record], bool], None],
    scope: Scope,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a long poll, and return records only to a client that is still connected.

    A client that disconnects ends the wait. The next poll returns records that could not be handed
    to its connection. No HTTP bridge can know whether data that the kernel accepted has reached the
    client. The errors of a poll are raised, unless the client has left, and StatusError 401 if its
    token expires before the answer.

    Args:
        timeout_s: How long to wait for the instance and for records, in seconds.
        poll: Returns records; it gets the seconds that are left, and a future that is done when the
            client has disconnected.
        build_response: Returns an answer, and the first of the records, which are in it.
        on_finished: Is called at the end with the records, and whether they were sent.
    """
    gone = asyncio.ensure_future(wait_for_disconnect(scope, receive))
    timeout_s = min(timeout_s, get_lifetime(scope))
    try:
        async with instance.lock_for_poll(timeout_s) as remaining_s:
            records = await poll(remaining_s, gone)
            is_sent, shown = False, records
            try:
                response, shown = await build_response(records)
                check_lifetime(scope)
                is_sent = await _send_response(response, gone, send)
            finally:
                if is_sent:
                    instance.mark_returned(shown)
                if rest := records[len(shown) if is_sent else 0 :]:
                    instance.restore_records(rest)
                on_finished(shown, is_sent)
    except Exception:
        if not gone.done():
            raise
    finally:
        gone.cancel()


async def _send_response(response: Response, gone: asyncio.Future[Any], send: Send) -> bool:
    """Send a response, and return whether all of it was handed to the connection.

    The end is sent separately from the rest: if the connection takes no more data, the server waits
    before it accepts the next message, and notices meanwhile that the client has disconnected.
    """
    if gone.done():
        return False
    start = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    # The server waits here until its write buffer has drained, or the connection is lost.
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    if gone.done():
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True
