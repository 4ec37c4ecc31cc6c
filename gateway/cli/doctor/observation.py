"""Observe a running gateway, and define what evidence is.

Two scrapes some seconds apart, then answers of its admin API, are an `Observation`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import httpx

from gateway.cli.admin import AdminAddress
from gateway.cli.output import format_list
from gateway.errors import GatewayError
from gateway.telemetry import catalog
from gateway.telemetry.catalog import CLUSTER, Metric

LabelSet: TypeAlias = tuple[tuple[str, str], ...]
"""The labels of a series with their values, sorted by name."""


class Scrape:
    """The series of one scrape, by name (`_total`, `_sum` and `_bucket` included) and labels."""

    def __init__(self, values: Mapping[str, Mapping[LabelSet, float]]) -> None:
        self.values = values

    @classmethod
    def parse(cls, text: str) -> Self:
        from prometheus_client.parser import text_string_to_metric_families

        values: dict[str, dict[LabelSet, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted(sample.labels.items()))
                values.setdefault(sample.name, {})[labels] = float(sample.value)
        return cls(values)

    def iter_series(
        self, metric: Metric, suffix: str = "", **labels: str
    ) -> Iterator[tuple[dict[str, str], float]]:
        wanted = labels.items()
        for pairs, value in self.values.get(metric.exposed_name + suffix, {}).items():
            if wanted <= dict(pairs).items():
                yield dict(pairs), value

    def get(self, metric: Metric, labels: Mapping[str, str], suffix: str = "") -> float | None:
        series = self.values.get(metric.exposed_name + suffix, {})
        return series.get(tuple(sorted(labels.items())))

    def sum(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        return sum(value for _, value in self.iter_series(metric, suffix, **labels))


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation of one gateway: two scrapes, and answers of its admin API.

    Attributes:
        routes: `GET /routes` of the admin API; None if it was not answered, as of the next two.
        streams: The first streams of `GET /streams`.
        missing: The workers that did not answer for `GET /routes`.
    """

    url: str
    seconds: float
    now: float
    before: Scrape
    after: Scrape
    routes: Sequence[Mapping[str, Any]] | None = None
    streams: Sequence[Mapping[str, Any]] | None = None
    health: Mapping[str, Any] | None = None
    missing: Sequence[int] = ()

    def growth(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        return sum(grown for _, grown in self.iter_growth(metric, suffix, **labels))

    def iter_growth(
        self, metric: Metric, suffix: str = "", **labels: str
    ) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels of each series of a counter that grew, and its growth.

        A worker that was restarted counts from 0 again; then its whole count is new.
        """
        for names, value in self.after.iter_series(metric, suffix, **labels):
            before = self.before.get(metric, names, suffix) or 0.0
            grown = value - before if value >= before else value
            if grown > 0:
                yield names, grown

    def iter_lasting(
        self, metric: Metric, **labels: str
    ) -> Iterator[tuple[dict[str, str], float, float]]:
        """Yield the labels, first and last value of each gauge above 0 at both scrapes."""
        for names, value in self.after.iter_series(metric, **labels):
            before = self.before.get(metric, names)
            if before and value:
                yield names, before, value


FindEvidence: TypeAlias = Callable[[Observation], Iterable[str]]
"""Returns a sentence for each piece of evidence of one fault; none if there is no such fault."""


def format_partitions(series: Iterable[Mapping[str, str]]) -> str:
    """Return the partitions of labels as text, by topic: `orders 0, 3; stock 1 (eu)`."""
    by_topic: dict[tuple[str, str], list[int]] = {}
    for labels in series:
        key = labels["topic"], labels.get(CLUSTER, "")
        by_topic.setdefault(key, []).append(int(labels["partition"]))
    return "; ".join(
        f"{topic} {format_list(map(str, sorted(partitions)))}{cluster and f' ({cluster})'}"
        for (topic, cluster), partitions in sorted(by_topic.items())
    )


def format_cluster(labels: Mapping[str, str]) -> str:
    return f" of cluster {labels[CLUSTER]}" if labels.get(CLUSTER) else ""


def iter_health(observation: Observation, key: str) -> Iterator[str]:
    yield from (observation.health or {}).get(key, ())


REQUEST_TIMEOUT_S = 10.0  # the answers of one that has 10,000 partitions take a second
MAX_STREAMS = 1000  # streams of the list that are looked at
# All workers accept from one socket. A worker that is stopped accepts, too, and does not answer.
MAX_ATTEMPTS = 3


async def observe_gateway(
    address: AdminAddress, interval_s: float, headers: Mapping[str, str] = MappingProxyType({})
) -> Observation:
    """Observe a gateway for some seconds, by its admin API or another port that has `/metrics`."""
    base_url = address.url.rstrip("/")
    try:
        async with httpx.AsyncClient(
            base_url=base_url, headers=dict(headers), timeout=REQUEST_TIMEOUT_S,
            verify=address.verify, trust_env=False,
        ) as http:  # fmt: skip
            before, began = await _scrape_all_workers(http), time.monotonic()
            await asyncio.sleep(interval_s)
            after, ended = await _scrape(http), time.monotonic()
            routes, health = await _get_json(http, "/routes"), await _get_json(http, "/health")
            streams = await _get_json(http, f"/streams?limit={MAX_STREAMS}")
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        reason = str(exc) or type(exc).__name__
        raise GatewayError(
            f"no gateway answers at {address.url} ({reason}); see `admin on` in its log"
        ) from None
    return Observation(
        base_url,
        ended - began,
        time.time(),
        before,
        after,
        None if routes is None else routes["routes"],
        None if streams is None else streams["streams"],
        health,
        () if routes is None else routes["missing"],
    )


async def _scrape_all_workers(http: httpx.AsyncClient) -> Scrape:
    """Return a scrape that includes all workers, if there is one within some attempts.

    Otherwise all counts of a missing worker would have grown until the next scrape.
    """
    for _ in range(MAX_ATTEMPTS):
        scrape = await _scrape(http)
        if not scrape.sum(catalog.WORKERS_MISSING):
            break
    return scrape


async def _scrape(http: httpx.AsyncClient) -> Scrape:
    response = await _get(http, "/metrics")
    if response.status_code in (401, 403):
        hint = "give a token of an operator by --token or GATEWAY_ADMIN_TOKEN"
        raise GatewayError(f"{response.url} answers {response.status_code}; {hint}")
    is_metrics = response.headers.get("content-type", "").startswith("text/plain")
    if response.status_code != 200 or not is_metrics:
        hint = "give the address that the gateway logs as `admin on`"
        raise GatewayError(f"{response.url} has no metrics ({response.status_code}); {hint}")
    try:
        return Scrape.parse(response.text)
    except ValueError as exc:
        raise GatewayError(f"{response.url} has no metrics ({exc})") from None


async def _get_json(http: httpx.AsyncClient, path: str) -> Any:
    """Return an answer of the admin API; None where there is none, as at a sidecar's port."""
    response = await _get(http, path)
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.json() if response.status_code == 200 and is_json else None


async def _get(http: httpx.AsyncClient, path: str) -> httpx.Response:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return await http.get(path)
        except httpx.ReadTimeout:
            if attempt == MAX_ATTEMPTS:
                raise
            # The connection that is open is to the worker that does not answer.
    raise AssertionError
