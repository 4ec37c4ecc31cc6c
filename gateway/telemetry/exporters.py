"""Send metrics to back ends: by scrapes of Prometheus, to InfluxDB, and by OTLP.

InfluxDB and OTLP are for what does not scrape: each process sends its own metrics.
"""

from __future__ import annotations

import gzip
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.exposition import choose_encoder
from prometheus_client.utils import floatToGoString

from .catalog import Metric, MetricKind
from .samples import Labels, MetricSamples, Value

log = logging.getLogger(__name__)

MAX_SERIES_PER_PIECE = 1000  # a piece takes 1 to 2 ms


class Exposition(NamedTuple):
    """The response to a scrape; each piece of its body is formatted when it is taken."""

    media_type: str
    pieces: Iterator[bytes]


def expose(samples: MetricSamples, accept: str) -> Exposition:
    """Format metrics for a scrape, in Prometheus's text format or in OpenMetrics.

    prometheus-client decides by the `Accept` header which of the two is sent. The text is formatted
    here: its encoders take 8 us per series, this function 1.2 us, and 1,000 partitions have 4,000
    series. The text is made in pieces, so that the event loop can run other tasks in between.
    """
    _, media_type = choose_encoder(accept)
    return Exposition(media_type, _iter_pieces(samples, "openmetrics" in media_type))


def _iter_pieces(samples: MetricSamples, openmetrics: bool) -> Iterator[bytes]:
    lines: list[str] = []
    for metric, values in samples:
        lines.append(_format_head(metric, openmetrics))
        bounds = [*map(floatToGoString, metric.bounds), "+Inf"]
        for labels, value in values.items():
            if metric.kind is MetricKind.HISTOGRAM:
                _append_histogram(lines, metric, bounds, labels, value)
            else:
                lines.append(
                    f"{metric.exposed_name}{_format_label_set(metric, labels)} "
                    f"{_format_number(value)}\n"
                )
            if len(lines) >= MAX_SERIES_PER_PIECE:
                yield "".join(lines).encode()
                lines.clear()
    if openmetrics:
        lines.append("# EOF\n")
    yield "".join(lines).encode()


def _format_head(metric: Metric, openmetrics: bool) -> str:
    name = metric.name if openmetrics else metric.exposed_name
    unit = f"# UNIT {name} {metric.unit}\n" if openmetrics and metric.unit else ""
    return f"# HELP {name} {_escape_label(metric.help)}\n# TYPE {name} {metric.kind}\n{unit}"


def _append_histogram(
    lines: list[str], metric: Metric, bounds: Sequence[str], labels: Labels, value: Value
) -> None:
    *counts, total = value
    pairs, cumulative = _format_labels(metric, labels), 0
    prefix = f"{metric.name}_bucket{{{pairs}{',' if pairs else ''}le="
    for bound, count in zip(bounds, counts, strict=True):
        cumulative += count
        lines.append(f'{prefix}"{bound}"}} {cumulative}\n')
    braced = _format_label_set(metric, labels)
    lines.append(f"{metric.name}_count{braced} {cumulative}\n{metric.name}_sum{braced} {total}\n")


def _format_label_set(metric: Metric, labels: Labels) -> str:
    return f"{{{_format_labels(metric, labels)}}}" if labels else ""


def _format_labels(metric: Metric, labels: Labels) -> str:
    names = metric.label_names(labels)
    return ",".join(
        [f'{name}="{_escape_label(label)}"' for name, label in zip(names, labels, strict=True)]
    )


def _format_number(value: Value) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


@lru_cache(4096)
def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


REQUEST_TIMEOUT_S = 5.0  # seconds for the server to answer
MAX_LINES_PER_REQUEST = 5000  # the batch size that InfluxDB's manual advises
MAX_ERROR_CHARS = 200  # characters of an error response that are logged


def build_write_url(url: str, org: str | None, bucket: str | None, db: str | None) -> str:
    """Return the URL that lines are written to.

    `db` is for InfluxDB 1, `bucket` for 2 and 3, and `org` for 2.
    """
    base = url.rstrip("/")
    if bucket is None:
        return str(httpx.URL(f"{base}/write", params={"db": db or "", "precision": "ns"}))
    org_param = {"org": org} if org is not None else {}
    params = {**org_param, "bucket": bucket, "precision": "ns"}
    return str(httpx.URL(f"{base}/api/v2/write", params=params))


def build_auth_headers(token: str | None) -> dict[str, str]:
    """Return the headers that carry a token; for InfluxDB 1 it is `user:password`."""
    return {} if token is None else {"Authorization": f"Token {token}"}


class InfluxExporter:
    """Sends metrics to InfluxDB in its line protocol: one line per series, named as in a scrape.

        gateway_clients,instance=host:7,route=/events/orders,service=shop,wire=sse value=3.0 TIME_NS

    Labels become tags, besides `instance` and `service`. A counter or gauge has the field `value`.
    A histogram has `count`, `sum`, and a cumulative field per bound, as Telegraf writes it. All
    numbers are floats, because InfluxDB refuses a value whose type differs from the first one of
    its field.

    `gateway.web.app.metrics` calls `send` from a thread.
    """

    def __init__(self, url: str, token: str | None, service: str) -> None:
        self.url = url
        self._tags = {"service": service, "instance": f"{socket.gethostname()}:{os.getpid()}"}
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"}
        self._client = httpx.Client(
            headers={**headers, **build_auth_headers(token)}, timeout=REQUEST_TIMEOUT_S
        )

    def send(self, samples: MetricSamples) -> bool:
        """Send all samples and return whether they arrived. Blocks; failures are logged."""
        lines = list(iter_lines(samples, self._tags, time.time_ns()))
        batches = [
            lines[first : first + MAX_LINES_PER_REQUEST]
            for first in range(0, len(lines), MAX_LINES_PER_REQUEST)
        ]
        return all(self._post_lines("".join(batch).encode()) for batch in batches)

    def close(self) -> None:
        self._client.close()

    def _post_lines(self, body: bytes) -> bool:
        try:
            response = self._client.post(self.url, content=gzip.compress(body, 1))
        except httpx.HTTPError as error:
            log.warning("InfluxDB cannot be reached: %s", error or type(error).__name__)
            return False
        if not response.is_success:
            log.warning(
                "InfluxDB answered %d: %s", response.status_code, response.text[:MAX_ERROR_CHARS]
            )
        return response.is_success


def iter_lines(samples: MetricSamples, tags: Mapping[str, str], now: int) -> Iterator[str]:
    """Yield one line per series, with its line end and the time `now` in nanoseconds."""
    for metric, values in samples:
        for labels, value in values.items():
            series_tags = {**dict(zip(metric.label_names(labels), labels, strict=True)), **tags}
            # The protocol has no empty tags. InfluxDB indexes sorted tags faster.
            pairs = "".join(
                f",{name}={_escape_tag(text)}" for name, text in sorted(series_tags.items()) if text
            )
            fields = ",".join(_iter_fields(metric, labels, value))
            yield f"{metric.exposed_name}{pairs} {fields} {now}\n"


def _iter_fields(metric: Metric, labels: Labels, value: Value) -> Iterator[str]:
    if metric.kind is not MetricKind.HISTOGRAM:
        yield f"value={float(value)}"
        return
    *counts, total = value
    cumulative = 0
    for bound, count in zip([*map(floatToGoString, metric.bounds), "+Inf"], counts, strict=True):
        cumulative += count
        yield f"{bound}={float(cumulative)}"
    yield f"count={float(cumulative)}"
    yield f"sum={float(total)}"


@lru_cache(4096)
def _escape_tag(text: str) -> str:
    """Return a tag's value escaped for the line protocol.

    It cannot escape line ends, nor a backslash before the next comma: they are replaced.
    """
    text = "".join(" " if each in "\r\n" else each for each in text.replace("\\", "/"))
    return text.replace(",", r"\,").replace("=", r"\=").replace(" ", r"\ ")


EXPORT_TIMEOUT_S = 5.0  # seconds for the back end to answer


def build_endpoint(url: str, signal: str) -> str:
    """Return the endpoint of `traces` or `metrics`; a URL that has a path is used unchanged."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}/v1/{signal}"


def build_resource(name: str, version: str) -> Resource:
    """Return the attributes of this process; OTEL_RESOURCE_ATTRIBUTES may add more."""
    return Resource.create(
        {
            "service.name": name,
            "service.version": version,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
        }
    )


class OtlpExporter:
    """Sends metrics by OTLP over HTTP with protobuf, with a `service.instance.id`.

    Only OpenTelemetry's exporter is used, not its instruments: none of these accepts a histogram
    that has been counted already. `gateway.web.app.metrics` calls `send` from a thread.
    """

    def __init__(self, url: str, headers: Mapping[str, str], resource: Resource) -> None:
        self.url = url
        self._exporter = OTLPMetricExporter(
            endpoint=build_endpoint(url, "metrics"), headers=dict(headers), timeout=EXPORT_TIMEOUT_S
        )
        self._resource = resource
        self._started_ns = time.time_ns()

    def send(self, samples: MetricSamples) -> bool:
        """Send all samples and return whether they arrived. Blocks; the exporter logs failures."""
        scope = InstrumentationScope("gateway")
        scope_metrics = sdk.ScopeMetrics(
            scope, list(self._iter_metrics(samples, time.time_ns())), ""
        )
        data = sdk.MetricsData([sdk.ResourceMetrics(self._resource, [scope_metrics], "")])
        return self._exporter.export(data) is sdk.MetricExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()

    def _iter_metrics(self, samples: MetricSamples, now: int) -> Iterator[sdk.Metric]:
        for metric, values in samples:
            yield sdk.Metric(
                metric.name, metric.help, _UNITS[metric.unit], self._build_data(metric, values, now)
            )

    def _build_data(
        self, metric: Metric, values: Mapping[Labels, Value], now: int
    ) -> sdk.Sum | sdk.Gauge | sdk.Histogram:
        temporality = sdk.AggregationTemporality.CUMULATIVE
        series = [
            (dict(zip(metric.label_names(labels), labels, strict=True)), value)
            for labels, value in values.items()
        ]
        if metric.kind is MetricKind.HISTOGRAM:
            points = [
                self._build_histogram_point(metric.bounds, attributes, value, now)
                for attributes, value in series
            ]
            return sdk.Histogram(points, temporality)
        numbers = [
            sdk.NumberDataPoint(attributes, self._started_ns, now, _convert_bool(value))
            for attributes, value in series
        ]
        if metric.kind is MetricKind.COUNTER:
            return sdk.Sum(numbers, temporality, is_monotonic=True)
        return sdk.Gauge(numbers)

    def _build_histogram_point(
        self, bounds: Sequence[float], labels: Mapping[str, str], value: Value, now: int
    ) -> sdk.HistogramDataPoint:
        *counts, total = value
        return sdk.HistogramDataPoint(
            labels, self._started_ns, now, sum(counts), total, counts, bounds,
            min=None, max=None,  # type: ignore[arg-type]  # unknown, and left out of the message
        )  # fmt: skip


_UNITS = {"": "1", "seconds": "s", "bytes": "By"}  # UCUM, as OpenTelemetry names units


def _convert_bool(value: Value) -> int | float:
    return int(value) if isinstance(value, bool) else value
