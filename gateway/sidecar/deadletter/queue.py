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
from gateway.kafka.fetch.committed_read import fetch_log_bounds, read_committed
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.reactive.batch_encoder import get_ids
from gateway.sidecar.reactive.message import DeadLetterMessage, parse_message

NextOffsets = Mapping[TopicPartition, int]

POLL_INTERVAL_S = 0.05  # seconds until partitions without news are asked again


class QueuedDeadLetter(NamedTuple):
    """A record of the topic, and the letter in it."""

    record: Record
    message: DeadLetterMessage

    @property
    def origin(self) -> Record:
        """The record as it was."""
        letter = self.message
        return Record(
            letter.origin, letter.offset, -1, letter.timestamp, letter.key, letter.value,
            letter.headers,
        )  # fmt: skip


class DeadLetterQueue:
    """topic: of the dead letters; it must be watched. ext: what its name ends in."""

    def __init__(self, cluster: Cluster, topic: str, group: str, ext: str) -> None:
        self.topic = topic
        self.group = group
        self.offsets_group = f"{group}{ext}"
        self._cluster = cluster
        self._ext = ext
        self._commits = GroupOffsets(cluster.coordinators, self.offsets_group)

    async def fetch_ranges(self) -> dict[TopicPartition, range]:
        """What the group is not through with: from there to the end as of now, where that is
        something. Raises KafkaError."""
        known = self._cluster.get_topic(self.topic)
        tps = [TopicPartition(self.topic, each) for each in (known.partitions if known else ())]
        logs = await fetch_log_bounds(self._cluster, tps)
        committed = await self._commits.committed(tps)
        found = {}
        for tp, log in logs.items():
            at = committed[tp].offset if tp in committed else log.start
            found[tp] = range(max(at if at <= log.stop else log.start, log.start), log.stop)
        return {tp: left for tp, left in sorted(found.items()) if left}

    async def iter_letters(
        self, ranges: Mapping[TopicPartition, range], *, all_groups: bool = False
    ) -> AsyncIterator[tuple[Sequence[QueuedDeadLetter], NextOffsets]]:
        """Some of them at a time, and how far the group is with them behind it; no letter twice.

        Ends with the ranges, or at an open transaction. Raises KafkaError.
        """
        for tp, left in ranges.items():
            at = left.start
            while at < left.stop:
                got = await read_committed(self._cluster, tp, at)
                if got.next_offset == at:
                    break
                at = got.next_offset
                found = [
                    self._parse_record(each) for each in got.records if each.offset < left.stop
                ]
                yield [each for each in found if all_groups or self._is_own(each)], {tp: at}

    async def fetch_letters(
        self,
        max_records: int,
        max_bytes: int,
        timeout_s: float = 0.0,
        *,
        end_offsets: NextOffsets | None = None,
    ) -> tuple[Sequence[QueuedDeadLetter], NextOffsets]:
        """At most so many, and bytes of keys and values (one at least), and how far the group is
        with them. Waits for some for `within` seconds. until: no further than there. Raises
        KafkaError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            found, points = await self._fetch_once(max_records, max_bytes, end_offsets)
            if found or loop.time() >= deadline:
                return found, points
            await asyncio.sleep(min(POLL_INTERVAL_S, max(0.0, deadline - loop.time())))

    async def _fetch_once(
        self, max_records: int, size: int, end_offsets: NextOffsets | None
    ) -> tuple[Sequence[QueuedDeadLetter], NextOffsets]:
        taken: list[QueuedDeadLetter] = []
        points: dict[TopicPartition, int] = {}
        ranges = await self.fetch_ranges()
        if end_offsets is not None:
            stops = {tp: min(left.stop, end_offsets.get(tp, 0)) for tp, left in ranges.items()}
            ranges = {tp: range(left.start, stops[tp]) for tp, left in ranges.items()}
        async for found, moved in self.iter_letters(ranges):
            for each in found:
                size -= len(each.record.key or b"") + len(each.record.value or b"")
                if len(taken) >= max_records or (taken and size < 0):
                    return taken, points
                taken.append(each)
                points[each.record.tp] = each.record.next_offset
            points |= moved
            if len(taken) >= max_records:
                break
        return taken, points

    async def commit(self, offsets: NextOffsets) -> None:
        """The next of each partition. Raises KafkaError."""
        known = self._cluster.get_topic(self.topic)
        wanted = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        if wanted:
            await self._commits.commit(wanted, lambda topic: known.topic_id if known else None)

    def _is_own(self, found: QueuedDeadLetter) -> bool:
        return found.message.group in ("", self.group)

    def _parse_record(self, record: Record) -> QueuedDeadLetter:
        """What other programs have put there has come from the topic of that name."""
        letter = parse_message(record)
        if letter is None:
            origin = TopicPartition(self.topic.removesuffix(self._ext), record.tp.partition)
            letter = DeadLetterMessage(
                origin, record.offset, record.timestamp, record.key, record.value,
                tuple(record.headers), "", "",
            )  # fmt: skip
        if not letter.correlation_id:
            correlation, traceability = get_ids(record)
            letter = replace(letter, correlation_id=correlation, traceability_id=traceability)
        return QueuedDeadLetter(record, letter)
