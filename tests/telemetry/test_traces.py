"""What is recorded, and how spans hang together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from support.otlp import OtlpCollector, ReceivedSpan, running_collector
from support.waiting import wait_until

from gateway.telemetry.logs import get_log_context
from gateway.telemetry.otlp import build_resource
from gateway.telemetry.traceparent import Traceparent, parse_headers
from gateway.telemetry.traces import Tracing

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SERVER, CLIENT, PRODUCER, CONSUMER = 2, 3, 4, 5


@asynccontextmanager
async def tracing(
    share: float = 1.0,
) -> AsyncIterator[tuple[Tracing, Callable[[], list[ReceivedSpan]]]]:
    """One, and what ends it and gives its spans."""
    with running_collector() as back:
        made = Tracing(back.url, share=share, headers={}, resource=build_resource("orders", "1"))
        try:
            yield made, lambda: back.spans
        finally:
            await made.close()


def parent(trace: int = TRACE, *, sampled: bool = True) -> bytes:
    return str(Traceparent(trace, SPAN, sampled)).encode()


def hexed(trace: int = TRACE) -> tuple[str, str]:
    return f"{trace:032x}", f"{SPAN:016x}"


async def test_a_delivery_is_a_child_of_its_records_span_and_linked_to_it():
    async with tracing() as (made, spans):
        before = time.time_ns()
        followed = made.trace_record("orders", 3, 42, [("traceparent", parent())])
        assert followed is not None
        made.record_delivery([followed], 1000, "/events", "sse")
        await made.close()
        (span,) = spans()
    assert (span.name, span.kind) == ("deliver orders", CONSUMER)
    assert (span.trace_id, span.parent_id) == hexed() and span.links == (hexed(),)
    assert before <= span.started_at_ns <= span.ended_at_ns
    assert span.attributes == {
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.kafka.offset": 42,
        "http.route": "/events",
        "gateway.wire": "sse",
        "gateway.clients": 1000,
    }


async def test_of_traces_from_elsewhere_those_recorded_there_and_the_same_share_everywhere():
    async with tracing(0.25) as (one, _), tracing(0.25) as (other, _):
        low, high = 1 << 100 | 5, 1 << 100 | (1 << 64) - 5

        def follows(made: Tracing, header: bytes) -> bool:
            return made.trace_record("orders", 0, 0, [("traceparent", header)]) is not None

        for made in (one, other):
            assert follows(made, parent(low)) and not follows(made, parent(high))
            assert not follows(made, parent(low, sampled=False))
            assert not follows(made, b"junk")
        assert one.trace_record("orders", 0, 0, []) is None


async def test_a_request_is_a_child_of_its_header_and_its_lines_name_the_trace():
    async with tracing() as (made, spans):
        with made.trace_request("GET", parent(), **{"url.path": "/events"}) as span:
            assert span is not None
            assert get_log_context() == {"trace": hexed()[0]}
            span.update_name("GET /events")
        assert get_log_context() == {}
        with made.trace_request("GET", None) as span:
            assert span is not None
        await made.close()
        first, second = spans()
    assert (first.name, first.kind) == ("GET /events", SERVER)
    assert (first.trace_id, first.parent_id) == hexed()
    assert second.parent_id == "" and second.trace_id != first.trace_id


async def test_a_record_that_is_written_names_the_span_of_its_writing():
    async with tracing() as (made, spans):
        with (
            made.trace_request("POST", None),
            made.trace_produce("orders", [("a", b"1")]) as headers,
        ):
            told = parse_headers(headers)
        with made.trace_produce("orders", [("traceparent", parent()), ("a", b"1")]) as others:
            pass
        with pytest.raises(RuntimeError), made.trace_produce("orders", []):
            raise RuntimeError("no leader")
        await made.close()
        sent, request, other, failed = spans()
    assert told is not None and [name for name, _ in headers] == ["a", "traceparent"]
    assert (f"{told.trace_id:032x}", f"{told.span_id:016x}", told.sampled) == (
        sent.trace_id,
        sent.span_id,
        True,
    )
    assert (sent.name, sent.kind, sent.parent_id) == ("send orders", PRODUCER, request.span_id)
    assert (other.trace_id, other.parent_id, other.links) == (*hexed(), (hexed(),))
    assert [name for name, _ in others] == ["a", "traceparent"]
    assert failed.has_failed and failed.parent_id == "" and not sent.has_failed


async def test_what_a_broker_was_asked_took_as_long_as_it_took():
    async with tracing() as (made, spans):
        made.record_kafka_request("Fetch", 1, "tail", 0.5, None)
        made.record_kafka_request("Fetch", 1, "tail", 0.1, OSError("gone"))
        await made.close()
        good, bad = spans()
    assert (good.name, good.kind, good.parent_id) == ("kafka Fetch", CLIENT, "")
    assert good.ended_at_ns - good.started_at_ns >= 0.5e9
    assert (good.has_failed, bad.has_failed) == (False, True)


async def test_at_a_share_of_nothing_nothing_is_recorded_and_headers_stay():
    async with tracing(0.0) as (made, spans):
        headers = [("traceparent", parent())]
        with (
            made.trace_request("GET", parent()) as span,
            made.trace_produce("orders", headers) as sent,
        ):
            assert span is None and sent is headers
        made.record_kafka_request("Fetch", 1, "tail", 0.5, None)
        await made.close()
        assert spans() == []


async def test_a_back_end_that_is_away_holds_up_the_end_for_seconds_only():
    """asyncio's executor and OpenTelemetry's own end would wait for half a minute."""
    made = Tracing("http://127.0.0.1:9", share=1.0, headers={}, resource=build_resource("a", "1"))
    made.record_kafka_request("Fetch", 1, "tail", 0.1, None)
    async with asyncio.timeout(30):
        await made.close()


async def test_spans_arrive_by_themselves_after_a_moment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with running_collector() as back:
        made = Tracing(
            back.url, share=1.0, headers={"x-key": "7"}, resource=build_resource("a", "1")
        )
        made.record_kafka_request("Fetch", 1, "tail", 0.1, None)
        await wait_until(lambda: back.spans, "the span")
        assert _headers(back)["x-key"] == "7"
        assert back.resource["service.name"] == "a"
        await made.close()


def _headers(back: OtlpCollector) -> dict[str, str]:
    return dict(back.requests[0][1])
