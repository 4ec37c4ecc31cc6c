"""Measure how long a client waits for its first block.

warm: the topic is being read. cold: no client of this gateway has asked for the topic before. cold
process: the gateway has just printed that it listens.

Without a leader of one partition a stream begins with the others. Beside it stands how long a gate
on all partitions would wait: what a topic takes whose only partition has no leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from support.brokers import KafkaCluster
from support.gateways import build_config, running_gateway_process
from support.waiting import wait_until

from ..client_pool import ClientPool
from ..feed import KafkaFeed, sending
from ..peers.gateway_peer import GREETING
from ..peers.peer import Peer, build_sse_request
from ..results import Cell

LOST_NODE = 1


@dataclass(frozen=True)
class Size:
    """topics: how many, of how many partitions each. warm_connects, starts: repeats. rate: records
    a second, of which a client waits for its first. is_leaderless: instead of all that."""

    topics: Sequence[tuple[int, int]] = ((30, 12), (3, 500))
    warm_connects: int = 200
    starts: int = 4
    rate: float = 500.0
    is_leaderless: bool = False


async def run(kafka: KafkaCluster, peer: Peer, size: Size) -> Cell:
    if size.is_leaderless:
        return await _run_leaderless(kafka, size)
    cell = Cell()
    topics = {
        count: [kafka.create_unique_topic(count) for _ in range(number)]
        for number, count in size.topics
    }
    config = build_config(
        kafka.bootstrap_servers, [name for each in topics.values() for name in each]
    )
    async with running_gateway_process(config) as gateway:
        for count, names in topics.items():
            of = f"{count} partitions"
            cell.add_times(f"cold topic, {of}", [[await _join(gateway.port, n) for n in names]])
            warm = [await _join(gateway.port, names[-1]) for _ in range(size.warm_connects)]
            cell.add_times(f"warm, {of}", [warm])
        count, (name, *_) = next(iter(topics.items()))
        feed = KafkaFeed(kafka.bootstrap_servers, name, count)
        async with sending(feed, size.rate):
            times = [
                await _join(gateway.port, name, waits_for_record=True)
                for _ in range(size.warm_connects)
            ]
        feed.close()
        cell.add_times(f"to the first record of {size.rate:g}/s", [times])
    for count, (name, *_) in topics.items():
        starts = []
        for _ in range(size.starts):
            async with running_gateway_process(config, ready=False) as gateway:
                starts.append(await _join(gateway.port, name))
        cell.add_times(f"cold process, {count} partitions", [starts])
    return cell


async def _run_leaderless(kafka: KafkaCluster, size: Size) -> Cell:
    cell, (number, count) = Cell(), size.topics[-1]
    replicas = [[2 + n % 2] for n in range(count - 1)] + [[LOST_NODE]]
    topics = [kafka.create_unique_topic(assignment=replicas) for _ in range(number)]
    gated = kafka.create_unique_topic(assignment=[[LOST_NODE]])
    assert kafka.local_kafka is not None
    try:
        config = build_config(kafka.bootstrap_servers, [*topics, gated])
        async with running_gateway_process(config) as gateway:
            kafka.local_kafka.get_node(LOST_NODE).kill()
            for topic in topics:
                is_leaderless = partial(_is_leaderless, kafka, topic, count - 1)
                await wait_until(is_leaderless, "the loss of the leader")
            of = f"{count} partitions, one without a leader"
            cell.add_times(f"cold topic, {of}", [[await _join(gateway.port, n) for n in topics]])
            warm = [await _join(gateway.port, topics[-1]) for _ in range(size.warm_connects)]
            cell.add_times(f"warm, {of}", [warm])
            gate = await _join(gateway.port, gated)
            cell.add_row("a gate on all of them", "begins after", "s", gate)
    finally:
        kafka.restore()
    return cell


def _is_leaderless(kafka: KafkaCluster, topic: str, partition: int) -> bool:
    found = kafka.admin.client.list_topics(topic, timeout=5).topics[topic].partitions
    return found[partition].leader == -1


async def _join(port: int, topic: str, *, waits_for_record: bool = False) -> float:
    """Seconds from connecting to the first block, or to the first record."""
    async with ClientPool() as pool:
        request = build_sse_request(f"/events/{topic}")
        await pool.open_clients(port, 1, lambda _: request, GREETING, timed_every=1)
        (client,) = pool.clients
        if waits_for_record and not await pool.wait_for_records(1):
            raise TimeoutError("a client that joined got nothing")
        ended = client.first_record_at if waits_for_record else client.opened_at
        return ended - client.requested_at
