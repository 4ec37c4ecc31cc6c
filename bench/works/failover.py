"""Kill or freeze one of three brokers, and measure which partitions are silent for how long.

Node 1 leads a third of the partitions. It follows none: writes to the others would wait for it
until Kafka removes it from their in-sync replicas, and that pause is Kafka's, not the gateway's.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from support.brokers import KafkaCluster
from support.gateways import build_config, running_gateway_process
from support.waiting import wait_until

from ..client_pool import ClientPool
from ..feed import KafkaFeed, sending
from ..peers.gateway_peer import GREETING
from ..peers.peer import Peer, build_sse_request
from ..results import Cell

FAILED_NODE = 1
LEADER_NODES = [1, 2, 3] * 4
FOLLOWERS = {1: 2, 2: 3, 3: 2}
LED = {p for p, node in enumerate(LEADER_NODES) if node == FAILED_NODE}
OTHERS = set(range(len(LEADER_NODES))) - LED
RECOVERY_TIMEOUT_S = 60.0
NOTICE_S = 0.1  # in which acknowledgements from before the failure are noticed at the latest
# A producer that gives a silent broker up at once, so that the pause is not its own.
IMPATIENT: dict[str, Any] = {"socket.timeout.ms": 1000, "reconnect.backoff.max.ms": 200}


@dataclass(frozen=True)
class Size:
    """rate: records a second in all. quiet_s: of life before the failure."""

    rate: float = 240.0
    quiet_s: float = 2.0


async def run(kafka: KafkaCluster, peer: Peer, size: Size) -> Cell:
    cell = Cell()
    assert kafka.local_kafka is not None
    node = kafka.local_kafka.get_node(FAILED_NODE)
    for case, fail in (("killed leader", node.kill), ("frozen leader", node.freeze)):
        topic = kafka.create_unique_topic(assignment=[[n, FOLLOWERS[n]] for n in LEADER_NODES])
        servers, count = kafka.bootstrap_servers, len(LEADER_NODES)
        feed = KafkaFeed(servers, topic, count, keeps_acks=True, **IMPATIENT)
        request = build_sse_request(f"/events/{topic}")
        async with (
            running_gateway_process(build_config(servers, [topic])) as gateway,
            ClientPool() as pool,
        ):
            await pool.open_clients(
                gateway.port, 1, lambda _, r=request: r, GREETING, timed_every=1
            )
            try:
                async with sending(feed, size.rate):
                    await _wait_for_partitions(pool, 0.0, LED | OTHERS)
                    await asyncio.sleep(size.quiet_s)
                    began = time.monotonic()
                    await asyncio.to_thread(fail)
                    failed = time.monotonic() + NOTICE_S
                    await wait_until(lambda f=feed, t=failed: set(_find_first_acks(f, t)) >= LED)
                    acked = _find_first_acks(feed, failed)
                    await _wait_for_partitions(pool, max(acked[p] for p in LED), LED)
                    await asyncio.sleep(0.5)
            finally:
                await asyncio.to_thread(kafka.restore)
                feed.close()
        arrivals = list_arrivals(pool)
        firsts = {p: min(at for at in arrivals[p] if at >= failed) for p in LED}
        later = max(0.0, *(firsts[p] - acked[p] for p in LED))
        silent, quiet = (find_longest_silence(arrivals, some, began) for some in (LED, OTHERS))
        cell.add_row(case, "its partitions silent", "s", silent, n=len(LED))
        cell.add_row(case, "the others silent", "s", quiet, n=len(OTHERS))
        cell.add_row(case, "after a producer could write", "s", later, n=len(LED))
    return cell


async def _wait_for_partitions(pool: ClientPool, since: float, partitions: set[int]) -> None:
    """Until records of all of them have come that came since then."""

    def have_come() -> bool:
        arrivals = list_arrivals(pool)
        return all(arrivals[p][-1:] > [since] for p in partitions)

    await wait_until(have_come, "records of every partition", RECOVERY_TIMEOUT_S)


def list_arrivals(pool: ClientPool) -> Mapping[int, list[float]]:
    """When records came, by partition: a feed gives each record to the next one."""
    arrivals = defaultdict[int, list[float]](list)
    for at, found in pool.arrivals:
        for _, number in found:
            arrivals[int(number) % len(LEADER_NODES)].append(at)
    return arrivals


def _find_first_acks(feed: KafkaFeed, since: float) -> Mapping[int, float]:
    """When the first record of each partition was acknowledged since then."""
    acks = defaultdict[int, list[float]](list)
    for number, at in list(feed.acked_at.items()):
        if at >= since:
            acks[number % len(LEADER_NODES)].append(at)
    return {partition: min(times) for partition, times in acks.items()}


def find_longest_silence(
    arrivals: Mapping[int, Sequence[float]], partitions: Iterable[int], since: float
) -> float:
    """The longest between two arrivals of a partition, from the last one before `since` on."""
    gaps = (b - a for p in partitions for a, b in pairwise(arrivals[p]) if b >= since)
    return max(gaps, default=0.0)
