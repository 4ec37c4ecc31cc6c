"""Alerts of deploy/prometheus fire in a real Prometheus when their cause happens, and resolve.

Each waits for minutes of a fast clock. By day two of them show that metrics, rules and Prometheus
fit together; `test_prometheus` has each rule in promtool.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Producer
from support.backend import running_backend
from support.clients.raw import RawClient
from support.gateways import GatewayProcess, build_config, build_route, running_gateway_process
from support.oracle import StreamOracle
from support.prometheus import PrometheusServer, running_prometheus
from support.reactive import ReactiveWorld, build_settings
from support.scrape import fetch_metrics
from support.workers import count_connections, find_workers, running_workers

from gateway.core.error_code import ErrorCode
from gateway.kafka.embedded import EmbeddedKafka

FETCH = 1
TP = {"topic": "stock", "partition": "0"}

pytestmark = pytest.mark.needs("prometheus")


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus")) as server:
        yield server


@pytest.fixture
def embedded() -> Iterator[EmbeddedKafka]:
    """One whose partition may lose its leader."""
    with EmbeddedKafka({"stock": 1}, fetch_version=11) as kafka:
        yield kafka


@asynccontextmanager
async def watched(
    prometheus: PrometheusServer, config: Mapping[str, Any]
) -> AsyncIterator[tuple[GatewayProcess, str]]:
    """A gateway that is scraped, and the name of its instance."""
    async with running_gateway_process(config) as gateway:
        with prometheus.scraping("gateway", gateway.base_url) as instance:
            await prometheus.wait_until_scraped(instance)
            yield gateway, instance


def assert_readable(alert: Mapping[str, Any], **labels: str) -> None:
    """It has these labels, and texts in which every template had a value."""
    assert labels.items() <= alert["labels"].items()
    for text in alert["annotations"].values():
        assert text and "<no value>" not in text and "error" not in text, text


async def test_a_broker_that_is_away_and_a_partition_without_leader(prometheus, embedded):
    config = build_config(embedded.bootstrap, ["stock"], kafka={"bootstrap": ["stock"]})
    async with watched(prometheus, config) as (_, instance):
        embedded.down(1)
        alert = await prometheus.wait_until_firing("GatewayKafkaUnreachable", instance)
        assert_readable(alert, severity="critical")
        embedded.up(1)
        await prometheus.wait_until_resolved("GatewayKafkaUnreachable", instance)

        embedded.lead("stock", 0, None)
        alert = await prometheus.wait_until_firing("GatewayPartitionLeaderless", instance)
        assert_readable(alert, severity="critical", **TP)
        embedded.lead("stock", 0, 1)
        await prometheus.wait_until_resolved("GatewayPartitionLeaderless", instance)


@pytest.mark.night
async def test_records_that_were_deleted_before_they_were_read(prometheus, embedded):
    config = build_config(embedded.bootstrap, ["stock"], kafka={"bootstrap": ["stock"]})
    async with (
        watched(prometheus, config) as (gateway, instance),
        StreamOracle(embedded.bootstrap[0]) as oracle,
        RawClient(gateway.base_url + "/events/stock") as client,
    ):
        await client.wait_for_events(1, 60)
        embedded.fail(FETCH, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 5000)
        alert = await prometheus.wait_until_firing("GatewayPartitionNotReady", instance)
        assert_readable(alert, severity="warning", **TP)
        await oracle.produce_records("stock", 30)
        embedded.delete_records("stock", {0: 25})
        embedded.forgive(FETCH)
        alert = await prometheus.wait_until_firing("GatewayRecordsLost", instance)
        assert_readable(alert, severity="critical", topic="stock", reason="retention")
        await prometheus.wait_until_resolved("GatewayRecordsLost", instance)
        assert not prometheus.list_firing("GatewayPartitionNotReady", instance)


@pytest.mark.night
async def test_clients_that_are_slow_and_those_that_use_up_the_memory(prometheus, embedded):
    own = {"when": [{"path": "/own/{who}"}],
           "with": {"topic": "stock", "filters": [{"key": "${params.who}"}]}}  # fmt: skip
    routes = [build_route("stock", "value"), own]
    config = build_config(embedded.bootstrap, ["stock"], routes, memory="1MiB")
    async with watched(prometheus, config) as (gateway, instance), AsyncExitStack() as stack:
        async with AsyncExitStack() as large:
            for n in range(3):  # a filter is held three times
                path = f"/own/{n}-{'x' * 50_000}"
                await large.enter_async_context(RawClient(gateway.base_url + path))
            alert = await prometheus.wait_until_firing("GatewayMemoryNearLimit", instance)
            assert_readable(alert, severity="warning")
        await prometheus.wait_until_resolved("GatewayMemoryNearLimit", instance)

        clients = [
            await stack.enter_async_context(
                RawClient(gateway.base_url + "/events/stock", receive_buffer=4096)
            )
            for _ in range(6)
        ]
        await asyncio.gather(*(client.wait_for_events(1, 60) for client in clients))
        for client in clients:
            client.stop_reading()
        producer = Producer({"bootstrap.servers": ",".join(embedded.bootstrap)})
        slow = {"route": "/events/stock", "state": "slow"}
        while (await fetch_metrics(gateway))["gateway_clients_behind", slow] < 6:
            for _ in range(200):
                producer.produce("stock", b"x" * 1000)
            producer.flush()
        alert = await prometheus.wait_until_firing("GatewaySlowClients", instance)
        assert_readable(alert, severity="warning")
        for client in clients:
            client.resume_reading()
        await prometheus.wait_until_resolved("GatewaySlowClients", instance)


@pytest.mark.night
async def test_a_loop_that_is_late_a_reload_that_is_refused_and_a_guard_without_keys(
    prometheus, embedded
):
    guard = {"type": "jwt", "issuer": "test", "keys": "http://127.0.0.1:9/keys"}
    routes = [{**build_route("stock", "value"), "guarded": {"login": []}}]
    config = build_config(embedded.bootstrap, ["stock"], routes, guards={"login": guard})
    async with watched(prometheus, config) as (gateway, instance):
        alert = await prometheus.wait_until_firing("GatewayGuardNotReady", instance)
        assert_readable(alert, severity="critical", guard="login")

        gateway.write_config({**config, "unknown": 1})
        gateway.send_signal(signal.SIGHUP)
        alert = await prometheus.wait_until_firing("GatewayReloadFailed", instance)
        assert_readable(alert, severity="warning")
        open_routes = [build_route("stock", "value")]
        gateway.write_config(build_config(embedded.bootstrap, ["stock"], open_routes))
        gateway.send_signal(signal.SIGHUP)
        await prometheus.wait_until_resolved("GatewayReloadFailed", instance)
        await prometheus.wait_until_resolved("GatewayGuardNotReady", instance)

        while not prometheus.list_firing("GatewayEventLoopLag", instance):
            # Frozen for a moment, as by work that does not end, and never long enough to be away.
            gateway.send_signal(signal.SIGSTOP)
            await asyncio.sleep(0.4)
            gateway.send_signal(signal.SIGCONT)
            await asyncio.sleep(0.3)
        await prometheus.wait_until_resolved("GatewayEventLoopLag", instance)

        await gateway.kill()
        alert = await prometheus.wait_until_firing("GatewayDown", instance)
        assert_readable(alert, severity="critical")
        await gateway.start()
        await prometheus.wait_until_resolved("GatewayDown", instance)


@pytest.mark.night
async def test_a_worker_that_crashes_and_one_that_hangs(prometheus, embedded):
    config = build_config(embedded.bootstrap, ["stock"])
    async with running_workers(config, 2) as gateway:
        # The other workers have a second to answer, which is in the time of a scrape.
        with prometheus.scraping("gateway", gateway.base_url, every_s=2) as instance:
            await prometheus.wait_until_scraped(instance)
            find_workers(gateway)[1].kill()
            alert = await prometheus.wait_until_firing("GatewayWorkerRestarted", instance)
            assert_readable(alert, severity="warning", worker="1")
            await prometheus.wait_until_resolved("GatewayWorkerRestarted", instance)

            # Prometheus keeps its connection to one of the workers; the other one is to hang.
            connections = count_connections(gateway)
            hung = find_workers(gateway)[min(connections, key=lambda each: connections[each])]
            try:
                hung.send_signal(signal.SIGSTOP)
                alert = await prometheus.wait_until_firing("GatewayWorkerMissing", instance)
                assert_readable(alert, severity="critical")
            finally:
                hung.send_signal(signal.SIGCONT)
            await prometheus.wait_until_resolved("GatewayWorkerMissing", instance)


@pytest.mark.night
async def test_a_back_end_that_refuses_records_and_one_that_is_away(prometheus, kafka):
    async with running_backend() as backend:
        world = ReactiveWorld(kafka, backend)
        group = build_settings(backend, world.topic, maxRetries=1)
        labels = {"group": group["group"], "topic": world.topic}
        config = build_config(kafka.bootstrap, [], [], sidecar={"reactive": {"groups": [group]}})
        async with watched(prometheus, config) as (_, instance):
            backend.set_orders(fail=1)
            world.write_records(1)
            alert = await prometheus.wait_until_firing("SidecarDeadLetters", instance)
            assert_readable(alert, severity="warning", **labels)
            await prometheus.wait_until_resolved("SidecarDeadLetters", instance)

            backend.set_orders()
            backend.kill()
            world.write_records(1500)
            alert = await prometheus.wait_until_firing("SidecarLanesHeldUp", instance)
            assert_readable(alert, severity="critical", group=group["group"])
            alert = await prometheus.wait_until_firing("SidecarGroupLag", instance)
            assert_readable(alert, severity="warning", **labels)
            await backend.start()
            await prometheus.wait_until_resolved("SidecarLanesHeldUp", instance)
            await prometheus.wait_until_resolved("SidecarGroupLag", instance)
        world.close()
