"""`gateway doctor` on what only a real broker has: transactions, and answers that throttle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from support.admin_api import ADMIN_SECTION
from support.brokers import KafkaCluster
from support.clients.raw import RawClient
from support.doctor import describe, diagnose_gateway, get_first, get_first_cause, wait_for_metric
from support.gateways import build_config, running_gateway_process
from support.kafka_proxy import KafkaProxy
from support.oracle import StreamOracle
from support.tcp_proxy import TcpProxy


async def test_an_open_transaction_is_named_first(
    kafka: KafkaCluster, topic: Callable[..., str], oracle: StreamOracle
):
    name = topic(partitions=2)
    config = build_config(kafka.bootstrap, [name], admin=ADMIN_SECTION)
    async with (
        running_gateway_process(config) as gateway,
        RawClient(f"{gateway.base_url}/events/{name}") as client,
    ):
        await client.wait_for_events(1)
        async with oracle.open_transaction() as opened:
            await opened.send_records(name, 1)
            await oracle.produce_records(name, 20)
            await wait_for_metric(gateway, "gateway_partition_open_transaction_seconds{")
            diagnosis = await diagnose_gateway(gateway, interval_s=6)
            assert get_first(diagnosis) == "open-transaction", describe(diagnosis)
            assert name in get_first_cause(diagnosis).evidence[0]
        assert describe(await diagnose_gateway(gateway)) == {}, "it has ended"


async def test_a_quota_of_kafka_is_named_first(
    kafka: KafkaCluster, topic: Callable[..., str], oracle: StreamOracle
):
    name = topic()

    async def write() -> None:
        while True:
            await oracle.produce_records(name, 1)
            await asyncio.sleep(0.05)

    async with KafkaProxy.wrap_cluster(kafka.bootstrap_servers) as proxy:
        proxy.on_response = lambda request, answer: (
            {**answer, "throttle_ms": 300} if "throttle_ms" in answer else None
        )
        config = build_config(proxy.bootstrap, [name], admin=ADMIN_SECTION)
        async with (
            running_gateway_process(config) as gateway,
            RawClient(f"{gateway.base_url}/events/{name}") as client,
        ):
            await client.wait_for_events(1)
            diagnosis = await diagnose_gateway(gateway, write(), interval_s=3)
            assert get_first(diagnosis) == "kafka-throttles", describe(diagnosis)


async def test_a_back_end_that_is_away_is_named_first(
    kafka: KafkaCluster, topic: Callable[..., str], oracle: StreamOracle
):
    name = topic()
    await oracle.produce_records(name, 3)
    async with TcpProxy() as door:
        await door.refuse()
        group = {
            "group": f"group-{name}",
            "topics": [name],
            "autoOffsetReset": "earliest",
            "retryDelay": "50ms",
            "retryDelayMax": "200ms",
            "backend": {"host": f"http://{door.address}", "timeout": "2s"},
        }
        sidecar = {"reactive": {"groups": [group]}}
        config = build_config(kafka.bootstrap, [name], admin=ADMIN_SECTION, sidecar=sidecar)
        async with running_gateway_process(config) as gateway:
            await wait_for_metric(gateway, 'verdict="away"')
            diagnosis = await diagnose_gateway(gateway)
            assert get_first(diagnosis) == "backend-away", describe(diagnosis)
            assert f"group-{name}" in get_first_cause(diagnosis).evidence[0]
