"""A topic of keys, its gateway and a client without any I/O: what the client knows is held
against what was written.

Partition 0 has the keys a and b, partition 1 has c and d. The logs are short, so what lies
further back comes from "Kafka": `Topic.written`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from support.per_event_encoder import PerEventEncoder

from gateway.core.channel.channel import Channel
from gateway.core.channel.chunk_ring import RingBudget
from gateway.core.channel.dispatcher import ChannelDispatcher
from gateway.core.channel.filters import Filters
from gateway.core.channel.tail import Tail
from gateway.core.client.read_buffer import ReadAnswer
from gateway.core.client.snapshot import (
    KeyTable,
    Snapshot,
    SnapshotBlock,
    SnapshotBlocks,
    TableSnapshot,
)
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SlowClientPolicy, SubscriptionTerms
from gateway.core.log.partition_log import PartitionLog
from gateway.core.log.record import (
    Entry,
    Gap,
    PartitionPosition,
    Position,
    Ready,
    Record,
    SnapshotEnd,
    StreamItem,
    TopicPartition,
)
from gateway.core.token.resume_token import parse_token

PARTITIONS = (TopicPartition("prices", 0), TopicPartition("prices", 1))
KEYS = {PARTITIONS[0]: (b"a", b"b", None), PARTITIONS[1]: (b"c", b"d", None)}


class TextEncoder(PerEventEncoder):
    """`name partition offset -> id`, an event a line."""

    def encode_entry(self, entry: StreamItem) -> bytes | None:
        if type(entry) is Record:
            return b"record %d %d" % (entry.tp.partition, entry.offset)
        if type(entry) is Gap:
            return b"gap %d %d" % (entry.tp.partition, entry.offset)
        return b"snapshot-end %d" % entry.records if type(entry) is SnapshotEnd else None

    def encode_position(self) -> bytes:
        return b"position"

    def encode_event_end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        offsets = parse_token(token.decode()).topics[0].offsets
        return (" -> " + " ".join(map(str, offsets)) + "\n").encode()


class KeyedTopic:
    """Two partitions, and a gateway that has read them up to where its logs stand.

    tail: the class of its tail.
    is_stepped: the tail moves when it is told to, and its views are conflated.
    """

    def __init__(
        self,
        tail: type[Tail] = Tail,
        *,
        is_stepped: bool = False,
        max_ring_bytes: int = 1 << 20,
        max_log_bytes: int = 1 << 20,
    ) -> None:
        self.written_records: dict[TopicPartition, list[Record]] = {tp: [] for tp in PARTITIONS}
        self.logs = {tp: PartitionLog(tp, max_log_bytes, 60.0) for tp in PARTITIONS}
        self.tail = tail("cluster", self.logs.values(), {"prices": "id"}, is_conflated=is_stepped)
        self.channel = Channel(
            self.tail,
            b"view-",
            TextEncoder(),
            ring_budget=RingBudget(max_ring_bytes=max_ring_bytes),
        )
        self._dispatcher = ChannelDispatcher(self.tail)
        self._dispatcher.add(self.channel, Filters())
        self._is_stepped = is_stepped
        self._pending_entries: list[Entry] = []
        for log in self.logs.values():
            log.open(0, 0)
            self._pending_entries.append(Ready(log.tp, 0, 0, 0))
        self.publish_pending()

    def write_record(self, partition: int, key: bytes | None, value: bytes | None = b"v") -> Record:
        tp = PARTITIONS[partition]
        record = Record(tp, len(self.written_records[tp]), 0, 0, key, value)
        self.written_records[tp].append(record)
        self.logs[tp].append(record, 0.0)
        self._pending_entries.append(record)
        if not self._is_stepped:
            self.publish_pending()
        return record

    def publish_pending(self) -> None:
        self._dispatcher.publish(self.tail.apply_entries(self._pending_entries, 1))
        self._pending_entries = []

    def build_edition(self, tp: TopicPartition) -> TableSnapshot:
        table = KeyTable(tp, PartitionPosition(0))
        table.apply(self.written_records[tp])
        return table.take_snapshot()

    def build_table(self, offsets: Sequence[int]) -> dict[bytes, bytes]:
        """What there is up to these offsets."""
        table: dict[bytes, bytes] = {}
        for tp, end in zip(PARTITIONS, offsets, strict=True):
            for record in self.written_records[tp][:end]:
                _apply_record(table, record)
        return table

    def get_end_offsets(self) -> list[int]:
        return [len(self.written_records[tp]) for tp in PARTITIONS]


def _apply_record(table: dict[bytes, bytes], record: Record) -> None:
    if record.key is not None and record.value is None:
        table.pop(record.key, None)
    elif record.key is not None and record.value is not None:
        table[record.key] = record.value


@dataclass
class ClientState:
    """What a client has: values by key, records without one, how many snapshots ended."""

    table: dict[bytes, bytes] = field(default_factory=dict)
    keyless_records: list[tuple[int, int]] = field(default_factory=list)
    ended_snapshots: int = 0

    def copy_state(self) -> ClientState:
        return ClientState(dict(self.table), list(self.keyless_records), self.ended_snapshots)


class SnapshotClient:
    """One that is cut now and then. What came after its last id it does not keep."""

    def __init__(
        self,
        topic: KeyedTopic,
        *,
        slow_policy: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
        has_snapshot: bool = False,
        uses_blocks: bool = False,
        end_offsets: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        self.topic = topic
        self.end_offsets = end_offsets
        self.slow_policy = slow_policy
        self.has_snapshot, self.uses_blocks = has_snapshot, uses_blocks
        self.state, self._confirmed_state = ClientState(), ClientState()
        self.last_offsets: list[int] | None = None
        self.received_lines: list[str] = []
        """snapshot: it begins with one, and is brought it in blocks or one by one."""
        fresh = dict.fromkeys(PARTITIONS, PartitionPosition(0)) if has_snapshot else {}
        self.subscription = self._create_subscription(fresh, PARTITIONS)

    def reconnect(self) -> None:
        """And come back with the last id."""
        self.subscription.close()
        self.state = self._confirmed_state.copy_state()
        assert self.last_offsets is not None
        own = {
            tp: PartitionPosition(offset)
            for tp, offset in zip(PARTITIONS, self.last_offsets, strict=True)
        }
        self.subscription = self._create_subscription(own, ())

    def take_lines(self, max_bytes: int = 1 << 20) -> list[str]:
        """What there is for so much budget."""
        self._feed_backfills()
        lines = self.subscription.take(max_bytes, 0.0).decode().splitlines()
        for line in lines:
            self._apply_line(line)
        self.received_lines += lines
        return lines

    def take_all_lines(self) -> list[str]:
        """Until there is no more."""
        taken: list[str] = []
        idle = 0
        while idle < 3:
            lines = self.take_lines()
            taken += lines
            idle = 0 if lines or self.subscription.has_more else idle + 1
        return taken

    def _create_subscription(
        self, positions: Position, fresh_partitions: Iterable[TopicPartition]
    ) -> Subscription:
        snapshot = None
        if self.has_snapshot:
            snapshot = Snapshot(("prices",), set(PARTITIONS), set(fresh_partitions))
        sub = Subscription(
            self.topic.channel,
            positions,
            SubscriptionTerms(
                slow_policy=self.slow_policy, end_offsets=self.end_offsets, snapshot=snapshot
            ),
        )
        if self.last_offsets is None:
            self._confirm_token(sub.begin()[1])
        return sub

    def _confirm_token(self, token: bytes) -> None:
        self.last_offsets = [
            offset or 0 for offset in parse_token(token.decode()).topics[0].offsets
        ]
        self._confirmed_state = self.state.copy_state()

    def _feed_backfills(self) -> None:
        sub = self.subscription
        reader = sub.private_reader
        for tp, place in () if reader is None else reader.list_backfills():
            assert place.offset is not None
            snapshot = sub.snapshot
            if snapshot is None or not snapshot.needs_data(tp):
                found = self.topic.written_records[tp][place.offset : place.offset + 2]
                if found:
                    reader.feed(tp, place, ReadAnswer(found).get_run())
            elif not snapshot.is_fresh(tp):
                reader.set_snapshot_end(tp, len(self.topic.written_records[tp]))
            else:
                edition = snapshot.tables.get(tp) or self.topic.build_edition(tp)
                reader.set_snapshot_end(tp, edition.end_position.offset or 0, edition)
                reader.feed_snapshot(tp, place, self._get_pieces(edition, place.offset))

    def _get_pieces(self, edition: TableSnapshot, offset: int) -> Iterable[Entry | SnapshotBlock]:
        if not self.uses_blocks:
            return edition.read(offset, 300)
        block = SnapshotBlocks.for_channel(edition, self.topic.channel).get_block(edition, offset)
        return [block] if block is not None else []

    def _apply_line(self, line: str) -> None:
        said, _, id = line.partition(" -> ")
        name, *rest = said.split()
        if name == "record":
            record = self.topic.written_records[PARTITIONS[int(rest[0])]][int(rest[1])]
            _apply_record(self.state.table, record)
            if record.key is None:
                self.state.keyless_records.append((int(rest[0]), int(rest[1])))
        elif name == "snapshot-end":
            self.state.ended_snapshots += 1
        if id:
            before, self.last_offsets = self.last_offsets, list(map(int, id.split()))
            assert before is None or all(
                a <= b for a, b in zip(before, self.last_offsets, strict=True)
            )
            self._confirmed_state = self.state.copy_state()


def list_keyless(
    records_by_partition: Mapping[TopicPartition, Sequence[Record]],
) -> list[tuple[int, int]]:
    """All records without a key, by partition and offset."""
    return sorted(
        (r.tp.partition, r.offset) for rs in records_by_partition.values() for r in rs if not r.key
    )
