"""Runs a soak: brokers, a gateway of two workers, clients that come and go, and faults."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import cast

import confluent_kafka
import httpx
import psutil
from support.brokers import FAST_FAILOVER_PROPERTIES, TEST_PROPERTIES, KafkaCluster
from support.gateways import GatewayProcess, build_config
from support.kafka_proxy import KafkaProxy
from support.local_kafka import RiggedKafka
from support.tasks import running_task
from support.tcp_proxy import TcpProxy
from support.waiting import wait_until
from support.workers import count_connections, find_workers, running_workers

from bench.records import build_value
from bench.results import quantile

from ..results import FaultResult
from ..run import ACTIONS
from ..schedule import KINDS_BY_NAME, PlannedFault
from ..startup import WORKER_COUNT
from ..views import LEDGER
from ..world import World
from .census import Census, build_environment, list_leftovers, take_census
from .clients import OWN_PATH, SHARED_PATH, Visitors
from .result import Sample, SoakResult, WorkerSample

NEWS, NEWS_RATE = "news", 10.0  # what is shared, and its records a second
PARTITIONS = 6
SEND_INTERVAL_S = 0.005
PROXY_SHARE = 0.05  # of the clients come through a proxy, where faults of their network happen
MEAN_STAY_S = 60.0
RECOVERY_S = 10.0  # after a fault
END_TIMEOUT_S = 120.0
# A topic is read, and what belongs to it kept, for a minute after its last client left.
LEFTOVER_TIMEOUT_S = 75.0
# The first one ends a process: the fit of its memory begins anew.
FAULTS = (
    "worker-killed", "broker-killed", "brokers-reset", "gateway-reloaded", "clients-cut",
    "brokers-half-open", "clients-stalled", "broker-frozen", "clients-half-open",
)  # fmt: skip
_METRIC_PATTERN = re.compile(r"^(gateway_clients|gateway_memory_bytes)(?:\{.*\})? (\S+)$", re.M)


@dataclass(frozen=True)
class SoakOptions:
    """How a soak is run.

    Attributes:
        minutes: How long clients come and go.
        clients: How many there are.
        rate: Records a second to clients with a key of their own.
        seed: What all choices are drawn from.
        nodes: How many brokers there are.
        faults: The kinds of faults, which come one after the other, and again from the first.
        fault_interval_s: Seconds from one fault to the next.
        fault_s: How long each is in effect.
        sample_s: The length of a window.
        mean_stay_s: How long a client stays on average.
    """

    minutes: float = 30.0
    clients: int = 5000
    rate: float = 5000.0
    seed: int = 1
    nodes: int = 3
    faults: Sequence[str] = FAULTS
    fault_interval_s: float = 60.0
    fault_s: float = 5.0
    sample_s: float = 5.0
    mean_stay_s: float = MEAN_STAY_S

    @property
    def duration_s(self) -> float:
        """Return how long clients come and go."""
        return 60 * self.minutes

    @property
    def warm_up_s(self) -> float:
        """Return how long no verdict looks at what is found."""
        return self.duration_s / 3


@dataclass
class SoakWorld:
    """What faults act on; it has of `World` what those of `FAULTS` need."""

    kafka: RiggedKafka
    cluster: KafkaCluster
    broker_proxy: KafkaProxy
    gateways: Sequence[GatewayProcess]
    client_proxies: Sequence[TcpProxy]
    directory: Path

    @property
    def gateway(self) -> GatewayProcess:
        """Return the only gateway."""
        return self.gateways[0]

    def list_workers(self) -> list[psutil.Process]:
        """Return the processes of the workers, by their numbers."""
        return [process for _, process in sorted(find_workers(self.gateway).items())]


@asynccontextmanager
async def running_soak_world(options: SoakOptions) -> AsyncIterator[SoakWorld]:
    """Start brokers, proxies and the gateway."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        broker_proxy = await stack.enter_async_context(KafkaProxy())
        await broker_proxy.listen_for(range(1, options.nodes + 1))
        kafka = RiggedKafka(
            options.nodes,
            properties=TEST_PROPERTIES | (FAST_FAILOVER_PROPERTIES if options.nodes > 1 else {}),
            advertised=broker_proxy.get_advertised,
        )
        await stack.enter_async_context(kafka)
        for node in kafka.nodes:
            broker_proxy.set_target(node.id, "127.0.0.1", node.ports["VIA"])
        cluster = KafkaCluster(kafka.bootstrap, kafka)
        for topic in (LEDGER, NEWS):
            # What is old is deleted: a soak must not fill the disk.
            configs = {"retention.bytes": str(32 << 20), "segment.bytes": str(16 << 20)}
            cluster.create_topic(topic, PARTITIONS, min(3, options.nodes), configs)
        gateway = await stack.enter_async_context(
            running_workers(
                _build_config(broker_proxy.bootstrap),
                WORKER_COUNT,
                environment=build_environment(directory),
            )
        )
        proxy = await stack.enter_async_context(TcpProxy("127.0.0.1", gateway.port))
        yield SoakWorld(kafka, cluster, broker_proxy, [gateway], [proxy], directory)


def _build_config(servers: str) -> dict[str, object]:
    routes = [
        {
            "when": [{"path": f"{OWN_PATH}/{{key}}"}],
            "with": {"topic": LEDGER, "filters": [{"key": "${params.key}"}], "format": "value"},
        },
        {"when": [{"path": SHARED_PATH}], "with": {"topic": NEWS, "format": "value"}},
    ]
    return build_config(
        servers, [LEDGER, NEWS], routes, telemetry={"metrics": {"prometheus": "/metrics"}}
    )


class _Sender:
    """Sends records to keys in turn, numbered by key, and to all, until it is stopped."""

    def __init__(self, servers: str, key_count: int, rate: float) -> None:
        self.sent_count = 0
        self._key_count = key_count
        self._rate = rate
        # Every record comes once, in the order of its number, however long brokers are away.
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
                "message.timeout.ms": 600_000,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._task = asyncio.create_task(self._send_forever())

    async def stop(self) -> None:
        """Stop, and return when all is acknowledged."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._producer.flush, END_TIMEOUT_S)

    async def _send_forever(self) -> None:
        began, news_count = time.monotonic(), 0
        while True:
            elapsed = time.monotonic() - began
            while self.sent_count < elapsed * self._rate:
                round_, key = divmod(self.sent_count, self._key_count)
                self._producer.produce(LEDGER, build_value(round_), key=b"%d" % key)
                self.sent_count += 1
            while news_count < elapsed * NEWS_RATE:
                self._producer.produce(NEWS, build_value(news_count))
                news_count += 1
            self._producer.poll(0)
            await asyncio.sleep(SEND_INTERVAL_S)


async def run_soak(options: SoakOptions, on_progress: Callable[[float, str], None]) -> SoakResult:
    """Run a soak.

    Args:
        options: How.
        on_progress: Called after each window with the time in seconds and a line about it.
    """
    # None of its connections stays, since no connection may be left at the end.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with (
        running_soak_world(options) as world,
        httpx.AsyncClient(trust_env=False, limits=limits) as http,
    ):
        return await _Soak(world, options, http, on_progress).run()


class _Soak:
    """One soak in its world."""

    def __init__(
        self,
        world: SoakWorld,
        options: SoakOptions,
        http: httpx.AsyncClient,
        on_progress: Callable[[float, str], None],
    ) -> None:
        self._world, self._options, self._http = world, options, http
        self._on_progress = on_progress
        self._random = Random(options.seed)
        self._visitors = Visitors(
            options.clients, self._random, options.mean_stay_s, self._choose_port
        )
        self._result = SoakResult(
            options.minutes, options.clients, options.rate, options.seed, options.warm_up_s
        )
        self._began_at = time.monotonic()
        self._disturbed_until_s = 0.0

    async def run(self) -> SoakResult:
        """Look at the workers, have everything come and go, and look again."""
        sender = _Sender(
            self._world.cluster.bootstrap_servers, self._options.clients, self._options.rate
        )
        try:
            await self._visit_first()
            await self._reload_first()
            before = await self._take_censuses()
            self._began_at = time.monotonic()
            self._visitors.start(within_s=min(30.0, self._options.duration_s / 6))
            try:
                await self._play()
            finally:
                await self._visitors.stop()
            await self._compare_censuses(before)
        finally:
            await sender.stop()
        self._result.findings = self._visitors.findings
        self._result.visits, self._result.sent = self._visitors.visit_count, sender.sent_count
        return self._result

    async def _visit_first(self) -> None:
        """Have one client of each kind at each worker, so that what is made once is made."""
        kinds = {
            (each.is_own, each.is_websocket): each for each in self._visitors.visitors
        }.values()
        for _ in range(4 * WORKER_COUNT):  # the kernel chooses the worker
            for visitor in kinds:
                await self._visitors.visit_once(visitor, stay_s=0.2)
        await self._wait_until_left()
        for visitor in kinds:
            visitor.position, visitor.next_number = b"", None
        self._visitors.take_latencies()

    async def _reload_first(self) -> None:
        """Reload the gateway: objects of its start are not in a census, those of a reload are."""
        plan = PlannedFault(KINDS_BY_NAME["gateway-reloaded"], 0.0, 0.0, 0)
        async with self._begin_fault(plan):
            pass
        gateway = self._world.gateway
        await wait_until(
            lambda: gateway.log.count("configuration reloaded") == 2, "the old configuration"
        )

    async def _play(self) -> None:
        async with running_task(self._play_faults()) as faults:
            while (at_s := self._get_time()) < self._options.duration_s:
                left_s = self._options.duration_s - at_s
                await asyncio.sleep(min(self._options.sample_s, left_s))
                sample = await self._take_sample()
                self._result.samples.append(sample)
                self._on_progress(sample.at_s, _describe(sample))
            await faults

    async def _play_faults(self) -> None:
        options, number = self._options, 0
        at_s = options.fault_interval_s / 2
        while at_s + options.fault_s < options.duration_s and options.faults:
            await asyncio.sleep(max(0.0, at_s - self._get_time()))
            name = options.faults[number % len(options.faults)]
            number += 1
            plan = PlannedFault(
                KINDS_BY_NAME[name], at_s, options.fault_s, self._random.getrandbits(32)
            )
            await self._play_fault(plan)
            at_s += options.fault_interval_s

    async def _play_fault(self, plan: PlannedFault) -> None:
        told = FaultResult(plan.kind.name, plan.at_s, self._get_time())
        self._result.faults.append(told)
        self._disturbed_until_s = float("inf")
        try:
            await self._count_tasks()
            async with self._begin_fault(plan) as effect:
                told.effect, told.effect_at, told.status = effect, self._get_time(), "effective"
                await asyncio.sleep(plan.duration_s)
        except Exception as failure:
            told.status, told.effect = "failed", f"{told.effect} {failure!r}".strip()
        told.healed_at = self._get_time()
        self._disturbed_until_s = told.healed_at + RECOVERY_S

    def _begin_fault(self, plan: PlannedFault) -> AbstractAsyncContextManager[str]:
        # Duck typing: it has what these faults need.
        return ACTIONS[plan.kind.name](cast("World", self._world), plan)

    async def _count_tasks(self) -> None:
        """Count tasks and timers of each worker into the last sample; it holds them up."""
        if not self._result.samples:
            return
        counts = await self._take_censuses(is_collected=False)
        for worker in self._result.samples[-1].workers:
            if census := counts.get(worker.pid):
                worker.tasks, worker.timers = census.task_count, census.timer_count

    async def _take_sample(self) -> Sample:
        latencies, now = self._visitors.take_latencies(), self._get_time()
        sample = Sample(
            round(now, 1),
            self._visitors.open_count,
            await self._read_metrics(),
            records=len(latencies),
            is_quiet=now - self._options.sample_s > self._disturbed_until_s,
        )
        if latencies:
            sample.p50_s, sample.p99_s = (round(quantile(latencies, q), 5) for q in (0.5, 0.99))
        for process in self._world.list_workers():
            with contextlib.suppress(psutil.Error):  # it has just been killed
                pss = process.memory_full_info().pss
                sample.workers.append(WorkerSample(process.pid, pss, process.num_fds()))
        return sample

    async def _read_metrics(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        with contextlib.suppress(httpx.HTTPError):  # the worker that was asked was killed
            answer = await self._http.get(f"{self._world.gateway.base_url}/metrics")
            for name, value in _METRIC_PATTERN.findall(answer.text):
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums

    async def _take_censuses(self, *, is_collected: bool = True) -> dict[int, Census]:
        return {
            process.pid: await take_census(
                process,
                self._world.directory,
                self._world.gateway.port,
                is_collected=is_collected,
            )
            for process in self._world.list_workers()
        }

    async def _compare_censuses(self, before: dict[int, Census]) -> None:
        """Wait until nothing is left in the workers, and note what is in the end."""
        await self._wait_until_left()
        deadline = time.monotonic() + LEFTOVER_TIMEOUT_S
        while True:
            after = await self._take_censuses()
            self._result.leftovers = [
                f"{line}, of process {pid}"
                for pid, census in after.items()
                if pid in before
                for line in list_leftovers(before[pid], census)
            ]
            if not self._result.leftovers or time.monotonic() > deadline:
                return
            await asyncio.sleep(2.0)

    async def _wait_until_left(self) -> None:
        """Wait until no connection of a client is left in any worker."""
        await wait_until(
            lambda: not any(count_connections(self._world.gateway).values()),
            "the end of all connections",
            END_TIMEOUT_S,
        )

    def _choose_port(self) -> int:
        if self._random.random() < PROXY_SHARE:
            return int(self._world.client_proxies[0].address.rpartition(":")[2])
        return self._world.gateway.port

    def _get_time(self) -> float:
        return round(time.monotonic() - self._began_at, 2)


def _describe(sample: Sample) -> str:
    memory = " + ".join(f"{each.pss_bytes / 2**20:.1f}" for each in sample.workers)
    p50, p99 = sample.p50_s or 0.0, sample.p99_s or 0.0
    state = "" if sample.is_quiet else ", disturbed"
    return (
        f"{sample.clients} clients, {memory} MiB, {sample.records} records, "
        f"p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms{state}"
    )
