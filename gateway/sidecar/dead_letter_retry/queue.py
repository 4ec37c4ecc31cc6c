"""Read dead letters, and keep the position of a group in those of one topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.core.group.partition_state import TopicMark
from gateway.core.log.record import Record, TopicPartition
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.fetch.bounded_read import MAX_FETCH_BYTES, fetch_log_bounds, read_committed
from gateway.kafka.group.consumer import ConsumerOptions, GroupConsumer
from gateway.kafka.group.group_offsets import GroupOffsets
from gateway.kafka.protocol.group_messages import OffsetAndMetadata
from gateway.sidecar.reactive.batch_encoder import get_ids
from gateway.sidecar.reactive.message import DeadLetterMessage, parse_message
from gateway.sidecar.turns import take_turns

NextOffsets = Mapping[TopicPartition, int]

FOREIGN_DELAY_S = 1.0  # after dead letters of other groups, until others are waited for


class QueuedDeadLetter(NamedTuple):
    record: Record
    message: DeadLetterMessage

    @property
    def origin(self) -> Record:
        """Return the record as it was in its own topic."""
        message = self.message
        return Record(
            message.origin, message.offset, -1, message.timestamp, message.key, message.value,
            message.headers,
        )  # fmt: skip


class DeadLetterQueue:
    """Read and commit the dead letters of a group in one topic. The methods raise KafkaError.

    The position is the committed offset of the group `<group>.dlq`. It is not the group itself,
    whose offsets only its members may commit. Dead letters of other groups in the same topic are
    skipped.

    The topic of the dead letters must be watched. Its name ends in `ext`.
    Offsets are committed under the name `offsets_group`.
    """

    def __init__(self, cluster: Cluster, topic: str, group: str, ext: str) -> None:
        self.topic = topic
        self.origin_topic = topic.removesuffix(ext)
        self.group = group
        self.offsets_group = f"{group}{ext}"
        self._cluster = cluster
        self._commits = GroupOffsets(cluster.coordinators, self.offsets_group)

    async def fetch_ranges(self) -> dict[TopicPartition, range]:
        """Return the ranges from the group's position to the ends as of now."""
        metadata = self._cluster.get_topic(self.topic)
        if metadata is None:
            return {}
        tps = [TopicPartition(self.topic, number) for number in metadata.partitions]
        logs = await fetch_log_bounds(self._cluster, tps)
        committed = await self._commits.committed_with_topics(tps)
        ranges = {}
        for tp, log in logs.items():
            start = log.start
            if tp in committed:
                (offset, _, _), mark = committed[tp]
                known_ids = {mark and mark.topic_id, metadata.topic_id} - {None}
                # Otherwise it is of a topic of the same name that was deleted.
                if len(known_ids) < 2 and offset <= log.stop:
                    start = max(offset, log.start)
            ranges[tp] = range(start, log.stop)
        return dict(sorted(ranges.items()))

    async def iter_dead_letters(
        self, ranges: Mapping[TopicPartition, range]
    ) -> AsyncIterator[tuple[Sequence[QueuedDeadLetter], NextOffsets]]:
        """Yield dead letters in portions, with the next offsets of the group after each portion.

        No dead letter comes twice. It ends with the ranges, or before an open transaction.
        """
        for tp, offsets in ranges.items():
            position = offsets.start
            while position < offsets.stop:
                batch = await read_committed(self._cluster, tp, position)
                if batch.next_offset == position:  # an open transaction
                    break
                position = batch.next_offset
                records = [record for record in batch.records if record.offset < offsets.stop]
                yield await self._parse_records(records), {tp: position}

    async def fetch_dead_letters(
        self, max_records: int, max_bytes: int, timeout_s: float = 0.0
    ) -> tuple[Sequence[QueuedDeadLetter], NextOffsets]:
        """Return the next dead letters, and the next offsets of the group after them.

        Args:
            max_bytes: At most so many bytes of keys and values, but at least one dead letter.
            timeout_s: How long to wait for the first one, in seconds.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + timeout_s
        skipped: dict[TopicPartition, int] = {}
        while True:
            ranges = await self.fetch_ranges()
            for tp, offsets in ranges.items():
                start = skipped.get(tp, 0)
                # It is behind the end if the topic was created again.
                start = max(offsets.start, start if start <= offsets.stop else 0)
                ranges[tp] = range(start, offsets.stop)
            taken, next_offsets = await self._take(ranges, max_records, max_bytes)
            if taken or now() >= deadline:
                return taken, next_offsets
            skipped |= next_offsets
            if next_offsets:
                await asyncio.sleep(min(FOREIGN_DELAY_S, max(0.0, deadline - now())))
            starts = {tp: offsets.start for tp, offsets in ranges.items()} | next_offsets
            await self._wait_for_records(starts, deadline - now())

    async def _take(
        self, ranges: Mapping[TopicPartition, range], max_records: int, remaining_bytes: int
    ) -> tuple[Sequence[QueuedDeadLetter], dict[TopicPartition, int]]:
        taken: list[QueuedDeadLetter] = []
        next_offsets: dict[TopicPartition, int] = {}
        async for dead_letters, offsets_after in self.iter_dead_letters(ranges):
            for dead_letter in dead_letters:
                record = dead_letter.record
                remaining_bytes -= record.payload_size
                if len(taken) >= max_records or (taken and remaining_bytes < 0):
                    return taken, next_offsets
                taken.append(dead_letter)
                next_offsets[record.tp] = record.next_offset
            # All of the portion are taken, so what was skipped after them is done with, too.
            next_offsets |= offsets_after
            if len(taken) >= max_records:
                break
        return taken, next_offsets

    async def _wait_for_records(self, starts: NextOffsets, timeout_s: float) -> None:
        """Return when there is a record behind one of the offsets, or the time is over.

        The brokers wait. To look again and again stalled them, and the event loop, if many waited.
        """
        options = ConsumerOptions(auto_offset_reset="earliest", max_fetch_bytes=MAX_FETCH_BYTES)
        consumer = GroupConsumer(self._cluster, "", options)
        try:
            consumer.assign(starts.keys())
            for tp, start in starts.items():
                consumer.seek(tp, start)
            await consumer.poll(timeout_s, max_records=1)
        finally:
            await consumer.close()

    async def commit(self, offsets: NextOffsets) -> None:
        metadata = self._cluster.get_topic(self.topic)
        topic_id = metadata.topic_id if metadata is not None else None
        mark = TopicMark(topic_id) if topic_id is not None else None
        positions = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        if positions:
            await self._commits.commit(positions, lambda _: mark)

    async def _parse_records(self, records: Sequence[Record]) -> list[QueuedDeadLetter]:
        """Return the dead letters of the group in records."""
        own: list[QueuedDeadLetter] = []
        async with take_turns() as turns:
            for record in records:
                dead_letter = self._parse_record(record)
                if dead_letter.message.group in ("", self.group):
                    own.append(dead_letter)
                if turns.is_over():
                    await turns.pass_on()
        return own

    def _parse_record(self, record: Record) -> QueuedDeadLetter:
        """Return the dead letter in a record; another program's counts as one of this topic."""
        message = parse_message(record)
        if message is None:
            origin = TopicPartition(self.origin_topic, record.tp.partition)
            message = DeadLetterMessage(
                origin, record.offset, record.timestamp, record.key, record.value,
                tuple(record.headers), "", "",
            )  # fmt: skip
        if not message.correlation_id:
            correlation, traceability = get_ids(record)
            message = replace(message, correlation_id=correlation, traceability_id=traceability)
        return QueuedDeadLetter(record, message)
