"""Reading topics through the gateway's own cluster connection, whole and by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from support.until import PATIENCE

from gateway.core.log.record import Entry, TopicPartition
from gateway.kafka.client.cluster import Cluster, ClusterSettings
from gateway.kafka.client.connections import Role
from gateway.kafka.client.offsets import LATEST, Offset
from gateway.kafka.fetch.batches import decode
from gateway.kafka.fetch.fetch import Fetched, FetchSession, Want


@asynccontextmanager
async def cluster(bootstrap: Sequence[str], *topics: str, **options: Any) -> AsyncIterator[Cluster]:
    """A cluster that knows the leaders of `topics`, which answer for every partition.

    A leader of a topic just made is named before it serves it.
    """
    async with Cluster(ClusterSettings(bootstrap, **options)) as made:
        for topic in topics:
            made.metadata.watch(topic)
        async with asyncio.timeout(PATIENCE):
            await made.metadata.refresh("test")
            while not await _serving(made, topics):
                await made.metadata.refresh("test")
        made.requests.clear()
        yield made


async def _serving(of: Cluster, topics: Sequence[str]) -> bool:
    tps = [tp for topic in topics if of.topic(topic) for tp in wants(of, topic)]
    listed = await of.list_offsets(dict.fromkeys(tps, LATEST))
    return all(isinstance(offset, Offset) for offset in listed.values())


def wants(
    of: Cluster, topic: str, offsets: Mapping[int, int] | None = None, **fields: Any
) -> dict[TopicPartition, Want]:
    """What to fetch of every partition with a leader, from `offsets` (0)."""
    known = of.topic(topic)
    assert known is not None
    return {
        TopicPartition(topic, index): Want(
            (offsets or {}).get(index, 0), each.leader_epoch, known.topic_id
        )._replace(**fields)
        for index, each in known.partitions.items()
    }


async def fetched(
    of: Cluster,
    asked: Mapping[TopicPartition, Want],
    *,
    session: FetchSession | None = None,
    **options: Any,
) -> dict[TopicPartition, Fetched]:
    """From the leaders, all at once for one node after the other; in a session, of one node."""
    answers: dict[TopicPartition, Fetched] = {}
    nodes: dict[int, dict[TopicPartition, Want]] = {}
    for tp, want in asked.items():
        leader = of.leader(tp)
        assert leader is not None, f"{tp} has no leader"
        nodes.setdefault(leader[0], {})[tp] = want
    for node, part in nodes.items():
        of_node = part if session is None else only(session, part)
        answers |= await of.fetch(node, Role.CATCHUP, of_node, **({"max_wait": 0.1} | options))
    return answers


def only(session: FetchSession, asked: Mapping[TopicPartition, Want]) -> FetchSession:
    """A session that wants exactly this from now on."""
    for tp in session.wants.keys() - asked.keys():
        session.forget(tp)
    for tp, want in asked.items():
        if session.wants.get(tp) != want:
            session.want(tp, want)
    return session


async def entries(of: Cluster, tp: TopicPartition, start: int, end: int) -> list[Entry]:
    """Everything from `start` until the position is `end`, over one session."""
    session, position, read = FetchSession(), start, list[Entry]()
    while position < end:
        asked = {tp: wants(of, tp.topic)[tp]._replace(offset=position)}
        answer = (await fetched(of, asked, session=session)).get(tp)
        if answer is None:
            continue
        assert answer.error_code == 0, f"{tp}: {answer}"
        decoded = decode(
            tp, answer.records, position, aborted=answer.aborted, end=answer.high_watermark
        )
        read += decoded.entries
        position = decoded.next_offset
    return read
