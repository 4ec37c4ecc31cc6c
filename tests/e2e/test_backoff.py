"""What is away, denied or failing is asked for slowly, and read again soon after it is back.

Figures are printed (`pytest -s`); what is asserted is loose.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from support import secured
from support.admin import Admin
from support.brokers import PROPERTIES, Broker, started
from support.flow import Clocked, Flow
from support.gateways import config_for, running_gateway
from support.oracle import Oracle
from support.proxy import Api, Injection, KafkaProxy
from support.until import until

from gateway.core.log.record import TopicPartition
from gateway.core.log.recovery import CAUSES, RULES, Action
from gateway.kafka.local import LocalKafka, Security

PARTITIONS = 4
MOST = 10  # requests a second, of one partition
RECONNECT_MAX = 1.0  # s, as configured by default
CODES = sorted(CAUSES)
SLOW = {code for code, cause in CAUSES.items() if RULES[cause].action is Action.TELL}


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    """On its plain listener one may do anything, on SASL carol may do what ACLs allow."""
    security = Security(users={"carol": "pw"}, mechanisms=("PLAIN",), acl=True)
    kafka = LocalKafka(security=security, properties=PROPERTIES, fast_failover=True)
    with started(kafka):
        yield Broker(kafka.bootstrap, kafka)


@pytest.fixture
def broker(module_broker: Broker) -> Iterator[Broker]:
    assert module_broker.local is not None
    yield module_broker
    if not module_broker.local.node(1).running:
        module_broker.heal()
    module_broker.forget_topics()


# -- a broker that is away -------------------------------------------------------------


@pytest.mark.parametrize(("how", "span"), [("killed", 4.0), ("hung up", 3.0), ("hidden", 4.0)])
async def test_a_broker_that_is_away_is_not_hammered_and_soon_read_again(broker, how, span):
    """How soon: after the first moment that another client can read the partition."""
    name = await asyncio.to_thread(broker.topic, PARTITIONS)
    async with (
        KafkaProxy.around(broker.servers) as proxy,
        Oracle(broker.servers) as oracle,
        running_gateway(config_for(proxy.bootstrap, [name])) as gateway,
        Flow(broker.servers, oracle, name, range(PARTITIONS), ahead=400) as flow,
        Clocked(f"{gateway.base_url}/records/{name}") as client,
    ):
        await until(lambda: client.begun(flow.tps), client.state, 30)
        began = time.monotonic()
        await taken(how, broker, proxy)
        await asyncio.sleep(span)
        asked = proxy.count(since=began + 0.5) + proxy.connects(since=began + 0.5)
        seen = dict.fromkeys(flow.tps, time.monotonic())
        await given_back(broker, proxy)
        if how == "killed":
            seen = await readable(broker, flow.tps)
        back = min(seen.values())
        await until(lambda: flow.has(flow.tps, back), "writers are back", 60)
        await until(lambda: client.begun(flow.tps, back), client.state, 30)
        late = [client.first(tp, began + 1) - first(flow, tp, seen[tp]) for tp in flow.tps]
        rate = asked / (span - 0.5)
        print(
            f"\n{how} for {span:.0f} s: {rate:.1f} requests and connects a second, resumes", end=""
        )
        print(" after " + "/".join(f"{each:.2f}" for each in sorted(late)) + " s")
        assert rate < MOST * PARTITIONS
        assert max(late) < RECONNECT_MAX + 4
        await flow.stop()
        await client.caught_up(oracle, flow.tps)
        oracle.check_events(client.records())
        assert client.opened == 1


def first(flow: Flow, tp: TopicPartition, readable_at: float) -> float:
    """From when on there was a record that could be read: what the gateway is measured from."""
    acked = [at for at in flow.acked[tp].values() if at > readable_at]
    return max(readable_at, min(acked)) if acked else readable_at


async def taken(how: str, broker: Broker, proxy: KafkaProxy) -> None:
    assert broker.local is not None
    if how == "killed":
        broker.local.node(1).kill()
    elif how == "hung up":
        await proxy[1].hang_up()
    else:
        await proxy[1].hide()


async def given_back(broker: Broker, proxy: KafkaProxy) -> None:
    assert broker.local is not None
    broker.local.node(1).start()  # if it does not run
    await proxy[1].unhide()


async def readable(broker: Broker, tps: Sequence[TopicPartition]) -> dict[TopicPartition, float]:
    """When a client that is not the gateway first read something of each."""
    times = await asyncio.gather(*(asyncio.to_thread(_readable, broker.servers, tp) for tp in tps))
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
    names = [await asyncio.to_thread(broker.topic, len(CODES)) for _ in range(2)]
    async with (
        KafkaProxy.around(broker.servers) as proxy,
        Oracle(broker.servers) as oracle,
        running_gateway(config_for(proxy.bootstrap, names)) as gateway,
        asyncio.TaskGroup() as both,
    ):
        for name, api in zip(names, (Api.LIST_OFFSETS, Api.FETCH), strict=True):
            both.create_task(recovers(proxy, oracle, f"{gateway.base_url}/records/{name}", api))


async def recovers(proxy: KafkaProxy, oracle: Oracle, url: str, api: Api) -> None:
    topic = url.rpartition("/")[2]
    tps = [TopicPartition(topic, number) for number in range(len(CODES))]
    quick = {tp for tp, code in zip(tps, CODES, strict=True) if code not in SLOW}
    injected = [] if api is Api.FETCH else failing(proxy, api, topic)
    async with Clocked(url) as client:
        await until(lambda: client.named("begin"), client.state, 30)
        if api is Api.FETCH:
            await until(lambda: client.pending() <= client.ready(), client.state, 30)
            injected = failing(proxy, api, topic)
            await written(oracle, tps)
        await until(lambda: all(each.hits for each in injected), "all were hit", 30)
        began, span = time.monotonic(), 2.0
        await asyncio.sleep(span)
        rate = proxy.count(api, since=began) / span / len(CODES)
        healed = time.monotonic()
        for each in injected:
            proxy.heal(each)
        if api is not Api.FETCH:
            await until(lambda: quick <= client.ready(), client.state, 60)
            await until(lambda: set(tps) <= client.ready(), client.state, 60)
            await written(oracle, tps)
        await until(lambda: client.begun(quick), client.state, 60)
        took = time.monotonic() - healed
        await client.caught_up(oracle, tps)
        slowest = time.monotonic() - healed
        print(f"\n{len(CODES)} codes for {api.name}: {rate:.1f} requests/s a partition", end="")
        print(f", {len(quick)} flow after {took:.2f} s, all after {slowest:.2f} s")
        assert rate < MOST
        oracle.check_events(client.records(), start=dict.fromkeys(tps, 0))
        assert not client.named("gap")
        assert {error["code"] for error in client.named("error")} <= {*map(str, CAUSES.values())}
        assert client.opened == 1


def failing(proxy: KafkaProxy, api: Api, topic: str) -> list[Injection]:
    """Each partition's answers have a code of their own until they are healed."""
    return [
        proxy.inject(api, code, topic=topic, partition=number) for number, code in enumerate(CODES)
    ]


async def written(oracle: Oracle, tps: Iterable[TopicPartition]) -> None:
    await asyncio.gather(*(oracle.produce(tp.topic, 3, partition=tp.partition) for tp in tps))


# -- who may not ------------------------------------------------------------------------


@asynccontextmanager
async def by_sasl(broker: Broker) -> AsyncIterator[KafkaProxy]:
    """A proxy in front of the listener that wants to know who one is."""
    proxy = KafkaProxy(rewrite=True)
    async with proxy:
        await proxy.listen([1])
        assert broker.local is not None
        proxy.target(1, "127.0.0.1", broker.local.node(1).ports["SASL"])
        yield proxy


def as_carol(proxy: KafkaProxy, topics: Iterable[str], password: str = "pw") -> dict[str, Any]:
    sasl = {"mechanism": "plain", "username": "carol", "password": password}
    return config_for(proxy.bootstrap, topics, kafka={"security": {"sasl": sasl}})


def allow(admin: Admin, topic: str, *operations: AclOperation) -> None:
    secured.allow(admin, "User:carol", topic, *operations)


def deny(admin: Admin, topic: str, operation: AclOperation) -> None:
    found = AclBindingFilter(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:carol", None, operation,
        AclPermissionType.ALLOW,
    )  # fmt: skip
    for future in admin.client.delete_acls([found]).values():
        future.result(30)


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
    servers = broker.servers
    async with (
        by_sasl(broker) as proxy,
        running_gateway(as_carol(proxy, names)) as gateway,
        Oracle(servers) as oracle,
        Flow(servers, oracle, "orders", range(2)) as flow,
        Flow(servers, oracle, "revoked", range(2)) as revoked,
        Clocked(f"{gateway.base_url}/records/orders") as client,
        Clocked(f"{gateway.base_url}/records/revoked") as other,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=30) as http,
    ):
        await until(lambda: client.begun(flow.tps), client.state, 30)
        await until(lambda: other.begun(revoked.tps), other.state, 30)
        flowing = time.monotonic()
        for name in ("secret", "described", "secret"):
            answer = await http.get(f"/records/{name}")
            assert answer.status_code == 403
            assert answer.json()["topic"] == name
        await asyncio.to_thread(deny, admin, "revoked", READ)
        await until(lambda: other.named("error"), other.state, 30)
        began, span = time.monotonic(), 3.0
        await asyncio.sleep(span)
        metadata = proxy.count(Api.METADATA, since=began) / span
        lists = proxy.count(Api.LIST_OFFSETS, since=began) / span
        assert metadata < MOST and lists < MOST
        assert {error["code"] for error in other.named("error")} == {"access-denied"}
        assert (await http.get("/records/revoked")).status_code == 403
        assert len(other.named("error")) <= 2  # of each partition
        delay = client.delay(flow, flow.tps, flowing)
        assert delay < 4

        await asyncio.to_thread(allow, admin, "revoked", READ)
        await asyncio.to_thread(allow, admin, "secret", READ, DESCRIBE)
        await asyncio.to_thread(allow, admin, "described", READ)
        granted = time.monotonic()
        async with (
            Clocked(f"{gateway.base_url}/records/secret") as secret,
            Clocked(f"{gateway.base_url}/records/described") as described,
        ):
            for heard in (secret, described):
                await until(lambda h=heard: h.named("begin"), heard.state, 30)
            await until(lambda: other.begun(revoked.tps, granted), other.state, 90)
            healed = time.monotonic() - granted
        print(f"\ndenied: {metadata:.1f} Metadata/s, {lists:.1f} ListOffsets/s,", end="")
        print(f" others' delay {delay:.3f} s, revoked flows {healed:.2f} s after the grant")
        for writer, reader in ((flow, client), (revoked, other)):
            await writer.stop()
            await reader.caught_up(oracle, writer.tps)
            oracle.check_events(reader.records())
            assert reader.opened == 1


async def test_wrong_credentials_are_told_to_clients_and_by_health(broker):
    admin = broker.admin
    await asyncio.to_thread(admin.create_topic, "paid", 2)
    async with (
        by_sasl(broker) as proxy,
        running_gateway(as_carol(proxy, ["paid"], "not it"), ready=False) as gateway,
        httpx.AsyncClient(base_url=gateway.base_url, trust_env=False, timeout=30) as http,
    ):
        reasons: list[str] = []
        while not any("refused" in reason for reason in reasons):
            health = await http.get("/health/ready")
            assert health.status_code == 503
            reasons = health.json()["reasons"]
            await asyncio.sleep(0.05)
        began, span = time.monotonic(), 3.0
        answer = await http.get("/records/paid")
        assert answer.status_code == 503 and "retry-after" in answer.headers
        assert "not it" not in answer.text + health.text + gateway.log
        await asyncio.sleep(span)
        rate = proxy.connects(since=began) / span
        print(f"\nwrong password: {rate:.1f} connects a second; {reasons}")
        assert rate < MOST
        assert (await http.get("/health/live")).status_code == 200
