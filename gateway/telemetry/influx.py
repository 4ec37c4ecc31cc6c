"""Metrics to InfluxDB, in its line protocol: a line for each series, named as Prometheus has it.

    gateway_clients,instance=host:7,route=/events/orders,service=shop,wire=sse value=3.0 NANOSECONDS

Labels are tags; a counter or gauge is the field `value`; a histogram has `count`, `sum`, and for
each of its bounds how many are not above it, as Telegraf writes them. All numbers are floats: the
type that a field had first is the one that it keeps. Each process sends its own, with a tag
`instance`.
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
MAX_LINES_PER_REQUEST = 5000  # of one request, as InfluxDB's manual has it
MAX_ERROR_CHARS = 200  # characters of what it says


def build_write_url(url: str, org: str | None, bucket: str | None, db: str | None) -> str:
    """Where lines are written: InfluxDB 2 and 3 with a bucket, 1 with a database."""
    base = url.rstrip("/")
    if bucket is None:
        return str(httpx.URL(f"{base}/write", params={"db": db or "", "precision": "ns"}))
    asked = {"org": org} if org is not None else {}
    params = {**asked, "bucket": bucket, "precision": "ns"}
    return str(httpx.URL(f"{base}/api/v2/write", params=params))


def build_auth_headers(token: str | None) -> dict[str, str]:
    """The headers of a token; of InfluxDB 1 it is `user:password`."""
    return {} if token is None else {"Authorization": f"Token {token}"}


class InfluxExporter:
    """Sends figures when it is told to. url: of `endpoint`. service: who it is that sends."""

    def __init__(self, url: str, token: str | None, service: str) -> None:
        self.url = url
        self._tags = {"service": service, "instance": f"{socket.gethostname()}:{os.getpid()}"}
        headers = {"Content-Encoding": "gzip", "Content-Type": "text/plain; charset=utf-8"}
        self._client = httpx.Client(
            headers={**headers, **build_auth_headers(token)}, timeout=REQUEST_TIMEOUT_S
        )

    def send(self, samples: MetricSamples) -> bool:
        """Did they arrive? Blocks; what went wrong is logged."""
        told = list(iter_lines(samples, self._tags, time.time_ns()))
        pieces = [
            told[first : first + MAX_LINES_PER_REQUEST]
            for first in range(0, len(told), MAX_LINES_PER_REQUEST)
        ]
        return all(self._post_lines("".join(piece).encode()) for piece in pieces)

    def close(self) -> None:
        self._client.close()

    def _post_lines(self, body: bytes) -> bool:
        try:
            answer = self._client.post(self.url, content=gzip.compress(body, 1))
        except httpx.HTTPError as error:
            log.warning("InfluxDB is not reached: %s", error or type(error).__name__)
            return False
        if not answer.is_success:
            log.warning(
                "InfluxDB answers %d: %s", answer.status_code, answer.text[:MAX_ERROR_CHARS]
            )
        return answer.is_success


def iter_lines(samples: MetricSamples, tags: Mapping[str, str], now: int) -> Iterator[str]:
    """now: nanoseconds."""
    for metric, values in samples:
        for labels, value in values.items():
            of = {**dict(zip(metric.label_names(labels), labels, strict=True)), **tags}
            # a tag without a value is none; sorted they are indexed faster
            pairs = "".join(f",{name}={_escape_tag(of[name])}" for name in sorted(of) if of[name])
            fields = ",".join(_iter_fields(metric, labels, value))
            yield f"{metric.exposed_name}{pairs} {fields} {now}\n"


def _iter_fields(metric: Metric, labels: Labels, value: Value) -> Iterator[str]:
    if metric.kind is not MetricKind.HISTOGRAM:
        yield f"value={float(value)}"
        return
    *counts, total = value
    so_far = 0
    for bound, count in zip([*map(floatToGoString, metric.bounds), "+Inf"], counts, strict=True):
        so_far += count
        yield f"{bound}={float(so_far)}"
    yield f"count={float(so_far)}"
    yield f"sum={float(total)}"


@lru_cache(4096)
def _escape_tag(text: str) -> str:
    """A backslash at its end would take away what comes behind, so none is left; nor are ends of
    lines."""
    text = "".join(" " if each in "\r\n" else each for each in text.replace("\\", "/"))
    return text.replace(",", r"\,").replace("=", r"\=").replace(" ", r"\ ")
