"""What a scrape says, against what really was: records that clients got, gaps that they were told,
reconnects that the log tells of, bytes that came off the sockets."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest
from support.brokers import embedded_kafka
from support.clients.ndjson import NdjsonClient
from support.clients.raw import RawClient
from support.gateways import (
    GatewayProcess,
    GatewayThread,
    build_config,
    build_route,
    running_gateway,
)
from support.multiplex import MultiplexClient
from support.oracle import StreamOracle
from support.otlp import running_collector
from support.scrape import OPENMETRICS_TYPE, MetricsScrape, fetch_metrics
from support.waiting import WAIT_TIMEOUT_S, wait_until
from support.workers import find_workers, running_workers

from gateway.core.error_code import ErrorCode
from gateway.kafka.embedded import EmbeddedKafka

FETCH, PRODUCE = 1, 0
RETRIED = re.compile(r"FETCH reconnect in \S+ topic=(\S+) partition=\d+ cause=(\S+)")

kafka = embedded_kafka({"orders": 3, "stock": 1}, scope="function")


async def scrapes(
    gateway: GatewayThread | GatewayProcess, met: Callable[[MetricsScrape], object], what: str
) -> MetricsScrape:
    """The first scrape of which something is true."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            found = await fetch_metrics(gateway)
            if met(found):
                return found
            await asyncio.sleep(0.05)
    raise AssertionError(what)


def records(client: Any) -> int:
    return sum(event["event"] == "message" for event in client.events)


async def test_deliveries_and_partitions_that_are_read_have_their_figures(kafka: EmbeddedKafka):
    config = build_config(kafka.bootstrap, ["orders"])
    events, lines = "/events/orders", "/records/orders"
    async with (
        running_gateway(config) as gateway,
        StreamOracle(kafka.bootstrap[0]) as oracle,
        AsyncExitStack() as stack,
    ):
        url = gateway.base_url
        clients = [
            (events, "sse", [RawClient(url + events) for _ in range(3)]),
            (lines, "sse", [RawClient(url + lines)]),
            (lines, "ndjson", [NdjsonClient(url + lines) for _ in range(2)]),
        ]  # fmt: skip
        everyone: list[Any] = [each for _, _, some in clients for each in some]
        for client in everyone:
            await stack.enter_async_context(client)
        socket = await stack.enter_async_context(MultiplexClient(url))
        await socket.subscribe("a", events)
        await asyncio.gather(*(client.wait_for_events(1) for client in everyone))
        await oracle.produce_records("orders", 200)
        await wait_until(lambda: all(records(each) == 200 for each in everyone), "all")
        await socket.wait_until(lambda: len(socket.get_records("a")) == 200)

        found = await fetch_metrics(gateway, accept=OPENMETRICS_TYPE)
        for path, wire, some in clients:
            of = {"route": path, "wire": wire}
            assert found["gateway_clients", of] == len(some)
            assert found["gateway_deliveries_total", of] == 200 * len(some)
        of = {"route": events, "wire": "websocket"}
        assert found["gateway_deliveries_total", of] == 200
        assert found["gateway_websockets", {}] == 1
        for wire in ("sse", "ndjson", "websocket"):
            live = found.sum_series("gateway_delivery_latency_seconds_count", wire=wire)
            assert live == found.sum_series("gateway_deliveries_total", wire=wire)
        fetched = {"topic": "orders", "reader": "tail"}
        assert found["gateway_fetched_records_total", fetched] == 200
        for partition in range(3):
            of = {"topic": "orders", "partition": partition}
            assert found["gateway_partition_ready", of] == 1
            assert found["gateway_partition_lag_records", of] == 0
        assert found["gateway_partition_ready_seconds_count", {"topic": "orders"}] == 3
        assert found["gateway_kafka_request_seconds_count", {"api": "Fetch"}] > 0
        cached = found["gateway_memory_bytes", {"part": "cache"}]
        assert 0 < cached < found["gateway_memory_limit_bytes", {}]


async def test_what_was_caught_up_on_is_no_live_delivery(kafka: EmbeddedKafka):
    config = build_config(kafka.bootstrap, ["orders"])
    path = "/events/orders"
    async with (
        running_gateway(config) as gateway,
        StreamOracle(kafka.bootstrap[0]) as oracle,
    ):
        async with RawClient(gateway.base_url + path) as live:
            await live.wait_for_events(1)
            await oracle.produce_records("orders", 200)
            await wait_until(lambda: records(live) == 200, "all")
            async with RawClient(f"{gateway.base_url}{path}?from=earliest") as late:
                await wait_until(lambda: records(late) == 200, "the late one")
                found = await fetch_metrics(gateway, accept=OPENMETRICS_TYPE)
        of = {"route": path, "wire": "sse"}
        assert found["gateway_deliveries_total", of] == 400
        assert found["gateway_delivery_latency_seconds_count", of] == 200
        assert found["gateway_catchup_records_total", {**of, "source": "cache"}] >= 200
        gone = {**of, "reason": "left"}
        await scrapes(gateway, lambda each: each["gateway_streams_ended_total", gone] == 2, "gone")


async def test_bytes_are_those_of_the_streams_and_the_path_is_as_configured(kafka: EmbeddedKafka):
    """Of HTTP's heads there are none in them, of its chunks there are."""
    path = "/admin/figures"
    config = build_config(kafka.bootstrap, ["stock"], telemetry={"metrics": {"prometheus": path}})
    async with (
        running_gateway(config) as running,
        StreamOracle(kafka.bootstrap[0]) as oracle,
        RawClient(running.base_url + "/events/stock") as client,
    ):
        await client.wait_for_events(1)
        await oracle.produce_records("stock", 50)
        await wait_until(lambda: records(client) == 50, "all")
        of = {"route": "/events/stock", "wire": "sse"}
        found = await fetch_metrics(running, path=path, accept=OPENMETRICS_TYPE)
        sent = found["gateway_sent_bytes_total", of]
        assert len(client.body) < sent < client.received_bytes
        assert found["gateway_token_bytes_count", of] == 1
        assert found["gateway_token_bytes_sum", of] == len(client.events[0]["id"])
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(running.base_url + "/metrics")).status_code == 404


async def test_a_gap_is_told_with_its_records_and_to_how_many_clients(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    """The brokers' word that they do not lead keeps the gateway from reading, while records come
    and go."""
    caplog.set_level("DEBUG", "gateway.kafka")
    config = build_config(kafka.bootstrap, ["stock"])
    async with (
        running_gateway(config) as gateway,
        StreamOracle(kafka.bootstrap[0]) as oracle,
        RawClient(gateway.base_url + "/events/stock") as one,
        RawClient(gateway.base_url + "/events/stock") as other,
    ):
        await asyncio.gather(one.wait_for_events(1), other.wait_for_events(1))
        await oracle.produce_records("stock", 5)
        await wait_until(lambda: records(one) == records(other) == 5, "the first")
        kafka.fail(FETCH, *[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 5000)
        await wait_until(lambda: "cause=not-leader" in caplog.text, "the failure")
        of = {"topic": "stock", "partition": 0}
        state = {**of, "cause": "not-leader"}
        await scrapes(gateway, lambda each: each["gateway_partition_recovering", state], "cause")
        await oracle.produce_records("stock", 30)
        kafka.delete_records("stock", {0: 25})
        kafka.forgive(FETCH)
        await wait_until(lambda: records(one) == records(other) == 15, "the others")
        found = await scrapes(gateway, lambda each: each["gateway_partition_ready", of], "ready")

        told = [event for each in (one, other) for event in each.events if event["event"] == "gap"]
        reason = {"topic": "stock", "reason": "retention"}
        assert found["gateway_gaps_total", reason] == 1
        assert {(gap["from"], gap["to"]) for gap in _gaps(told)} == {(5, 25)}
        assert found["gateway_gap_records_total", reason] == 20
        assert found.sum_series("gateway_client_gaps_total", reason="retention") == len(told) == 2
        retried = Counter(RETRIED.findall(caplog.text))
        assert retried["stock", "not-leader"] > 0
        for (topic, cause), count in retried.items():
            labels = {"topic": topic, "cause": cause}
            assert found["gateway_partition_reconnects_total", labels] == count


def _gaps(told: list[Any]) -> list[dict[str, Any]]:
    return [json.loads(event["data"]) for event in told]


async def test_a_broker_that_is_away_is_seen_and_its_return(
    kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG", "gateway.kafka")
    config = build_config(kafka.bootstrap, ["stock"])
    async with (
        running_gateway(config) as gateway,
        RawClient(gateway.base_url + "/events/stock") as client,
    ):
        await client.wait_for_events(1)
        of = {"topic": "stock", "partition": 0}
        tail = {"role": "tail"}
        # BEGIN may come before the fetching has connected, which then connects only once.
        await scrapes(gateway, lambda each: each["gateway_broker_connects_total", tail], "there")
        kafka.down(1)
        await scrapes(gateway, lambda each: not each["gateway_partition_ready", of], "away")
        await scrapes(gateway, lambda each: not each["gateway_kafka_reachable", {}], "away")
        kafka.up(1)
        found = await scrapes(
            gateway,
            lambda each: each["gateway_partition_ready", of] * each["gateway_kafka_reachable", {}],
            "back",
        )
        assert found.sum_series("gateway_broker_connect_failures_total") > 0
        assert found["gateway_broker_connects_total", tail] >= 2
        retried = Counter(RETRIED.findall(caplog.text))
        for (topic, cause), count in retried.items():
            labels = {"topic": topic, "cause": cause}
            assert found["gateway_partition_reconnects_total", labels] == count
        assert found["gateway_partition_state", {**of, "state": "streaming"}] == 1


async def test_a_slow_client_is_seen_with_its_distance_and_what_was_done_about_it(
    kafka: EmbeddedKafka,
):
    routes = [build_route("stock", "value", slowClient="skip")]
    config = build_config(kafka.bootstrap, ["stock"], routes)
    async with (
        running_gateway(config) as gateway,
        StreamOracle(kafka.bootstrap[0]) as oracle,
    ):
        url = gateway.base_url + "/events/stock"
        async with RawClient(url, receive_buffer=4096) as slow, RawClient(url) as fast:
            await asyncio.gather(slow.wait_for_events(1), fast.wait_for_events(1))
            slow.stop_reading()
            of = {"route": "/events/stock"}
            found, count = await fetch_metrics(gateway), 0
            while not found["gateway_client_falls_total", {**of, "wire": "sse", "policy": "skip"}]:
                await oracle.produce_records("stock", 500, fields={"pad": "x" * 1000})
                count += 500
                await wait_until(lambda: records(fast) == count, "the fast one")  # noqa: B023
                found = await fetch_metrics(gateway)
            assert found["gateway_client_stalls_total", {**of, "wire": "sse"}] >= 1
            # It may have skipped all that there is by now.
            await oracle.produce_records("stock", 1)
            state = {**of, "state": "slow"}
            found = await scrapes(
                gateway, lambda each: each["gateway_clients_behind_records_max", state], "behind"
            )
            assert found["gateway_clients_behind", state] == 1
            most = found["gateway_clients_behind_records_max", state]
            assert most == found["gateway_clients_behind_records", state] <= count + 1
            slow.resume_reading()
            await wait_until(lambda: any(e["event"] == "gap" for e in slow.events), "a gap")
            told = {**of, "wire": "sse", "reason": "skipped"}
            found = await scrapes(
                gateway, lambda each: not each["gateway_clients_behind", state], "none behind"
            )
            told_count = found["gateway_client_gaps_total", told]
            await wait_until(
                lambda: sum(e["event"] == "gap" for e in slow.events) == told_count, "all gaps"
            )


async def test_what_is_refused_and_what_is_written_is_counted(kafka: EmbeddedKafka):
    routes = [{"when": [{"path": "/stock"}], "with": {"topic": "stock", "produce": True}}]
    listen = {"limits": {"connections": 1}}
    config = build_config(kafka.bootstrap, ["stock"], routes, listen=listen)
    async with running_gateway(config) as running:
        url = running.base_url + "/stock"
        before = await fetch_metrics(running)  # of those who asked whether it is ready
        async with (
            MultiplexClient(running.base_url, "/stock") as socket,
            httpx.AsyncClient(trust_env=False) as http,
        ):
            for number in range(20):
                await socket.send_message("produce", id=str(number), value="a" * 100)
            await socket.wait_until(
                lambda: sum(each["type"] == "produced" for each in socket.messages) == 20
            )
            kafka.fail(PRODUCE, ErrorCode.MESSAGE_TOO_LARGE)
            await socket.send_message("produce", id="large", value="a")
            await socket.wait_for_message("large", "error")
            for _ in range(3):
                assert (await http.get(url)).status_code == 503
            assert (await http.get(running.base_url + "/none")).status_code == 404
            assert (await http.post(url)).status_code == 405
            found = await fetch_metrics(running)
        assert found["gateway_refused_connections_total", {"limit": "connections"}] == 3
        for status, count in ((503, 3), (404, 1), (405, 1)):
            of = {"status": status}
            known = before["gateway_refused_requests_total", of]
            assert found["gateway_refused_requests_total", of] - known == count
        of = {"topic": "stock"}
        for outcome, count in (("written", 20), ("refused", 1)):
            assert found["gateway_produced_records_total", {**of, "outcome": outcome}] == count
        assert found["gateway_produce_seconds_count", of] == 20
        assert found["gateway_produced_bytes_total", of] >= 2000
        assert found["gateway_produce_waiting_bytes", {}] == 0


@pytest.mark.smoke
@pytest.mark.needs("process")
async def test_one_scrape_is_of_all_workers_whoever_is_asked(kafka: EmbeddedKafka):
    config = build_config(kafka.bootstrap, ["stock"])
    async with running_workers(config, 2) as gateway, AsyncExitStack() as stack:
        url = gateway.base_url + "/events/stock"
        clients = [RawClient(url) for _ in range(12)]
        for client in clients:
            await stack.enter_async_context(client)
        await asyncio.gather(*(client.wait_for_events(1) for client in clients))
        oracle = await stack.enter_async_context(StreamOracle(kafka.bootstrap[0]))
        await oracle.produce_records("stock", 30)
        await wait_until(lambda: all(records(each) == 30 for each in clients), "all")
        of = {"route": "/events/stock", "wire": "sse"}
        for _ in range(4):  # by connections of their own: of either worker
            found = await fetch_metrics(gateway)
            assert found["gateway_workers", {}] == 2
            assert found["gateway_workers_missing", {}] == 0
            assert found["gateway_clients", of] == 12
            assert found["gateway_deliveries_total", of] == 360
            assert found["gateway_delivery_latency_seconds_count", of] == 360
            assert (
                found["process_open_fds", {"worker": 1}]
                > 0
                < found["process_open_fds", {"worker": 2}]
            )


async def test_figures_are_sent_by_otlp_too(kafka: EmbeddedKafka, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    with running_collector() as back:
        telemetry: dict[str, Any] = {
            "metrics": {"otlp": back.url, "interval": "1s"},
            "headers": {"authorization": "Bearer s3cret-s3cret"},
        }
        telemetry["metrics"]["prometheus"] = None
        config = build_config(kafka.bootstrap, ["stock"], telemetry=telemetry)
        async with (
            running_gateway(config) as running,
            RawClient(running.base_url + "/events/stock") as client,
        ):
            await client.wait_for_events(1)
            labels = {"route": "/events/stock", "wire": "sse"}
            await wait_until(lambda: back.get_value("gateway_clients", **labels) == 1, "the figure")
            assert back.resource["service.name"] == "test"
            assert back.requests[-1][1]["authorization"] == "Bearer s3cret-s3cret"
            async with httpx.AsyncClient(trust_env=False) as http:
                assert (await http.get(running.base_url + "/metrics")).status_code == 404
        assert "s3cret" not in caplog.text


@pytest.mark.needs("process")
async def test_no_counter_falls_while_a_worker_is_late_or_when_it_crashed(kafka: EmbeddedKafka):
    """Prometheus took it for a restart, and counted old events again."""
    config = build_config(kafka.bootstrap, ["orders"])
    requests = 30
    async with running_workers(config, 2) as gateway:
        for _ in range(requests):  # a connection each, so that both workers count some
            async with httpx.AsyncClient(trust_env=False, timeout=WAIT_TIMEOUT_S) as http:
                assert (await http.get(f"{gateway.base_url}/nothing")).status_code == 404
        before = await scrapes(gateway, lambda each: count_refused(each) == requests, "all refused")
        assert before["gateway_workers", {}] == 2
        worker = find_workers(gateway)[2]
        worker.suspend()
        try:
            late = await scrape_other_worker(gateway)
        finally:
            worker.resume()
        assert late["gateway_workers_missing", {}] == 1
        assert count_refused(late) == requests
        await scrapes(gateway, lambda each: each["gateway_workers", {}] == 2, "both again")
        worker.kill()
        restarted = {"worker": "2"}
        found = await scrapes(
            gateway, lambda each: each["gateway_worker_restarts_total", restarted] == 1, "restart"
        )
        assert count_refused(found) == requests
        again = await scrapes(gateway, lambda each: each["gateway_workers", {}] == 2, "both again")
        assert count_refused(again) == requests
        started_at = "process_start_time_seconds"
        assert again[started_at, restarted] > before[started_at, restarted]


def count_refused(scrape: MetricsScrape) -> float:
    return scrape.sum_series("gateway_refused_requests_total", status="404")


async def scrape_other_worker(gateway: GatewayProcess) -> MetricsScrape:
    """One that a worker answers; the one that is suspended accepts connections, too."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while True:
            try:
                async with asyncio.timeout(5):
                    return await fetch_metrics(gateway)
            except TimeoutError:
                continue
