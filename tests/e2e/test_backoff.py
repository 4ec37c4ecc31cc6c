"""What is away, denied or failing is asked for slowly, and read again soon after it is back.

Figures are printed (`pytest -s`); what is asserted is loose.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AclOperation
from support import secure_kafka
from support.admin import KafkaAdmin
from support.brokers import FAST_FAILOVER_PROPERTIES, TEST_PROPERTIES, KafkaCluster, running_kafka
from support.continuous_writer import ContinuousWriter, TimedClient
from support.gateways import build_config, create_http_client, running_gateway_process
from support.kafka_proxy import ApiKey, ErrorInjection, KafkaProxy
from support.oracle import StreamOracle
from support.secure_kafka import BrokerSecurity
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import CAUSE_BY_ERROR_CODE, RECOVERY_RULES, RecoveryAction

pytestmark = pytest.mark.needs("kafka")

MOST = 10  # requests a second, of one partition
CODES = sorted(CAUSE_BY_ERROR_CODE)
SLOW = {
    code
    for code, cause in CAUSE_BY_ERROR_CODE.items()
    if RECOVERY_RULES[cause].action is RecoveryAction.REPORT
}


@pytest.fixture(scope="module")
def module_broker() -> Iterator[KafkaCluster]:
    """On its plain listener one may do anything, on SASL carol may do what ACLs allow."""
    security = BrokerSecurity(users={"carol": "pw"}, mechanisms=("PLAIN",), acl=True)
    kafka = security.create_kafka(properties=TEST_PROPERTIES | FAST_FAILOVER_PROPERTIES)
    with running_kafka(kafka):
        yield KafkaCluster(kafka.bootstrap, kafka)


@pytest.fixture
def broker(module_broker: KafkaCluster) -> Iterator[KafkaCluster]:
    assert module_broker.local_kafka is not None
    yield module_broker
    if not module_broker.local_kafka.get_node(1).is_running:
        module_broker.restore()
    module_broker.delete_topics()


# -- a broker that is away -------------------------------------------------------------


def first(flow: ContinuousWriter, tp: TopicPartition, readable_at: float) -> float:
    """From when on there was a record that could be read: what the gateway is measured from."""
    acked = [at for at in flow.acked_at[tp].values() if at > readable_at]
    return max(readable_at, min(acked)) if acked else readable_at


async def readable(
    broker: KafkaCluster, tps: Sequence[TopicPartition]
) -> dict[TopicPartition, float]:
    """When a client that is not the gateway first read something of each."""
    times = await asyncio.gather(
        *(asyncio.to_thread(_readable, broker.bootstrap_servers, tp) for tp in tps)
    )
    return dict(zip(tps, times, strict=True))


def _readable(servers: str, tp: TopicPartition) -> float:
    eager = {
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 20,
        "topic.metadata.refresh.fast.interval.ms": 20,
        "retry.backoff.ms": 10,
        "retry.backoff.max.ms": 20,
        "fetch.error.backoff.ms": 10,
    }
    named = {"bootstrap.servers": servers, "group.id": "readable", "log_level": 0}
    consumer = Consumer(named | eager)
    try:
        consumer.assign([Place(tp.topic, tp.partition, 0)])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                return time.monotonic()
    finally:
        consumer.close()
    raise TimeoutError(f"nobody can read {tp}")


# -- errors in answers -----------------------------------------------------------------


async def test_whatever_error_kafka_answers_the_stream_recovers_without_a_loop(broker):
    """Every code that is known, each on a partition of its own: in answers to ListOffsets, which
    a start needs, and to Fetch. They stay for a while, so that a loop would show."""
    names = [await asyncio.to_thread(broker.create_unique_topic, len(CODES)) for _ in range(2)]
    async with (
        KafkaProxy.wrap_cluster(broker.bootstrap_servers) as proxy,
        StreamOracle(broker.bootstrap_servers) as oracle,
        running_gateway_process(build_config(proxy.bootstrap, names)) as gateway,
        asyncio.TaskGroup() as both,
    ):
        for name, api in zip(names, (ApiKey.LIST_OFFSETS, ApiKey.FETCH), strict=True):
            both.create_task(recovers(proxy, oracle, f"{gateway.base_url}/records/{name}", api))


async def recovers(proxy: KafkaProxy, oracle: StreamOracle, url: str, api: ApiKey) -> None:
    topic = url.rpartition("/")[2]
    tps = [TopicPartition(topic, number) for number in range(len(CODES))]
    quick = {tp for tp, code in zip(tps, CODES, strict=True) if code not in SLOW}
    injected = [] if api is ApiKey.FETCH else failing(proxy, api, topic)
    async with TimedClient(url) as client:
        await wait_until(lambda: client.get_event_data("begin"), client.describe_state, 30)
        if api is ApiKey.FETCH:
            await wait_until(
                lambda: client.get_pending() <= client.get_ready(), client.describe_state, 30
            )
            injected = failing(proxy, api, topic)
            await written(oracle, tps)
        await wait_until(lambda: all(each.hit_count for each in injected), "all were hit", 30)
        began, span = time.monotonic(), 2.0
        await asyncio.sleep(span)
        rate = proxy.count_requests(api, since=began) / span / len(CODES)
        healed = time.monotonic()
        for each in injected:
            proxy.remove_injection(each)
        if api is not ApiKey.FETCH:
            await wait_until(lambda: quick <= client.get_ready(), client.describe_state, 60)
            await wait_until(lambda: set(tps) <= client.get_ready(), client.describe_state, 60)
            await written(oracle, tps)
        await wait_until(lambda: client.has_received(quick), client.describe_state, 60)
        took = time.monotonic() - healed
        await client.wait_until_caught_up(oracle, tps)
        slowest = time.monotonic() - healed
        print(f"\n{len(CODES)} codes for {api.name}: {rate:.1f} requests/s a partition", end="")
        print(f", {len(quick)} flow after {took:.2f} s, all after {slowest:.2f} s")
        assert rate < MOST
        oracle.check_events(client.list_record_events(), start=dict.fromkeys(tps, 0))
        assert not client.get_event_data("gap")
        assert {error["code"] for error in client.get_event_data("error")} <= {
            *map(str, CAUSE_BY_ERROR_CODE.values())
        }
        assert client.open_count == 1


def failing(proxy: KafkaProxy, api: ApiKey, topic: str) -> list[ErrorInjection]:
    """Each partition's answers have a code of their own until they are healed."""
    return [
        proxy.inject_error(api, code, topic=topic, partition=number)
        for number, code in enumerate(CODES)
    ]


async def written(oracle: StreamOracle, tps: Iterable[TopicPartition]) -> None:
    await asyncio.gather(
        *(oracle.produce_records(tp.topic, 3, partition=tp.partition) for tp in tps)
    )


# -- who may not ------------------------------------------------------------------------


@asynccontextmanager
async def by_sasl(broker: KafkaCluster) -> AsyncIterator[KafkaProxy]:
    """A proxy in front of the listener that wants to know who one is."""
    proxy = KafkaProxy(rewrites_addresses=True)
    async with proxy:
        await proxy.listen_for([1])
        assert broker.local_kafka is not None
        proxy.set_target(1, "127.0.0.1", broker.local_kafka.get_node(1).ports["SASL"])
        yield proxy


def as_carol(proxy: KafkaProxy, topics: Iterable[str], password: str = "pw") -> dict[str, Any]:
    sasl = {"mechanism": "plain", "username": "carol", "password": password}
    return build_config(proxy.bootstrap, topics, kafka={"security": {"sasl": sasl}})


def allow(admin: KafkaAdmin, topic: str, *operations: AclOperation) -> None:
    secure_kafka.grant_access(admin, "User:carol", topic, *operations)


def deny(admin: KafkaAdmin, topic: str, operation: AclOperation) -> None:
    secure_kafka.revoke_access(admin, "User:carol", topic, operation)


async def wait_until_granted(client: TimedClient) -> None:
    """Until its stream begins. A broker applies an ACL some time after it took it, so a client
    that was refused asks again."""
    deadline = time.monotonic() + 30
    while True:
        await wait_until(
            lambda: client.get_event_data("begin") or client.is_closed, client.describe_state, 30
        )
        if not client.is_closed:
            return
        assert time.monotonic() < deadline, f"still refused: {client.responses[-1]}"
        await client.reconnect()


@pytest.mark.night
async def test_a_denied_topic_is_told_so_and_harms_no_other(broker):
    """Also one that is denied while it streams; whatever is granted later comes by itself."""
    admin = broker.admin
    READ, DESCRIBE = AclOperation.READ, AclOperation.DESCRIBE
    names = ["orders", "secret", "described", "revoked"]
    for name in names:
        await asyncio.to_thread(admin.create_topic, name, 2)
    await asyncio.to_thread(allow, admin, "orders", READ, DESCRIBE)
    await asyncio.to_thread(allow, admin, "revoked", READ, DESCRIBE)
    await asyncio.to_thread(allow, admin, "described", DESCRIBE)
    servers = broker.bootstrap_servers
    async with (
        by_sasl(broker) as proxy,
        running_gateway_process(as_carol(proxy, names)) as gateway,
        StreamOracle(servers) as oracle,
        ContinuousWriter(servers, oracle, "orders", range(2)) as flow,
        ContinuousWriter(servers, oracle, "revoked", range(2)) as revoked,
        TimedClient(f"{gateway.base_url}/records/orders") as client,
        TimedClient(f"{gateway.base_url}/records/revoked") as other,
        create_http_client(gateway) as http,
    ):
        await wait_until(lambda: client.has_received(flow.partitions), client.describe_state, 30)
        await wait_until(lambda: other.has_received(revoked.partitions), other.describe_state, 30)
        flowing = time.monotonic()
        for name in ("secret", "described", "secret"):
            answer = await http.get(f"/records/{name}")
            assert answer.status_code == 403
            assert answer.json()["topic"] == name
        await asyncio.to_thread(deny, admin, "revoked", READ)
        await wait_until(lambda: other.get_event_data("error"), other.describe_state, 30)
        began, span = time.monotonic(), 3.0
        await asyncio.sleep(span)
        metadata = proxy.count_requests(ApiKey.METADATA, since=began) / span
        lists = proxy.count_requests(ApiKey.LIST_OFFSETS, since=began) / span
        assert metadata < MOST and lists < MOST
        assert {error["code"] for error in other.get_event_data("error")} == {"access-denied"}
        assert (await http.get("/records/revoked")).status_code == 403
        assert len(other.get_event_data("error")) <= 2  # of each partition
        delay = client.measure_delay(flow, flow.partitions, flowing)
        assert delay < 4

        await asyncio.to_thread(allow, admin, "revoked", READ)
        await asyncio.to_thread(allow, admin, "secret", READ, DESCRIBE)
        await asyncio.to_thread(allow, admin, "described", READ)
        granted = time.monotonic()
        async with (
            TimedClient(f"{gateway.base_url}/records/secret") as secret,
            TimedClient(f"{gateway.base_url}/records/described") as described,
        ):
            for granted_client in (secret, described):
                await wait_until_granted(granted_client)
            await wait_until(
                lambda: other.has_received(revoked.partitions, granted), other.describe_state, 90
            )
            healed = time.monotonic() - granted
        print(f"\ndenied: {metadata:.1f} Metadata/s, {lists:.1f} ListOffsets/s,", end="")
        print(f" others' delay {delay:.3f} s, revoked flows {healed:.2f} s after the grant")
        for writer, reader in ((flow, client), (revoked, other)):
            await writer.stop()
            await reader.wait_until_caught_up(oracle, writer.partitions)
            oracle.check_events(reader.list_record_events())
            assert reader.open_count == 1
