"""Reading topics through the gateway's own cluster connection, whole and by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.record_sets import decode_record_set
from support.waiting import WAIT_TIMEOUT_S

from gateway.core.log.record import Entry, TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings, FetchLimits
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.client.offsets import LATEST, OffsetAndTimestamp
from gateway.kafka.protocol.fetch_messages import FetchedPartition, FetchSession, FetchTarget


@asynccontextmanager
async def open_cluster(
    bootstrap: Sequence[str], *topics: str, **options: Any
) -> AsyncIterator[Cluster]:
    """A cluster that knows the leaders of `topics`, which answer for every partition.

    A leader of a topic just made is named before it serves it.
    """
    async with Cluster(ClusterSettings(bootstrap, **options)) as made:
        for topic in topics:
            made.metadata.watch(topic)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await made.metadata.refresh("test")
            while not await _is_served(made, topics):
                await made.metadata.refresh("test")
        made.request_counts.clear()
        yield made


async def _is_served(cluster: Cluster, topics: Sequence[str]) -> bool:
    tps = [
        tp for topic in topics if cluster.get_topic(topic) for tp in build_targets(cluster, topic)
    ]
    listed = await cluster.list_offsets(dict.fromkeys(tps, LATEST))
    return all(isinstance(offset, OffsetAndTimestamp) for offset in listed.values())


def build_targets(
    cluster: Cluster, topic: str, offsets: Mapping[int, int] | None = None, **fields: Any
) -> dict[TopicPartition, FetchTarget]:
    """What to fetch of every partition with a leader, from `offsets` (0)."""
    known = cluster.get_topic(topic)
    assert known is not None
    return {
        TopicPartition(topic, index): FetchTarget(
            (offsets or {}).get(index, 0), each.leader_epoch, known.topic_id
        )._replace(**fields)
        for index, each in known.partitions.items()
    }


async def fetch_from_leaders(
    cluster: Cluster,
    targets: Mapping[TopicPartition, FetchTarget],
    *,
    session: FetchSession | None = None,
    **options: Any,
) -> dict[TopicPartition, FetchedPartition]:
    """From the leaders, all at once for one node after the other; in a session, of one node."""
    answers: dict[TopicPartition, FetchedPartition] = {}
    nodes: dict[int, dict[TopicPartition, FetchTarget]] = {}
    for tp, want in targets.items():
        leader = cluster.leader_for_partition(tp)
        assert leader is not None, f"{tp} has no leader"
        nodes.setdefault(leader[0], {})[tp] = want
    for node, part in nodes.items():
        of_node = part if session is None else select_targets(session, part)
        answers |= await cluster.fetch(
            node, ConnectionRole.CATCHUP, of_node, FetchLimits(**({"max_wait": 0.1} | options))
        )
    return answers


def select_targets(
    session: FetchSession, targets: Mapping[TopicPartition, FetchTarget]
) -> FetchSession:
    """A session that wants exactly this from now on."""
    for tp in session.targets.keys() - targets.keys():
        session.forget(tp)
    for tp, want in targets.items():
        if session.targets.get(tp) != want:
            session.set_target(tp, want)
    return session


async def read_entries(cluster: Cluster, tp: TopicPartition, start: int, end: int) -> list[Entry]:
    """Everything from `start` until the position is `end`, over one session."""
    session, position, read = FetchSession(), start, list[Entry]()
    while position < end:
        asked = {tp: build_targets(cluster, tp.topic)[tp]._replace(offset=position)}
        answer = (await fetch_from_leaders(cluster, asked, session=session)).get(tp)
        if answer is None:
            continue
        assert answer.error_code == 0, f"{tp}: {answer}"
        decoded = decode_record_set(
            tp,
            answer.records,
            position,
            aborted=answer.aborted_transactions,
            high_watermark=answer.high_watermark,
        )
        read += decoded.entries
        position = decoded.next_offset
    return read
