"""Make spans of clients' requests, of requests to Kafka, and of records on their way to clients.

A record whose headers have a W3C traceparent is traced: each round that writes it to clients is one
span, which counts the clients, and is a child of the record's context and linked to it.

This module decides which traces are recorded, before OpenTelemetry is called. Of traces that begin
here, it is a random share. Of traces that begin elsewhere, it is the same share, chosen by the
trace's id so that all gateways choose the same ones, and only if they are recorded there too.

Importing OpenTelemetry takes time and memory, so this module is imported only if traces are
configured.
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
from .logs import log_context
from .otlp import EXPORT_TIMEOUT_S, build_endpoint
from .process import run_in_thread
from .traceparent import Traceparent

MAX_QUEUED_SPANS = 4096  # further spans are dropped, which OpenTelemetry logs
SHUTDOWN_TIMEOUT_S = 3.0  # seconds for sending the last spans when the gateway ends
# The last 64 bits of a trace's id decide, as in OpenTelemetry's `TraceIdRatioBased` sampler.
_TRACE_ID_RANGE = 1 << 64

Headers = Sequence[tuple[str, bytes | None]]


class TracedRecord(NamedTuple):
    """A record whose deliveries are recorded as children of the trace in its headers."""

    parent: Traceparent
    topic: str
    partition: int
    offset: int
    received_ns: int


class Tracing:
    """The tracer of one process: decides what is recorded, and makes spans.

    The application creates one at its start if traces are configured, and closes it at its end.
    `share` is the share of traces that are recorded, from 0 to 1.
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
            # It sends every 5 s (OTEL_BSP_SCHEDULE_DELAY changes this), at 5 ms of CPU time.
            BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED_SPANS)
        )
        self._tracer = self._provider.get_tracer("gateway")
        self._share = share
        self._sampled_below = int(share * _TRACE_ID_RANGE)
        self._current_span: ContextVar[Span | None] = ContextVar("gateway_span", default=None)

    async def close(self) -> None:
        """Send the spans that are queued; give up after `SHUTDOWN_TIMEOUT_S`."""
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
        """Record a client's request while the block runs, or until it ends the span, if any."""
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
            if span.is_recording():  # else the block has ended it
                span.end()

    # Kafka

    def record_kafka_request(
        self, api: str, node: int, role: str, seconds: float, failure: BaseException | None
    ) -> None:
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
        """Record the writing of a client's record while the block runs.

        The span's parent is the `traceparent` among the record's headers; without one, it is the
        request that sent the record. The yielded headers have this span as `traceparent` if it is
        recorded.
        """
        parent, span = traceparent.parse_headers(headers), self._current_span.get()
        if parent is None and span is not None and span.is_recording():
            context: Context | None = set_span_in_context(span, Context())
        else:
            context = self._build_context(parent)
        if context is None:
            yield headers
            return
        links = [Link(_build_span_context(parent))] if parent is not None else ()
        attributes = {"messaging.system": "kafka", "messaging.destination.name": topic}
        send_span = self._tracer.start_span(
            f"send {topic}", context, SpanKind.PRODUCER, attributes, links
        )
        failure: BaseException | None = None
        try:
            yield [each for each in headers if each[0] != traceparent.HEADER_NAME] + [
                _build_header(send_span)
            ]
        except BaseException as exc:
            failure = exc
            raise
        finally:
            _end_span(send_span, failure)

    # deliveries

    def may_trace(self, headers: Headers) -> bool:
        """Return False if a record is certainly not traced, as most are not.

        This takes 0.4 us; `trace_record`, which parses the header, takes 3 us.
        """
        last: bytes | None = None
        for name, value in headers:
            if name == traceparent.HEADER_NAME:
                last = value
        try:
            # the second half of the trace id: its last 64 bits
            return last is not None and int(last[19:35], 16) < self._sampled_below
        except ValueError:
            return False

    def trace_record(
        self, topic: str, partition: int, offset: int, headers: Headers
    ) -> TracedRecord | None:
        parent = traceparent.parse_headers(headers)
        if parent is None or not self._is_recorded(parent):
            return None
        return TracedRecord(parent, topic, partition, offset, time.time_ns())

    def record_delivery(
        self, records: Iterable[TracedRecord], clients: int, route: str, wire: str
    ) -> None:
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
            parent = _build_span_context(record.parent)
            context = set_span_in_context(NonRecordingSpan(parent), Context())
            span = self._tracer.start_span(
                f"deliver {record.topic}", context, SpanKind.CONSUMER, attributes, [Link(parent)],
                start_time=record.received_ns,
            )  # fmt: skip
            span.end()

    # decisions

    def _is_recorded(self, parent: Traceparent) -> bool:
        return parent.sampled and parent.trace_id & (_TRACE_ID_RANGE - 1) < self._sampled_below

    def _build_context(self, parent: Traceparent | None) -> Context | None:
        if parent is None:
            return Context() if random.random() < self._share else None
        if not self._is_recorded(parent):
            return None
        return set_span_in_context(NonRecordingSpan(_build_span_context(parent)), Context())


def _build_span_context(parent: Traceparent) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    return SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)


def _build_header(span: Span) -> tuple[str, bytes]:
    ids = span.get_span_context()
    return traceparent.HEADER_NAME, str(Traceparent(ids.trace_id, ids.span_id, True)).encode()


def _end_span(span: Span, failure: BaseException | None) -> None:
    if failure is not None:
        span.set_status(StatusCode.ERROR, str(failure) or type(failure).__name__)
    span.end()
