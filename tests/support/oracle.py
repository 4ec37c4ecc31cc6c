"""Compares what Kafka acknowledged with what a client got.

    async with Oracle(kafka.servers) as oracle:
        await oracle.produce(topic, 1000)
        ...
        oracle.check_events(client.events, start=oracle.start_of(topic, partitions=12))

Every value is unique, so that a record is known by its value alone. What is checked for each
partition: strictly rising offsets, nothing twice, nothing that Kafka did not acknowledge or
that was aborted, nothing lost, and gaps that cover what is missing, nothing else, once.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self, TypeAlias

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.structs import TopicPartition as KafkaPartition
from support.received import GapEvent, ReceivedItem, ReceivedRecord, parse_events
from support.records import KafkaTransaction, RecordToSend, open_transaction
from support.stream_check import (
    AckedLog,
    AckedRecord,
    Finding,
    FindingKind,
    PartitionCheck,
    PartitionTruth,
    RecordPredicate,
    StreamDiffers,
)

from gateway.core.log.record import TopicPartition

__all__ = [
    "AckedRecord",
    "FindingKind",
    "GapEvent",
    "ReceivedRecord",
    "StreamDiffers",
    "StreamOracle",
    "parse_events",
    "read_records",
    "read_topic",
]

RecordKey: TypeAlias = bytes | Callable[[int], bytes | None] | None
Position: TypeAlias = Mapping[TopicPartition, int]


class StreamOracle:
    """What was written to Kafka, and with which outcome.

    bootstrap: servers as producers reach them; None for an oracle that only adopts.
    options:   of AIOKafkaProducer.
    """

    def __init__(self, bootstrap: str | None = None, **options: Any) -> None:
        self._bootstrap = bootstrap
        self._options: dict[str, Any] = {"enable_idempotence": True} | options
        self._producer: AIOKafkaProducer | None = None
        self._run_id = uuid.uuid4().hex
        self._serial = 0
        self._logs: dict[TopicPartition, list[AckedLog]] = defaultdict(lambda: [{}])
        self._log_starts: dict[TopicPartition, list[int]] = defaultdict(list)
        self._acked_by_value: dict[bytes, AckedRecord] = {}
        self._aborted_values: set[bytes] = set()
        self._uncertain_values: set[bytes] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    # -- writing ----------------------------------------------------------------------

    async def produce_records(
        self,
        topic: str,
        count: int,
        *,
        key: RecordKey = None,
        partition: int | None = None,
        fields: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
    ) -> list[AckedRecord]:
        """Write `count` unique JSON values with acks=all; those acknowledged, in order.

        key:    one for all, or a function of the serial number; default seven keys in turn.
        fields: further members of the JSON object. timestamp: ms; None for now.
        A write without an answer is no error: its record may then arrive, or not.
        """
        producer = await self._get_producer()
        waiting = []
        for record in self.build_records(count, key, partition, fields, timestamp):
            self.add_uncertain(record.value or b"")
            sending = producer.send(
                topic,
                value=record.value,
                key=record.key,
                partition=partition,
                timestamp_ms=timestamp,
            )
            try:
                waiting.append((record, await sending))
            except Exception:
                continue
        outcomes = await asyncio.gather(*(sent for _, sent in waiting), return_exceptions=True)
        acked = []
        for (record, _), outcome in zip(waiting, outcomes, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                raise outcome
            if not isinstance(outcome, BaseException):
                tp = TopicPartition(outcome.topic, outcome.partition)
                acked.append(AckedRecord(tp, outcome.offset, record.key, record.value))
        self.add_acked(acked)
        return acked

    @asynccontextmanager
    async def open_transaction(self) -> AsyncIterator[OracleTransaction]:
        """An open transaction: `send` into it, then `commit` or `abort` (the block's end aborts).

        Readers of read_committed are held back meanwhile.
        """
        assert self._bootstrap is not None, "this oracle only adopts"
        async with open_transaction(self._bootstrap.split(",")) as kafka:
            opened = OracleTransaction(self, kafka)
            try:
                yield opened
            finally:
                if kafka.is_open:
                    await opened.abort()

    async def produce_transaction(
        self, topic: str, count: int, *, commit: bool = True, **options: Any
    ) -> list[AckedRecord]:
        """`count` records in one transaction; those of an aborted one must never arrive."""
        async with self.open_transaction() as opened:
            sent = await opened.send_records(topic, count, **options)
            await (opened.commit() if commit else opened.abort())
        return sent

    def build_records(
        self,
        count: int,
        key: RecordKey,
        partition: int | None,
        fields: Mapping[str, Any] | None,
        timestamp: int | None,
    ) -> list[RecordToSend]:
        """Records with values of their own, not written yet; as `produce`."""
        made = []
        for _ in range(count):
            self._serial += 1
            told = {"run": self._run_id, "n": self._serial} | dict(fields or {})
            value = json.dumps(told, separators=(",", ":")).encode()
            chosen = key(self._serial) if callable(key) else key
            chosen = f"key-{self._serial % 7}".encode() if key is None else chosen
            made.append(RecordToSend(value, chosen, partition, timestamp))
        return made

    async def _get_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            assert self._bootstrap is not None, "this oracle only adopts"
            self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap, **self._options)
            await self._producer.start()
        return self._producer

    # -- knowing ----------------------------------------------------------------------

    def add_acked(self, records: Iterable[AckedRecord]) -> None:
        """Take records as acknowledged that were written otherwise."""
        for record in records:
            self._logs[record.tp][-1][record.offset] = record
            if record.value is not None:
                self._acked_by_value[record.value] = record
                self._uncertain_values.discard(record.value)

    def add_uncertain(self, value: bytes) -> None:
        """A value that may have been written, at an offset that nobody told."""
        if value not in self._acked_by_value:
            self._uncertain_values.add(value)

    def discard_uncertain(self, values: Iterable[bytes]) -> None:
        """Values that were not written after all: Kafka's log, which is whole, lacks them."""
        self._uncertain_values.difference_update(values)

    def add_aborted(self, aborted_values: Iterable[bytes]) -> None:
        """Values of aborted transactions: must not arrive."""
        self._aborted_values.update(aborted_values)

    def discard_aborted(self, values: Iterable[bytes]) -> None:
        """Values that were committed after all."""
        self._aborted_values.difference_update(values)

    def mark_recreated(self, topic: str) -> None:
        """The topic was deleted and made anew: what is written from now on is another log."""
        for tp in [tp for tp in self._logs if tp.topic == topic]:
            self.mark_truncated(tp, 0)

    def mark_truncated(self, tp: TopicPartition, offset: int) -> None:
        """The log lost its records from `offset` on (unclean election)."""
        kept = {o: acked for o, acked in self._logs[tp][-1].items() if o < offset}
        self._logs[tp].append(kept)
        self._log_starts[tp].append(offset)

    def list_acked(self, tp: TopicPartition | None = None) -> list[AckedRecord]:
        """The records of the log as it is now, by partition and offset."""
        logs = [self._logs[tp]] if tp is not None else [self._logs[p] for p in sorted(self._logs)]
        return [life[-1][offset] for life in logs for offset in sorted(life[-1])]

    def get_end_offsets(self) -> dict[TopicPartition, int]:
        """The position after all that is acknowledged by now."""
        return {tp: max(lives[-1], default=-1) + 1 for tp, lives in self._logs.items()}

    def get_start_offsets(self, topic: str, partition_count: int) -> dict[TopicPartition, int]:
        """The position at the end of each partition now: where a live client begins."""
        ends = self.get_end_offsets()
        every = (TopicPartition(topic, number) for number in range(partition_count))
        return {tp: ends.get(tp, 0) for tp in every}

    # -- judging ----------------------------------------------------------------------

    def check_events(
        self, events: Iterable[Mapping[str, Any]], *, format: str = "envelope", **options: Any
    ) -> None:
        """`check` for a client's events `{"event", "id", "data"}`."""
        self.check_items(parse_events(events, format), **options)

    def check_items(
        self,
        received: Sequence[ReceivedItem],
        gaps: Sequence[GapEvent] = (),
        start: Position | None = None,
        *,
        end: Position | None = None,
        view: RecordPredicate = lambda acked: True,
        log_start: Position | None = None,
        compacted: bool = False,
    ) -> None:
        """Raise StreamDiffers unless the stream is what it should be.

        received:  records and gaps in the order in which they came; gaps given apart, in
                   `gaps`, are taken to stand before the first record behind them.
        start:     where each partition should begin; unknown where it is not named: then it
                   begins with the first thing heard. {} or None: unknown for all.
        end:       what must have been heard; by default all that is acknowledged by now.
        view:      the filter of the route: what is not of it must not be heard.
        log_start: of Kafka at the end, to judge gaps of reason retention.
        compacted: records whose key was written again may be missing.
        """
        findings: dict[TopicPartition | None, list[Finding]] = {}
        streams = self._group_by_partition(_insert_gaps(received, gaps), findings)
        for tp in streams.keys() | (start or {}).keys():
            reading = PartitionCheck(
                self.get_truth(tp),
                (start or {}).get(tp),
                view,
                (log_start or {}).get(tp),
                compacted,
            )
            for item in streams.get(tp, []):
                reading.check_item(item)
            reading.finish((end or {}).get(tp))
            if reading.findings:
                findings[tp] = reading.findings
        if findings:
            raise StreamDiffers(findings)

    def list_missing(
        self, received: Iterable[ReceivedItem], view: RecordPredicate = lambda acked: True
    ) -> list[AckedRecord]:
        """Acknowledged records not yet heard: for waiting until all is there."""
        values = {item.value for item in received if isinstance(item, ReceivedRecord)}
        return [each for each in self.list_acked() if view(each) and each.value not in values]

    def get_truth(self, tp: TopicPartition) -> PartitionTruth:
        """What is known of a partition by now."""
        lives = self._logs.get(tp, [{}])
        starts = self._log_starts.get(tp, [])
        return PartitionTruth(
            lives, starts, frozenset(self._aborted_values), frozenset(self._uncertain_values)
        )

    def _group_by_partition(
        self, items: Iterable[ReceivedItem], findings: dict[TopicPartition | None, list[Finding]]
    ) -> dict[TopicPartition, list[ReceivedItem]]:
        found: dict[TopicPartition, list[ReceivedItem]] = defaultdict(list)
        for item in items:
            placed = self._locate_item(item)
            if placed is not None and placed.tp is not None:
                found[placed.tp].append(placed)
            elif isinstance(item, ReceivedRecord) and item.value not in self._uncertain_values:
                kind = (
                    FindingKind.ABORTED
                    if item.value in self._aborted_values
                    else FindingKind.PHANTOM
                )
                lost = findings.setdefault(None, [])
                lost.append(Finding(kind, -1, f"nothing acknowledged has it: {item.value!r:.80}"))
        return found

    def _locate_item(self, item: ReceivedItem) -> ReceivedItem | None:
        """A record of format `value` is known by its value; None if by none acknowledged."""
        if isinstance(item, GapEvent) or item.tp is not None:
            return item
        acked = self._acked_by_value.get(item.value or b"")
        return acked and item._replace(tp=acked.tp, offset=acked.offset)


class OracleTransaction:
    """Records sent into it count once it is committed."""

    def __init__(self, oracle: StreamOracle, kafka_transaction: KafkaTransaction) -> None:
        self._oracle = oracle
        self._transaction = kafka_transaction
        self._sent_records: list[AckedRecord] = []

    async def send_records(
        self,
        topic: str,
        count: int,
        *,
        key: RecordKey = None,
        partition: int | None = None,
        fields: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
    ) -> list[AckedRecord]:
        """As `Oracle.produce`; an error here is raised."""
        records = self._oracle.build_records(count, key, partition, fields, timestamp)
        self._oracle.add_aborted(record.value or b"" for record in records)
        placed = await self._transaction.write_records(topic, records)
        sent = [
            AckedRecord(TopicPartition(topic, to), offset, record.key, record.value)
            for record, (to, offset) in zip(records, placed, strict=True)
        ]
        self._sent_records += sent
        return sent

    async def commit(self) -> None:
        await self._transaction.commit()
        self._oracle.discard_aborted(acked.value or b"" for acked in self._sent_records)
        self._oracle.add_acked(self._sent_records)

    async def abort(self) -> None:
        await self._transaction.abort()


def _insert_gaps(received: Sequence[ReceivedItem], gaps: Sequence[GapEvent]) -> list[ReceivedItem]:
    """Gaps known without their place in the stream stand before the first record behind them."""
    stream = list(received)
    for gap in gaps:
        behind = (
            index
            for index, item in enumerate(stream)
            if item.tp == gap.tp
            and isinstance(item, ReceivedRecord)
            and (item.offset or 0) >= gap.end
        )
        stream.insert(next(behind, len(stream)), gap)
    return stream


async def read_records(
    bootstrap: str,
    topic: str,
    *,
    isolation: str = "read_committed",
    timeout_s: float = 60.0,
    min_records: int = 0,
) -> list[AckedRecord]:
    """Ground truth: every record that Kafka has up to its end now, read without the gateway.

    least: records that there will be. The markers that end a transaction are written after its
        producer was answered; until then a reader of committed records does not come past it.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                found = await _read_committed_records(bootstrap, topic, isolation)
                if len(found) >= min_records:
                    return found
            except asyncio.CancelledError:
                # A consumer of aiokafka that stops also raises that of a task that it cancels.
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
            await asyncio.sleep(0.05)


async def _read_committed_records(
    bootstrap: str, topic: str, isolation_level: str
) -> list[AckedRecord]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation_level, auto_offset_reset="earliest"
    )
    found = []
    async with consumer:
        await consumer._client.force_metadata_update()
        numbers = await _fetch_partitions(consumer, topic)
        partitions = [KafkaPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        await consumer.seek_to_beginning()
        ends = await consumer.end_offsets(partitions)
        while [tp for tp in partitions if await consumer.position(tp) < ends[tp]]:
            for tp, records in (await consumer.getmany(timeout_ms=200)).items():
                place = TopicPartition(*tp)
                found += [AckedRecord(place, r.offset, r.key, r.value) for r in records]
    return [record for record in sorted(found) if record.offset < ends[KafkaPartition(*record.tp)]]


async def read_topic(
    bootstrap: str, topic: str, **options: Any
) -> dict[TopicPartition, list[tuple[int, bytes | None]]]:
    """`read_records` by partition: offset and value."""
    found: dict[TopicPartition, list[tuple[int, bytes | None]]] = defaultdict(list)
    for record in await read_records(bootstrap, topic, **options):
        found[record.tp].append((record.offset, record.value))
    return dict(found)


async def _fetch_partitions(consumer: AIOKafkaConsumer, topic: str) -> list[int]:
    """Asked for by subscription to metadata, not to the topic."""
    await consumer._client.add_topic(topic)
    return sorted(consumer.partitions_for_topic(topic) or ())
