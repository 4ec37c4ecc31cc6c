"""Send metrics to InfluxDB in its line protocol: one line per series, named as in a scrape.

    gateway_clients,instance=host:7,route=/events/orders,service=shop,wire=sse value=3.0 NANOSECONDS

Labels become tags. A counter or gauge has the field `value`. A histogram has `count`, `sum`, and a
cumulative field per bound, as Telegraf writes it. All numbers are floats, because InfluxDB refuses
a value whose type differs from the first one of its field. Each process sends its own metrics, with
a tag `instance`.
"""

from __future__ import annotations

import gzip
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache

import httpx
from prometheus_client.utils import floatToGoString

from .catalog import Metric, MetricKind
from .samples import Labels, MetricSamples, Value

log = logging.getLogger(__name__)

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
    """Sends metrics to InfluxDB; `gateway.web.admin.metrics` calls `send` from a thread."""

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
