"""Starts and ends the world of a seed: three brokers, two gateways of two workers, and the rest."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import httpx
from confluent_kafka import KafkaException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from support.app_server import running_app
from support.backend import running_backend
from support.brokers import (
    FAST_FAILOVER_PROPERTIES,
    FAST_RETENTION_PROPERTIES,
    TEST_PROPERTIES,
    KafkaCluster,
)
from support.gateways import GatewayProcess, build_config
from support.issuer import AUDIENCE, ISSUER_NAME, JwksApp, TokenIssuer
from support.kafka_proxy import KafkaProxy
from support.oracle import StreamOracle
from support.proxies import ALL_PROXIES, Proxy, running_proxy
from support.registry import FakeRegistry
from support.requirements import is_installed
from support.tcp_proxy import TcpProxy
from support.workers import running_workers

from gateway.core.log.record import TopicPartition

from .clients import create_client
from .machine import CLOCK_NODE, FakeClock, FaultyKafka, create_clock
from .reactive import PROTOCOLS, ReactiveGroup
from .spark_job import ROWS, SparkJob
from .views import (
    CLOCKED,
    CLOCKED_CONFIGS,
    LEDGER,
    LOGIN,
    PRICES,
    REGISTRY,
    SESSION,
    SOLO,
    TOPICS,
    TRIMMED,
    TYPED,
    UNCLEAN,
    VOLATILE,
    Topic,
    Wire,
    build_routes,
    plan_clients,
)
from .world import World
from .writers import (
    SchemaCodec,
    TopicWriter,
    TransactionalWriter,
    WriterLog,
    choose_key,
    choose_own_key,
)

GATEWAY_COUNT, WORKER_COUNT = 2, 2
CLOCK_GATEWAY = 1  # its number among them, if it has a clock of its own
STREAMS_OF_A_BROWSER = 10  # over one connection of HTTP/2
CREATE_TIMEOUT_S = 120.0
TOKEN_LIFETIME_S = 7 * 86_400.0
BROKER_PROPERTIES = TEST_PROPERTIES | {
    # A transaction that nobody ends is aborted soon after its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Else a coordinator whose clock was ahead assigns nothing until its clock is there again: Kafka
    # notes when it last did, and lets that interval pass (KAFKA-20266).
    "group.consumer.assignment.interval.ms": "0",
}
# Records a second. What can lose records has one writer that knows every outcome.
RATES: Mapping[str, float] = {
    LEDGER: 20.0, SOLO: 6.0, TRIMMED: 20.0, VOLATILE: 8.0, UNCLEAN: 8.0, PRICES: 15.0,
    TYPED: 6.0,
}  # fmt: skip
PLAIN_RATE = TRANSACTIONAL_RATE = 10.0


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What a world has.

    Attributes:
        clients: How many clients there are.
        has_small_disk: Whether a broker has a disk that can be filled, if that is possible.
        has_gateway_clock: Whether a gateway has a clock that can be stepped, if that is possible.
        has_broker_clock: Whether a broker has one, if that is possible.
        has_job: Whether there is a Spark job.
        front: The proxy in front of the gateways; None for none.
    """

    clients: int
    has_small_disk: bool
    has_gateway_clock: bool
    has_broker_clock: bool
    has_job: bool
    front: type[Proxy] | None


class LoginApp:
    """Keys of the issuer at /jwks, and who a session is of at /whoami."""

    def __init__(self, issuer: TokenIssuer) -> None:
        self._jwks = JwksApp(issuer)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if scope["path"] == "/jwks":
            await self._jwks(scope, receive, send)
            return
        name = Request(scope).headers.get("authorization", "").removeprefix("Session ")
        answer = JSONResponse({"identity": name}) if name else Response(status_code=401)
        await answer(scope, receive, send)


def list_fronts() -> list[type[Proxy]]:
    """Return the kinds of proxies that this machine has."""
    return [kind for kind in ALL_PROXIES if is_installed(kind.NAME)]


@asynccontextmanager
async def running_world(options: WorldOptions, random: Random) -> AsyncIterator[World]:
    """Start everything but the clients and writers, which are created.

    Args:
        options: What there is.
        random: What all choices are drawn from.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        broker_proxy = await stack.enter_async_context(KafkaProxy())
        kafka = await _start_kafka(options, broker_proxy, folder, stack)
        cluster = KafkaCluster(kafka.bootstrap, kafka, has_fast_retention=True)
        for topic in (*TOPICS, ROWS, Topic(CLOCKED, [[CLOCK_NODE]], CLOCKED_CONFIGS)):
            await create_topic(cluster, topic)
        job = await _start_job(cluster, folder, stack) if options.has_job else None
        issuer, registry = TokenIssuer("ES256"), FakeRegistry()
        login_proxy = await _start_app(LoginApp(issuer), stack)
        registry_proxy = await _start_app(registry.app, stack)
        backend = await stack.enter_async_context(running_backend())
        group = ReactiveGroup(backend, random.choice(PROTOCOLS))
        clock = create_clock(folder / "clock") if options.has_gateway_clock else None
        config = build_bench_config(
            broker_proxy.bootstrap, login_proxy.address, registry_proxy.address, group
        )
        gateways = await _start_gateways(config, clock, stack)
        ports = [gateway.port for gateway in gateways]
        client_proxies = [
            await stack.enter_async_context(TcpProxy("127.0.0.1", port)) for port in ports
        ]
        front = None
        if options.front is not None:
            front_context = running_proxy(options.front, folder / "front", *ports)
            front = await stack.enter_async_context(front_context)
        oracle = StreamOracle()
        world = World(
            kafka, cluster, broker_proxy, gateways, client_proxies, front, clock, job, login_proxy,
            registry_proxy, group, SchemaCodec(registry, f"{TYPED}-value"), oracle,
            WriterLog(oracle, random), random,
        )  # fmt: skip
        await _create_writers(world, stack)
        await _create_clients(world, options.clients, issuer, stack)
        yield world


async def _start_kafka(
    options: WorldOptions, proxy: KafkaProxy, folder: Path, stack: AsyncExitStack
) -> FaultyKafka:
    """Start the brokers, and let the proxy pass on what it gets for each of them."""
    await proxy.listen_for([1, 2, 3])
    kafka = FaultyKafka(
        has_small_disk=options.has_small_disk,
        clock=create_clock(folder / "broker-clock") if options.has_broker_clock else None,
        properties=BROKER_PROPERTIES | FAST_FAILOVER_PROPERTIES | FAST_RETENTION_PROPERTIES,
        advertised=proxy.get_advertised,
    )
    await stack.enter_async_context(kafka)
    for node in kafka.nodes:
        proxy.set_target(node.id, "127.0.0.1", node.ports["VIA"])
    return kafka


async def _start_job(cluster: KafkaCluster, folder: Path, stack: AsyncExitStack) -> SparkJob:
    job = await asyncio.to_thread(SparkJob, cluster.bootstrap_servers, folder)
    stack.callback(job.kill)
    await asyncio.to_thread(job.start)
    return job


async def _start_app(app: Any, stack: AsyncExitStack) -> TcpProxy:
    """Serve an ASGI application behind a proxy."""
    url = await stack.enter_async_context(running_app(app))
    proxy = TcpProxy("127.0.0.1", int(url.rpartition(":")[2]))
    return await stack.enter_async_context(proxy)


async def _start_gateways(
    config: Mapping[str, Any], clock: FakeClock | None, stack: AsyncExitStack
) -> Sequence[GatewayProcess]:
    """Start the gateways, one of them with a clock of its own if there is one."""
    gateways = []
    for number in range(GATEWAY_COUNT):
        own = clock if number == CLOCK_GATEWAY else None
        options = {"environment": own.environment, "is_forked": False} if own else {}
        gateway = running_workers(config, WORKER_COUNT, **options)
        gateways.append(await stack.enter_async_context(gateway))
    return gateways


async def create_topic(cluster: KafkaCluster, topic: Topic) -> None:
    """Create a topic, however busy the brokers are, and wait until it has all leaders."""
    deadline = time.monotonic() + CREATE_TIMEOUT_S
    while True:
        try:
            await asyncio.to_thread(
                cluster.create_topic, topic.name, configs=topic.configs, assignment=topic.replicas
            )
        except KafkaException as error:
            name = error.args[0].name()
            if time.monotonic() > deadline or name not in ("_TIMED_OUT", "TOPIC_ALREADY_EXISTS"):
                raise
            leaders = await asyncio.to_thread(cluster.admin.get_leaders, topic.name)
            if len(leaders) == len(topic.replicas):
                return
            await asyncio.sleep(0.2)
        else:
            return


def build_bench_config(
    servers: str, login_address: str, registry_address: str, group: ReactiveGroup
) -> dict[str, Any]:
    """Build the configuration of the gateways."""
    topics = [{"name": topic.name, **topic.settings} for topic in TOPICS]
    guards = {
        LOGIN: {
            "type": "jwt",
            "issuer": ISSUER_NAME,
            "audience": AUDIENCE,
            "keys": f"http://{login_address}/jwks",
        },
        SESSION: {"type": "http", "url": f"http://{login_address}/whoami", "cache": "1s"},
    }
    return build_config(
        servers,
        topics,
        build_routes(),
        guards=guards,
        catalogs={REGISTRY: {"type": "schema-registry", "url": [f"http://{registry_address}"]}},
        sidecar=group.build_section(),
        listen={"forwarded": ["127.0.0.1"], "drainTimeout": "2s"},
    )


async def _create_writers(world: World, stack: AsyncExitStack) -> None:
    for topic in TOPICS:
        world.partitions[topic.name] = [
            TopicPartition(topic.name, number) for number in range(len(topic.replicas))
        ]
    any_key, own_key = choose_key(world.random), choose_own_key(world.random)
    for name, rate in RATES.items():
        world.writers[name] = TopicWriter(
            name,
            world.servers,
            world.log,
            world.partitions[name],
            rate,
            keys=own_key if name == PRICES else any_key,
            tombstone_share=0.1 if name == PRICES else 0.0,
            codec=world.codec if name == TYPED else None,
        )
    world.writers["plain"] = TopicWriter(
        "plain",
        world.servers,
        world.log,
        world.partitions[LEDGER],
        PLAIN_RATE,
        keys=any_key,
        is_plain=True,
    )
    for writer in world.writers.values():
        stack.push_async_callback(writer.close)
    world.transactional = TransactionalWriter(
        world.servers, world.log, world.partitions[LEDGER], TRANSACTIONAL_RATE
    )
    stack.push_async_callback(world.transactional.stop)


async def _create_clients(
    world: World, count: int, issuer: TokenIssuer, stack: AsyncExitStack
) -> None:
    http: httpx.AsyncClient | None = None
    streams_left = 0
    for plan in plan_clients(count):
        if plan.wire is Wire.HTTP2 and world.front is not None:
            if not streams_left:
                http = await stack.enter_async_context(world.front.create_http_client())
                streams_left = STREAMS_OF_A_BROWSER
            streams_left -= 1
        headers = {}
        if plan.view.path == "/mine":
            # Valid also while the clock of a gateway is ahead.
            token = issuer.issue_token(sub=plan.view.user, exp=time.time() + TOKEN_LIFETIME_S)
            headers["Authorization"] = f"Bearer {token}"
        elif plan.view.user:
            headers["Authorization"] = f"Session {plan.view.user}"
        client = create_client(plan, world.choose_server, http, headers)
        stack.push_async_callback(client.stop)
        world.clients.append(client)
