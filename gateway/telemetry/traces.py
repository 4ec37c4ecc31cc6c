"""Spans of requests, of what is asked of Kafka, and of records on their way to clients.

A record whose headers have a W3C traceparent is followed: where it is written to clients, in
rounds, there is one span a round with the number of clients, a child of the record's context and
linked to it. What is recorded is decided here, before OpenTelemetry is asked: of traces that begin
here a share; of those that come from elsewhere the same share, by the trace's id (so that all
gateways choose alike), if they are recorded there too.

Imported where traces are configured, and nowhere else.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.util.types import AttributeValue

from . import traceparent
from .log_context import log_context
from .otlp import EXPORT_TIMEOUT_S, build_endpoint
from .threads import run_in_thread
from .traceparent import Traceparent

MAX_QUEUED_SPANS = 4096  # spans that wait; more are dropped, and the log says so
SHUTDOWN_TIMEOUT_S = 3.0  # seconds that the gateway's end may take for what has not been sent
_TRACE_ID_RANGE = (
    1 << 64
)  # of a trace's id its last 64 bits decide, as for OpenTelemetry's own samplers

Headers = Sequence[tuple[str, bytes | None]]


class TracedRecord(NamedTuple):
    """A record that is followed. at: when it came, in nanoseconds of the epoch."""

    parent: Traceparent
    topic: str
    partition: int
    offset: int
    received_ns: int


class Tracing:
    """Spans of one process; `close` sends what is left.

    share: of traces that are recorded, 0 to 1.
    """

    def __init__(
        self, url: str, *, share: float, headers: Mapping[str, str], resource: Resource
    ) -> None:
        exporter = OTLPSpanExporter(
            endpoint=build_endpoint(url, "traces"), headers=dict(headers), timeout=EXPORT_TIMEOUT_S
        )
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            # sent every 5 s, 5 ms of CPU each time; OTEL_BSP_SCHEDULE_DELAY for another time
            BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS)
        )
        self._tracer = self._provider.get_tracer("gateway")
        self._share = share
        self._sampled_below = int(share * _TRACE_ID_RANGE)
        self._current_span: ContextVar[Span | None] = ContextVar("gateway_span", default=None)

    async def close(self) -> None:
        """For some seconds, should the back end be away."""
        try:
            async with asyncio.timeout(SHUTDOWN_TIMEOUT_S):
                await run_in_thread(self._provider.shutdown, "last spans")
        except TimeoutError:
            pass

    # requests

    @contextmanager
    def trace_request(
        self, name: str, parent: bytes | None, **attributes: Any
    ) -> Iterator[Span | None]:
        """While its answer is found; None if it is not recorded. parent: its traceparent."""
        context = self._build_context(traceparent.parse(parent))
        if context is None:
            yield None
            return
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        token = self._current_span.set(span)
        try:
            with log_context(trace=f"{span.get_span_context().trace_id:032x}"):
                yield span
        finally:
            self._current_span.reset(token)
            if span.is_recording():  # or whoever has it has ended it
                span.end()

    # Kafka

    def record_kafka_request(
        self, api: str, node: int, role: str, seconds: float, failure: BaseException | None
    ) -> None:
        """A broker was asked, for so many seconds until now."""
        if random.random() >= self._share:
            return
        attributes: dict[str, AttributeValue] = {
            "messaging.system": "kafka",
            "gateway.kafka.broker": node,
            "gateway.kafka.role": role,
        }
        span = self._tracer.start_span(
            f"kafka {api}",
            Context(),
            SpanKind.CLIENT,
            attributes,
            start_time=time.time_ns() - int(seconds * 1e9),
        )
        _end_span(span, failure)

    @contextmanager
    def trace_produce(self, topic: str, headers: Headers) -> Iterator[Headers]:
        """While a client's record is written; its headers, with where it comes from. It is a child
        of what they name already, or of the request that brings it."""
        told, span = traceparent.parse_headers(headers), self._current_span.get()
        if told is None and span is not None and span.is_recording():
            context: Context | None = set_span_in_context(span, Context())
        else:
            context = self._build_context(told)
        if context is None:
            yield headers
            return
        links = [Link(_build_span_context(told))] if told is not None else ()
        attributes = {"messaging.system": "kafka", "messaging.destination.name": topic}
        sending = self._tracer.start_span(
            f"send {topic}", context, SpanKind.PRODUCER, attributes, links
        )
        failure: BaseException | None = None
        try:
            yield [each for each in headers if each[0] != traceparent.HEADER_NAME] + [
                _build_header(sending)
            ]
        except BaseException as exc:
            failure = exc
            raise
        finally:
            _end_span(sending, failure)

    # deliveries

    def may_trace(self, headers: Headers) -> bool:
        """Most records are of traces that are not recorded here: to see that takes 0.4 us, to read
        what they say 3."""
        found: bytes | None = None
        for name, value in headers:
            if name == traceparent.HEADER_NAME:
                found = value
        try:
            return found is not None and int(found[19:35], 16) < self._sampled_below
        except ValueError:
            return False

    def trace_record(
        self, topic: str, partition: int, offset: int, headers: Headers
    ) -> TracedRecord | None:
        """A record that came just now; None if it is of no trace that is recorded."""
        parent = traceparent.parse_headers(headers)
        if parent is None or not self._is_recorded(parent):
            return None
        return TracedRecord(parent, topic, partition, offset, time.time_ns())

    def record_delivery(
        self, records: Iterable[TracedRecord], clients: int, route: str, wire: str
    ) -> None:
        """They went to so many clients in one round, which is over."""
        for record in records:
            attributes: dict[str, AttributeValue] = {
                "messaging.system": "kafka",
                "messaging.destination.name": record.topic,
                "messaging.destination.partition.id": str(record.partition),
                "messaging.kafka.offset": record.offset,
                "http.route": route,
                "gateway.wire": wire,
                "gateway.clients": clients,
            }
            of = _build_span_context(record.parent)
            context = set_span_in_context(NonRecordingSpan(of), Context())
            span = self._tracer.start_span(
                f"deliver {record.topic}", context, SpanKind.CONSUMER, attributes, [Link(of)],
                start_time=record.received_ns,
            )  # fmt: skip
            span.end()

    # what is recorded

    def _is_recorded(self, parent: Traceparent) -> bool:
        return parent.sampled and parent.trace_id & (_TRACE_ID_RANGE - 1) < self._sampled_below

    def _build_context(self, parent: Traceparent | None) -> Context | None:
        """Of a span below this parent; None if it is not recorded."""
        if parent is None:
            return Context() if random.random() < self._share else None
        if not self._is_recorded(parent):
            return None
        return set_span_in_context(NonRecordingSpan(_build_span_context(parent)), Context())


def _build_span_context(parent: Traceparent) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    return SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)


def _build_header(span: Span) -> tuple[str, bytes]:
    own = span.get_span_context()
    return traceparent.HEADER_NAME, str(Traceparent(own.trace_id, own.span_id, True)).encode()


def _end_span(span: Span, failure: BaseException | None) -> None:
    if failure is not None:
        span.set_status(StatusCode.ERROR, str(failure) or type(failure).__name__)
    span.end()
