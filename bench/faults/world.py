"""What runs during a schedule, as the faults and the judgement see it; `startup` creates it.

    gateways -> KafkaProxy -> brokers <- writers, the Spark job, admin, the oracle's reader
    clients -> gateways, half of them through a TcpProxy; those of HTTP/2 -> a proxy -> gateways
    gateways, as members of a reactive group -> its back end

Only the gateways reach the brokers through a proxy, so what is done to that network is felt by them
alone, and what is written is known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from support.brokers import KafkaCluster
from support.gateways import GatewayProcess
from support.kafka_proxy import KafkaProxy
from support.oracle import StreamOracle, read_records
from support.proxies import Proxy
from support.stream_check import AckedRecord
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until

from gateway.core.log.record import TopicPartition

from .clients import FaultClient
from .judge import describe_lack
from .machine import FakeClock, FaultyKafka
from .reactive import ReactiveGroup, list_lacking
from .spark_job import ROWS, SparkJob, count_lacking_rows
from .truth import LogStart, Truth
from .views import LEDGER, SOLO, TYPED, describe_record
from .writers import SchemaCodec, TopicWriter, TransactionalWriter, WriterLog, decode_value

BEGIN_TIMEOUT_S = 120.0
JOB_LOG_LINES = 20
LAST_RECORDS = 20  # to each partition; there are seven keys and four lanes
WHOLE_TOPICS = (LEDGER, SOLO, TYPED)  # nothing of these is ever deleted


@dataclass
class World:
    """All that runs during a schedule; created by `startup.running_world`, which ends it.

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
        log_starts: Where partitions began whenever a fault looked.
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
    log_starts: list[LogStart] = field(default_factory=list)

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
        for topic in self.partitions:
            writer = self.writers[topic]
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
        return Truth(self.oracle, self.partitions, log_starts, found, WHOLE_TOPICS, self.log_starts)

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
