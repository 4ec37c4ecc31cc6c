"""A back end for spans and metrics: OTLP over HTTP, protobuf, in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.post_server import running_post_server


@dataclass(frozen=True)
class ReceivedSpan:
    """ids in hex; parent is empty for a root; links: their span ids. Times in ns."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    attributes: Mapping[str, Any]
    started_at_ns: int
    ended_at_ns: int
    has_failed: bool


@dataclass
class OtlpCollector:
    """What came. status: what it answers with."""

    url: str
    status: int = 200
    requests: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)

    @property
    def spans(self) -> list[ReceivedSpan]:
        """All that came so far."""
        found: list[ReceivedSpan] = []
        for path, _, body in list(self.requests):
            if path.endswith("/v1/traces"):
                told = ExportTraceServiceRequest.FromString(body)
                for resource in told.resource_spans:
                    for scope in resource.scope_spans:
                        found += map(_parse_span, scope.spans)
        return found

    def find_spans(self, name_prefix: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name.startswith(name_prefix)]

    @property
    def resource(self) -> Mapping[str, Any]:
        """Who sent the last spans or metrics."""
        path, _, body = self.requests[-1]
        if path.endswith("/v1/traces"):
            told: Any = ExportTraceServiceRequest.FromString(body).resource_spans
        else:
            told = ExportMetricsServiceRequest.FromString(body).resource_metrics
        return _parse_attributes(told[0].resource.attributes)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The last that came, as protobuf, by name."""
        for path, _, body in reversed(self.requests):
            if path.endswith("/v1/metrics"):
                told = ExportMetricsServiceRequest.FromString(body)
                return {
                    metric.name: metric
                    for resource in told.resource_metrics
                    for scope in resource.scope_metrics
                    for metric in scope.metrics
                }
        return {}

    def get_value(self, name: str, **labels: str) -> float | None:
        """Of one series of a sum or gauge; None before it came."""
        metric = self.metrics.get(name)
        if metric is None:
            return None
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            if _parse_attributes(point.attributes) == labels:
                return float(point.as_double or point.as_int)
        return None


@contextmanager
def running_collector() -> Iterator[OtlpCollector]:
    """It listens until the block ends."""
    made = OtlpCollector("")

    def handle_post(path: str, headers: Mapping[str, str], body: bytes) -> int:
        made.requests.append((path, headers, body))
        return made.status

    with running_post_server(handle_post) as made.url:
        yield made


def _parse_span(span: Any) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        span.kind,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        _parse_attributes(span.attributes),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code == 2,
    )


def _parse_attributes(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
