"""The dashboards of deploy/grafana: they are what their tables say and name what exists.

Each panel has data in a real Prometheus.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import runpy
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, NamedTuple

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.raw import RawClient
from support.gateways import build_config, build_route, running_gateway_process
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.prometheus import PrometheusServer, running_prometheus
from support.promql import DEPLOY, find_faults
from support.query_progress import build_kafka_source, build_operator, build_progress
from support.tasks import running_task
from support.waiting import wait_until

from gateway.config.sections.pipelines import Pipelines
from gateway.core.error_code import ErrorCode
from gateway.kafka.embedded import EmbeddedKafka
from gateway.pipeline.progress.metrics import MetricsServer, ProgressMetrics, add_zero_series
from gateway.telemetry.samples import MetricSamples

DASHBOARDS = DEPLOY / "grafana"
FETCH = 1

kafka = embedded_kafka({"orders": 2, "stock": 1, "replies": 1})

SIDECAR: dict[str, Any] = {
    "producer": {},
    "consumer": {},
    "reactive": {
        "groups": [
            {
                "group": "billing",
                "topics": ["orders"],
                "backend": {"host": "http://127.0.0.1:9"},
                # A member by KIP-848 ends the process of the mock broker.
                "groupProtocol": "classic",
            }
        ]
    },
    "ksqldb": {
        "url": "http://127.0.0.1:9",
        "queries": [
            {
                "name": "totals",
                "query": "SELECT * FROM TOTALS EMIT CHANGES;",
                "backend": {"host": "http://127.0.0.1:9"},
            }
        ],
    },
    "audit": {"to": "off"},
    "deadLetter": {},
    "replay": {},
}

JOBS = Pipelines.model_validate(
    {
        "checkpoints": "/tmp/checkpoints",
        "jobs": [
            {
                "name": "paid",
                "type": "join",
                "left": {"topic": "orders", "watermark": "1m"},
                "right": {"topic": "payments", "watermark": "1m"},
                "on": {"order": "order"},
                "to": {"topic": "paid-orders"},
            }
        ],
    }
).jobs

UNUSED = frozenset({"Answers of the back end"})
"""Panels of what never happens here: no record reaches the back end."""


class Query(NamedTuple):
    """A query of a panel, as Grafana sends it but for the variables."""

    dashboard: str
    panel: str
    expression: str


@cache
def load_dashboards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def list_queries(*dashboards: str) -> list[Query]:
    """Those of some dashboards; of all if none is named."""
    return [
        Query(name, panel["title"], target["expr"])
        for name, dashboard in load_dashboards().items()
        if not dashboards or name in dashboards
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def test_the_files_are_what_the_tables_say():
    built = runpy.run_path(str(DASHBOARDS / "build_dashboards.py"))["render_dashboards"]()
    assert {path.name: path.read_text() for path in DASHBOARDS.glob("*.json")} == built


@pytest.mark.parametrize("dashboard", load_dashboards())
def test_panels_name_metrics_and_labels_of_the_catalog(dashboard: str):
    faults = {query: find_faults(query.expression) for query in list_queries(dashboard)}
    assert faults and not {query: found for query, found in faults.items() if found}


@pytest.mark.parametrize("name", load_dashboards())
def test_panels_have_a_place_a_number_and_the_chosen_data_source(name: str):
    panels = load_dashboards()[name]["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in panels}) == len(panels)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


def fill_in(expression: str, instance: str) -> str:
    """A query with the values that Grafana has for the variables."""
    for name, value in (("job", ".*"), ("instance", instance), ("__rate_interval", "10s")):
        expression = expression.replace(f"${name}", value)
    return expression


def has_data(prometheus: PrometheusServer, query: Query, instance: str) -> bool:
    """Whether a panel shows a line: a quantile of nothing is not a number."""
    samples = prometheus.query(fill_in(query.expression, instance))
    return any(query.panel in UNUSED or each["value"][1] != "NaN" for each in samples)


async def wait_until_shown(prometheus: PrometheusServer, instance: str, dashboard: str) -> None:
    """Until each query has had data."""
    missing = list_queries(dashboard)

    def is_all_shown() -> bool:
        missing[:] = [each for each in missing
                      if not has_data(prometheus, each, instance)]  # fmt: skip
        return not missing

    await wait_until(is_all_shown, lambda: f"data of {missing}", interval_s=0.5)


@asynccontextmanager
async def under_load(url: str, kafka: EmbeddedKafka) -> AsyncIterator[None]:
    """Records, a client on each wire, one that leaves, writes, and a read that is interrupted."""
    async with (
        StreamOracle(kafka.bootstrap[0]) as oracle,
        RawClient(url + "/events/orders") as client,
        MultiplexClient(url) as socket,
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        await socket.subscribe("a", "/events/orders")
        await client.wait_for_events(1, 60)

        async def write_and_leave() -> None:
            while True:
                await oracle.produce_records("orders", 50)
                async with RawClient(url + "/events/stock") as guest:
                    await guest.wait_for_events(1, 60)
                (await http.post("/stock", content=b"1")).raise_for_status()
                kafka.fail(FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                await asyncio.sleep(0.3)

        async with running_task(write_and_leave()):
            yield


@pytest.mark.night
@pytest.mark.needs("prometheus")
async def test_each_panel_of_the_gateway_has_data_under_load(prometheus, kafka):
    guard = {"type": "jwt", "issuer": "test", "keys": "http://127.0.0.1:9/keys"}
    routes = [
        build_route("orders", "value"),
        build_route("stock", "value"),
        {"when": [{"path": "/guarded"}], "with": {"topic": "stock"}, "guarded": {"login": []}},
        {"when": [{"path": "/stock"}], "with": {"capability": "produce", "topic": "stock"}},
    ]
    topics = ["orders", {"name": "stock", "value": {"model": "int", "onInvalid": "skip"}}]
    config = build_config(kafka.bootstrap, topics, routes, guards={"login": guard})
    async with running_gateway_process(config) as gateway, under_load(gateway.base_url, kafka):
        with prometheus.scraping("gateway", gateway.base_url) as instance:
            await wait_until_shown(prometheus, instance, "gateway")


@pytest.mark.night
@pytest.mark.needs("prometheus")
async def test_each_panel_of_the_sidecar_has_data(prometheus, kafka):
    config = build_config(kafka.bootstrap, ["orders"], [], sidecar=SIDECAR)
    async with (
        running_gateway_process(config, ready=False) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False) as http,
    ):

        async def request() -> None:
            while True:
                assert (await http.get("/health/liveness")).is_success
                await asyncio.sleep(0.3)

        async with running_task(request()):
            with prometheus.scraping("gateway-sidecar", gateway.base_url) as instance:
                await wait_until_shown(prometheus, instance, "gateway-sidecar")


@pytest.mark.needs("prometheus")
async def test_each_panel_of_jobs_has_data_of_recorded_batches(prometheus: PrometheusServer):
    """Spark is not run: its progress is as it once told of it."""
    metrics = ProgressMetrics()
    metrics.record_start("paid")
    batches = itertools.count()

    def collect() -> MetricSamples:
        """One batch is done before each scrape."""
        batch = next(batches)
        progress = build_progress(
            batch,
            operators=[build_operator(rocksdbSstFileSize=500)],
            sources=[build_kafka_source("orders", 10, 17 + batch)],
            newest=50,
            watermark=40,
        )
        metrics.record_batch("paid", progress)
        samples = MetricSamples()
        add_zero_series(JOBS, samples)
        metrics.collect_metrics(samples)
        return samples

    with (
        MetricsServer("127.0.0.1", 0, collect) as server,
        prometheus.scraping("gateway-pipeline", f"http://127.0.0.1:{server.port}") as instance,
    ):
        await wait_until_shown(prometheus, instance, "gateway-pipeline")
