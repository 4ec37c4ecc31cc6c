"""What the bench runs: three brokers, two gateways of two workers, a proxy, writers and clients.

    gateways -> KafkaProxy -> brokers <- writers, the Spark job, admin, the oracle's reader
    clients -> gateways, half of them through a TcpProxy; those of HTTP/2 -> a proxy -> gateways
    gateways, as members of a reactive group -> its back end

Only the gateways reach the brokers through a proxy, so what is done to that network is felt by them
alone, and what is written is known.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
from confluent_kafka import KafkaException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from support.app_server import running_app
from support.backend import running_backend
from support.brokers import TEST_PROPERTIES, KafkaCluster
from support.gateways import GatewayProcess, build_config
from support.issuer import AUDIENCE, ISSUER_NAME, JwksApp, TokenIssuer
from support.kafka_proxy import KafkaProxy
from support.oracle import StreamOracle, read_records
from support.proxies import ALL_PROXIES, Nginx, Proxy, running_proxy
from support.registry import FakeRegistry
from support.requirements import is_installed
from support.stream_check import AckedRecord
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until
from support.workers import running_workers

from gateway.core.log.record import TopicPartition

from .clients import FaultClient, create_client
from .judge import Truth, describe_lack
from .machine import CLOCK_NODE, FakeClock, FaultyKafka, create_clock
from .reactive import PROTOCOLS, ReactiveGroup, list_lacking
from .spark_job import ROWS, SparkJob, count_lacking_rows
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
    describe_record,
    plan_clients,
)
from .writers import (
    SchemaCodec,
    TopicWriter,
    TransactionalWriter,
    WriterLog,
    choose_key,
    choose_own_key,
    decode_value,
)

GATEWAY_COUNT, WORKER_COUNT = 2, 2
CLOCK_GATEWAY = 1  # its number among them, if it has a clock of its own
STREAMS_OF_A_BROWSER = 10  # over one connection of HTTP/2
BEGIN_TIMEOUT_S = 120.0
JOB_LOG_LINES = 20
TOKEN_LIFETIME_S = 7 * 86_400.0
LAST_RECORDS = 20  # to each partition; there are seven keys and four lanes
BROKER_PROPERTIES = TEST_PROPERTIES | {
    # A transaction that nobody ends is aborted soon after its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
# Records a second. What can lose records has one writer that knows every outcome.
RATES: Mapping[str, float] = {
    LEDGER: 20.0, SOLO: 6.0, TRIMMED: 20.0, VOLATILE: 8.0, UNCLEAN: 8.0, PRICES: 15.0,
    TYPED: 6.0,
}  # fmt: skip
WHOLE_TOPICS = (LEDGER, SOLO, TYPED)  # nothing of these is ever deleted
PLAIN_RATE = TRANSACTIONAL_RATE = 10.0


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


@dataclass
class World:
    """All that runs during a schedule; created by `running_world`, which ends it.

    Attributes:
        kafka: The brokers.
        cluster: The same, with an admin client.
        broker_proxy: Between the gateways and the brokers.
        gateways: The gateways.
        client_proxies: One in front of each gateway, for half of the connections.
        front: A proxy in front of all gateways; None where none is installed.
        clock: The wall clock of one gateway; None if it has the machine's.
        job: The Spark job; None if the world has none.
        login_proxy: In front of the issuer of tokens and of the application that knows sessions.
        registry_proxy: In front of the schema registry.
        group: The reactive group that all workers are members of, and its back end.
        codec: Of the topic with schemas; it can begin to use one that is not known yet.
        log: What was written.
        writers: The writer of each topic, and the plain one.
        transactional: The writer of transactions.
        clients: The clients, by their numbers.
    """

    kafka: FaultyKafka
    cluster: KafkaCluster
    broker_proxy: KafkaProxy
    gateways: Sequence[GatewayProcess]
    client_proxies: Sequence[TcpProxy]
    front: Proxy | None
    clock: FakeClock | None
    job: SparkJob | None
    login_proxy: TcpProxy
    registry_proxy: TcpProxy
    group: ReactiveGroup
    codec: SchemaCodec
    oracle: StreamOracle
    log: WriterLog
    random: Random
    writers: dict[str, TopicWriter] = field(default_factory=dict)
    transactional: TransactionalWriter | None = None
    clients: list[FaultClient] = field(default_factory=list)
    partitions: dict[str, list[TopicPartition]] = field(default_factory=dict)

    @property
    def servers(self) -> str:
        """Return the bootstrap servers, not through the proxy."""
        return self.cluster.bootstrap_servers

    def choose_server(self) -> str:
        """Return host and port of a gateway, directly or through its proxy."""
        number = self.random.randrange(len(self.gateways))
        if self.random.random() < 0.5:
            return self.client_proxies[number].address
        return f"127.0.0.1:{self.gateways[number].port}"

    def list_clients(self, *topics: str) -> list[FaultClient]:
        """Return the clients of these topics that have begun."""
        return [
            client
            for client in self.clients
            if client.log.connections and client.log.plan.view.topic in topics
        ]

    def add_partition(self, tp: TopicPartition) -> None:
        """Write to a partition that was added, too."""
        self.partitions[tp.topic].append(tp)
        for writer in (*self.writers.values(), self.transactional):
            if writer is not None and writer.partitions[0].topic == tp.topic:
                writer.partitions.append(tp)

    async def start_clients(self, *, late: bool) -> None:
        """Start those that begin late, or the others, and wait until they have begun."""
        starting = [each for each in self.clients if each.log.plan.view.begins_late is late]
        for client in starting:
            await client.start()
            await asyncio.sleep(0.005)
        if late:
            return  # some fault may be in effect
        await wait_until(
            lambda: all(client.log.has_begun for client in starting),
            lambda: next(
                f"client {client.log.plan} has not begun: {client.describe_state()}"
                for client in starting
                if not client.log.has_begun
            ),
            BEGIN_TIMEOUT_S,
            0.05,
        )

    def start_writers(self) -> None:
        """Begin to write to every topic."""
        assert self.transactional is not None
        self.transactional.start()
        for writer in self.writers.values():
            writer.start()

    async def stop_writers(self) -> None:
        """End all writers, once every outcome is known."""
        if self.transactional is not None:
            await self.transactional.stop()
        await asyncio.gather(*(each.stop() for each in self.writers.values() if each.is_running))

    async def write_last_records(self) -> None:
        """Write some more to every partition, so that every view has some of them."""
        for name in RATES:
            writer = self.writers[name]
            writer.start(is_writing=False)
            for tp in writer.partitions:
                writer.write_records(tp, LAST_RECORDS)
            await writer.stop()

    async def read_truth(self) -> Truth:
        """Read all topics, and return what clients must have got. Nothing may be written now."""
        log_starts: dict[TopicPartition, int] = {}
        found: list[AckedRecord] = []
        for topic, partitions in self.partitions.items():
            found += await self.read_topic(topic, is_whole=topic in WHOLE_TOPICS)
            for tp in partitions:
                log_starts[tp] = await asyncio.to_thread(
                    self.cluster.admin.get_log_start_offset, topic, tp.partition
                )
        return Truth(self.oracle, self.partitions, log_starts, found, WHOLE_TOPICS)

    async def read_topic(self, topic: str, *, is_whole: bool = False) -> list[AckedRecord]:
        """Tell the oracle of all records that a topic has now, and return them.

        Args:
            topic: The topic.
            is_whole: Whether the log has all that was ever committed: what is not in it now was
                not written.
        """
        found = await read_records(self.servers, topic, timeout_s=120)
        if topic == TYPED:
            found = [each._replace(value=decode_value(each.value or b"")) for each in found]
        known = {(each.tp, each.offset) for each in self.oracle.list_acked()}
        self.oracle.add_acked(each for each in found if (each.tp, each.offset) not in known)
        if is_whole:
            here = {each.value for each in found}
            missing = {
                each.value
                for each in self.log.entries
                if each.tp.topic == topic and each.outcome == "uncertain" and each.value is not None
            } - here
            self.oracle.discard_uncertain(value for value in missing if value is not None)
        return found

    async def wait_until_complete(self, truth: Truth, timeout_s: float) -> list[FaultClient]:
        """Wait until every client has all; return those that lack something at the end."""
        behind = list(self.clients)
        deadline = time.monotonic() + timeout_s
        while behind and time.monotonic() < deadline:
            behind = [client for client in behind if describe_lack(client.log, truth)]
            await asyncio.sleep(0.2)
        return behind

    async def wait_until_group_has_all(self, truth: Truth, timeout_s: float) -> str:
        """Wait until the group's back end has got all; return what it lacks at the end."""
        deadline = time.monotonic() + timeout_s
        while lacking := list_lacking(await asyncio.to_thread(self.group.list_deliveries), truth):
            if time.monotonic() > deadline:
                return f"{len(lacking)} records, such as {describe_record(lacking[0])}"
            await asyncio.sleep(0.5)
        return ""

    async def read_rows(self) -> list[AckedRecord]:
        """Return the committed rows that the Spark job has written; none if there is no job."""
        if self.job is None:
            return []
        return await read_records(self.servers, ROWS.name, timeout_s=120)

    async def wait_until_job_writes(self) -> None:
        """Wait until the Spark job has written more rows. TimeoutError with the end of its log."""
        count = len(await self.read_rows())
        deadline = time.monotonic() + BEGIN_TIMEOUT_S
        while self.job is not None and len(await self.read_rows()) <= count:
            self.job.start()
            if time.monotonic() > deadline:
                log = self.job.read_logs()[-JOB_LOG_LINES:]
                raise TimeoutError("\n".join(["the Spark job writes nothing", *log]))

    async def wait_until_job_has_all(self, truth: Truth, timeout_s: float) -> str:
        """Wait until the Spark job has written all rows; return what it lacks at the end."""
        if self.job is None:
            return ""
        deadline = time.monotonic() + timeout_s
        while lacking := count_lacking_rows(await self.read_rows(), truth):
            self.job.start()
            if time.monotonic() > deadline:
                return f"{lacking} rows"
            await asyncio.sleep(0.5)
        return ""

    async def heal(self) -> None:
        """Lift what may be left of any fault."""
        self.group.backend.set_orders()
        await self.broker_proxy.restore_all()
        for proxy in (*self.client_proxies, self.login_proxy, self.registry_proxy):
            await proxy.restore()
        await asyncio.to_thread(self.kafka.restore)
        for gateway in self.gateways:
            if not gateway.is_alive:
                await gateway.start()
        await asyncio.to_thread(self.cluster.admin.wait_in_sync, 120)

    def read_logs(self) -> list[str]:
        """Return all lines of the gateways' and the job's logs, with whose they are."""
        lines = [
            f"gateway {number}: {line}"
            for number, gateway in enumerate(self.gateways, 1)
            for line in gateway.log.splitlines()
        ]
        return lines + [f"job: {line}" for line in (self.job.read_logs() if self.job else ())]


def list_fronts() -> list[type[Proxy]]:
    """Return the kinds of proxies that this machine has."""
    return [kind for kind in ALL_PROXIES if is_installed(kind.NAME)]


@asynccontextmanager
async def running_world(
    client_count: int,
    random: Random,
    *,
    has_small_disk: bool = False,
    has_gateway_clock: bool = False,
    has_broker_clock: bool = False,
    has_job: bool = False,
    front_kind: type[Proxy] | None = Nginx,
) -> AsyncIterator[World]:
    """Start everything but the clients and writers, which are created.

    Args:
        client_count: How many clients there are.
        random: What their choices are drawn from.
        has_small_disk: Whether a broker has a disk that can be filled, if that is possible.
        has_gateway_clock: Whether a gateway has a clock that can be stepped, if that is possible.
        has_broker_clock: Whether a broker has one, if that is possible.
        has_job: Whether there is a Spark job.
        front_kind: The proxy in front of the gateways; None for none.
    """
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        broker_proxy = await stack.enter_async_context(KafkaProxy())
        await broker_proxy.listen_for([1, 2, 3])
        kafka = FaultyKafka(
            has_small_disk=has_small_disk,
            clock=create_clock(folder / "broker-clock") if has_broker_clock else None,
            properties=BROKER_PROPERTIES,
            fast_failover=True,
            fast_retention=True,
            advertised=broker_proxy.get_advertised,
        )
        await stack.enter_async_context(kafka)
        for node in kafka.nodes:
            broker_proxy.set_target(node.id, "127.0.0.1", node.ports["VIA"])
        cluster = KafkaCluster(kafka.bootstrap, kafka, has_fast_retention=True)
        for topic in (*TOPICS, ROWS, Topic(CLOCKED, [[CLOCK_NODE]], CLOCKED_CONFIGS)):
            await create_topic(cluster, topic)
        job = None
        if has_job:
            job = await asyncio.to_thread(SparkJob, cluster.bootstrap_servers, folder)
            stack.callback(job.kill)
            await asyncio.to_thread(job.start)
        issuer = TokenIssuer("ES256")
        login_url = await stack.enter_async_context(running_app(LoginApp(issuer)))
        login_proxy = TcpProxy("127.0.0.1", int(login_url.rpartition(":")[2]))
        await stack.enter_async_context(login_proxy)
        registry = FakeRegistry()
        registry_url = await stack.enter_async_context(running_app(registry.app))
        registry_proxy = TcpProxy("127.0.0.1", int(registry_url.rpartition(":")[2]))
        await stack.enter_async_context(registry_proxy)
        backend = await stack.enter_async_context(running_backend())
        group = ReactiveGroup(backend, random.choice(PROTOCOLS))
        config = build_bench_config(
            broker_proxy.bootstrap, login_proxy.address, registry_proxy.address, group
        )
        clock = create_clock(folder / "clock") if has_gateway_clock else None
        gateways = []
        for number in range(GATEWAY_COUNT):
            own = number == CLOCK_GATEWAY and clock
            options = {"environment": own.environment, "is_forked": False} if own else {}
            gateway = running_workers(config, WORKER_COUNT, **options)
            gateways.append(await stack.enter_async_context(gateway))
        client_proxies = [
            await stack.enter_async_context(TcpProxy("127.0.0.1", gateway.port))
            for gateway in gateways
        ]
        front = None
        if front_kind is not None:
            ports = [gateway.port for gateway in gateways]
            front = await stack.enter_async_context(
                running_proxy(front_kind, folder / "front", *ports)
            )
        oracle = StreamOracle()
        log = WriterLog(oracle, random)
        world = World(
            kafka, cluster, broker_proxy, gateways, client_proxies, front, clock, job, login_proxy,
            registry_proxy, group, SchemaCodec(registry, f"{TYPED}-value"), oracle, log, random,
        )  # fmt: skip
        await _create_writers(world, stack)
        await _create_clients(world, client_count, issuer, stack)
        yield world


async def create_topic(cluster: KafkaCluster, topic: Topic) -> None:
    """Create a topic, however busy the brokers are, and wait until it has all leaders."""
    deadline = time.monotonic() + BEGIN_TIMEOUT_S
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
