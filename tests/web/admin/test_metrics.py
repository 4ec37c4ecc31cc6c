"""The figures of one process, of several on a bus, and what a scrape costs the loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed
from starlette.requests import Request
from support.influx import running_influx_receiver
from support.otlp import running_collector
from support.waiting import TurnCounter, wait_until
from support.worker_buses import worker_buses

from gateway.config import Settings
from gateway.hub.fanout.hubs import Hubs
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.telemetry import catalog
from gateway.telemetry.samples import MetricSamples
from gateway.web.admin.metrics import BUS_TOPIC, Metrics
from gateway.web.http.limits import Limits
from gateway.web.workers.bus import Bus

KAFKA = {"kafka": {"servers": ["127.0.0.1:9"], "topics": [{"name": "orders"}]}}


class FakeMetrics(Metrics):
    """Of a gateway that nobody started.

    Attributes:
        clients: Those of the route /a over SSE.
    """

    def __init__(self, hubs: Hubs, settings: Settings, limits: Limits, bus: Bus) -> None:
        super().__init__(hubs, settings, limits, bus)
        self.clients = hubs.get_hub("").traffics.get_counts("/a", "sse")


def build_metrics(bus: Bus | None = None, **options: Any) -> FakeMetrics:
    """options: of telemetry.metrics."""
    settings = Settings.model_validate({**KAFKA, "telemetry": {"metrics": options}})
    hubs = Hubs({"": Cluster(ClusterSettings.from_config(settings.kafka))}, settings)
    bus = bus or Bus()
    return FakeMetrics(hubs, settings, Limits(settings.listen.limits, bus), bus)


async def scrape_metrics(made: Metrics, accept: str = "") -> dict[str, Any]:
    request = Request({"type": "http", "headers": [(b"accept", accept.encode())]})
    answer = await made.scrape(request)
    assert answer.headers["cache-control"] == "no-store"
    return {family.name: family for family in parsed(bytes(answer.body).decode())}


def get_values(family: Any) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in family.samples}


async def test_a_gateway_that_is_not_started_has_figures_too():
    found = await scrape_metrics(build_metrics())
    assert get_values(found["gateway_kafka_reachable"]) == {(): 0}
    assert get_values(found["gateway_workers"]) == {(): 1}
    assert get_values(found["process_resident_memory_bytes"])[("1",)] > 1 << 20
    started_at = get_values(found["process_start_time_seconds"])[("1",)]
    assert started_at == pytest.approx(psutil.Process().create_time(), abs=1)
    assert "gateway_partition_ready" not in found


async def test_one_scrape_is_of_all_workers_and_says_who_is_missing():
    async with worker_buses(3) as made:
        several = [build_metrics(bus) for bus in made.buses]
        await made.start()
        for number, each in enumerate(several, 1):
            each.clients.opened, each.clients.untimed = 10 * number, 100
        found = await scrape_metrics(several[1])
        assert get_values(found["gateway_clients"]) == {("/a", "sse"): 60}
        assert get_values(found["gateway_deliveries"]) == {("/a", "sse"): 300}
        assert get_values(found["gateway_workers"]) == {(): 3}
        assert get_values(found["gateway_workers_missing"]) == {(): 0}
        assert get_values(found["process_open_fds"]).keys() == {("1",), ("2",), ("3",)}
        lag = found["gateway_event_loop_lag_seconds"].samples
        assert {sample.labels["worker"] for sample in lag} == {"1", "2", "3"}

        await made.stop_worker(3)
        found = await scrape_metrics(several[1])
        assert get_values(found["gateway_clients"]) == {("/a", "sse"): 30}
        assert get_values(found["gateway_workers_missing"]) == {(): 1}


async def test_a_worker_that_fails_to_answer_is_missing_and_not_all_of_the_scrape(monkeypatch):
    async with worker_buses(2) as made:
        several = [build_metrics(bus) for bus in made.buses]
        await made.start()
        monkeypatch.setattr(several[1], "collect_own", lambda: 1 / 0)
        found = await scrape_metrics(several[0])
        assert get_values(found["gateway_workers_missing"]) == {(): 1}
        assert get_values(found["gateway_workers"]) == {(): 1}


async def test_openmetrics_is_for_who_asks_for_it():
    request = Request({"type": "http", "headers": [(b"accept", b"application/openmetrics-text")]})
    answer = await build_metrics().scrape(request)
    assert answer.media_type is None
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert bytes(answer.body).endswith(b"# EOF\n")


async def test_figures_are_sent_where_they_are_configured_to_be():
    with running_collector() as back:
        made = build_metrics(otlp=back.url, interval="1s")
        made.clients.opened = 7
        running = asyncio.create_task(made.run())
        try:
            await wait_until(
                lambda: back.get_value("gateway_clients", route="/a", wire="sse") == 7, None, 60
            )
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_a_back_end_that_is_away_is_told_in_the_log_and_nothing_else(caplog: Any):
    with running_collector() as back:
        back.status = 400
        made = build_metrics(otlp=back.url, interval="1s")
        running = asyncio.create_task(made.run())
        try:
            await wait_until(lambda: "did not arrive at http" in caplog.text, "a warning", 60)
            assert not running.done()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_figures_go_to_influxdb_and_by_otlp_at_their_own_intervals():
    with running_collector() as back, running_influx_receiver() as influx:
        told = {"url": influx.url, "bucket": "figures", "interval": "1s"}
        made = build_metrics(otlp=back.url, interval="1s", influx=told)
        made.clients.opened = 7
        running = asyncio.create_task(made.run())
        labels = {"route": "/a", "wire": "sse"}
        try:
            await wait_until(lambda: back.get_value("gateway_clients", **labels) == 7, None, 60)
            await wait_until(
                lambda: influx.get_value("gateway_clients", **labels) == 7, influx.errors, 60
            )
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        assert not influx.errors


def test_the_topic_of_the_bus_is_taken_once():
    bus = Bus()
    build_metrics(bus)
    with pytest.raises(AssertionError):
        bus.add_handler(BUS_TOPIC, lambda worker, data: None)


async def test_a_thousand_partitions_are_told_without_holding_the_loop():
    """No time is asserted: that there are turns for others in between is."""

    def collect_partitions(samples: MetricSamples) -> None:
        for partition in range(1000):
            samples.add(catalog.PARTITION_READY, False, "orders", partition)
            samples.add(catalog.PARTITION_STATE, 1, "orders", partition, "waiting")
            samples.add(catalog.PARTITION_LAG_RECORDS, partition, "orders", partition)

    made = build_metrics()
    made.collectors.append(collect_partitions)
    with TurnCounter() as turns:
        found = await scrape_metrics(made)
    assert get_values(found["gateway_partition_lag_records"])[("orders", "999")] == 999
    assert turns.count >= 4


def test_all_that_a_hub_tells_is_in_the_catalog():
    figures = build_metrics().collect_own()
    assert {metric for metric, _ in figures} <= set(catalog.METRICS)
