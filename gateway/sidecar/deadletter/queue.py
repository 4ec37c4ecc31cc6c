"""The dead letters of one group in one topic, and how far that group is with them.

How far it is, is what the group `<group>.dlq` has committed: not the group itself, whose members'
offsets nobody else may commit. Letters of other groups in the same topic are passed over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.core.log.record import Record, TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.fetch.piece import bounds, piece
from gateway.kafka.group.commits import Commits
from gateway.kafka.protocol.group_messages import Committed
from gateway.sidecar.reactive.letter import Letter, opened
from gateway.sidecar.reactive.written import ids_of

Points = Mapping[TopicPartition, int]

PATIENCE = 0.05  # seconds until partitions without news are asked again


class Found(NamedTuple):
    """A record of the topic, and the letter in it."""

    record: Record
    letter: Letter

    @property
    def origin(self) -> Record:
        """The record as it was."""
        letter = self.letter
        return Record(
            letter.origin, letter.offset, -1, letter.timestamp, letter.key, letter.value,
            letter.headers,
        )  # fmt: skip


class Queue:
    """topic: of the dead letters; it must be watched. ext: what its name ends in."""

    def __init__(self, cluster: Cluster, topic: str, group: str, ext: str) -> None:
        self.topic = topic
        self.group = group
        self.cursor = f"{group}{ext}"
        self._cluster = cluster
        self._ext = ext
        self._commits = Commits(cluster.coordinators, self.cursor)

    async def ranges(self) -> dict[TopicPartition, range]:
        """What the group is not through with: from there to the end as of now, where that is
        something. Raises KafkaError."""
        known = self._cluster.topic(self.topic)
        tps = [TopicPartition(self.topic, each) for each in (known.partitions if known else ())]
        logs = await bounds(self._cluster, tps)
        committed = await self._commits.committed(tps)
        found = {}
        for tp, log in logs.items():
            at = committed[tp].offset if tp in committed else log.start
            found[tp] = range(max(at if at <= log.stop else log.start, log.start), log.stop)
        return {tp: left for tp, left in sorted(found.items()) if left}

    async def letters(
        self, ranges: Mapping[TopicPartition, range], *, everybodys: bool = False
    ) -> AsyncIterator[tuple[Sequence[Found], Points]]:
        """Some of them at a time, and how far the group is with them behind it; no letter twice.

        Ends with the ranges, or at an open transaction. Raises KafkaError.
        """
        for tp, left in ranges.items():
            at = left.start
            while at < left.stop:
                got = await piece(self._cluster, tp, at)
                if got.next == at:
                    break
                at = got.next
                found = [self._opened(each) for each in got.records if each.offset < left.stop]
                yield [each for each in found if everybodys or self._ours(each)], {tp: at}

    async def some(
        self, most: int, size: int, within: float = 0.0, *, until: Points | None = None
    ) -> tuple[Sequence[Found], Points]:
        """At most so many, and bytes of keys and values (one at least), and how far the group is
        with them. Waits for some for `within` seconds. until: no further than there. Raises
        KafkaError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while True:
            found, points = await self._some(most, size, until)
            if found or loop.time() >= deadline:
                return found, points
            await asyncio.sleep(min(PATIENCE, max(0.0, deadline - loop.time())))

    async def _some(
        self, most: int, size: int, until: Points | None
    ) -> tuple[Sequence[Found], Points]:
        taken: list[Found] = []
        points: dict[TopicPartition, int] = {}
        ranges = await self.ranges()
        if until is not None:
            stops = {tp: min(left.stop, until.get(tp, 0)) for tp, left in ranges.items()}
            ranges = {tp: range(left.start, stops[tp]) for tp, left in ranges.items()}
        async for found, moved in self.letters(ranges):
            for each in found:
                size -= len(each.record.key or b"") + len(each.record.value or b"")
                if len(taken) >= most or (taken and size < 0):
                    return taken, points
                taken.append(each)
                points[each.record.tp] = each.record.next
            points |= moved
            if len(taken) >= most:
                break
        return taken, points

    async def commit(self, points: Points) -> None:
        """The next of each partition. Raises KafkaError."""
        known = self._cluster.topic(self.topic)
        wanted = {tp: Committed(offset) for tp, offset in points.items()}
        if wanted:
            await self._commits.commit(wanted, lambda topic: known.topic_id if known else None)

    def _ours(self, found: Found) -> bool:
        return found.letter.group in ("", self.group)

    def _opened(self, record: Record) -> Found:
        """What other programs have put there has come from the topic of that name."""
        letter = opened(record)
        if letter is None:
            origin = TopicPartition(self.topic.removesuffix(self._ext), record.tp.partition)
            letter = Letter(
                origin, record.offset, record.timestamp, record.key, record.value,
                tuple(record.headers), "", "",
            )  # fmt: skip
        if not letter.correlation_id:
            correlation, traceability = ids_of(record)
            letter = replace(letter, correlation_id=correlation, traceability_id=traceability)
        return Found(record, letter)
