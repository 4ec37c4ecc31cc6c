"""A topic of keys, its gateway and a client without any I/O: what the client knows is held
against what was written.

Partition 0 has the keys a and b, partition 1 has c and d. The logs are short, so what lies
further back comes from "Kafka": `Topic.written`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from support.rendering import Rendering

from gateway.core.channel.channel import Channel
from gateway.core.channel.dispatcher import Spread
from gateway.core.channel.filters import Filters
from gateway.core.client.slow_client import SlowClient
from gateway.core.client.snapshot import Snapshot
from gateway.core.client.snapshot_blocks import Block, Blocks
from gateway.core.client.subscription import Subscription
from gateway.core.client.table_snapshot import Edition, Table
from gateway.core.log.partition_log import Log
from gateway.core.log.position import Place, Position
from gateway.core.log.record import Entry, Gap, News, Ready, Record, SnapshotEnd, TopicPartition
from gateway.core.log.tail import Tail
from gateway.core.token.resume_token import decode

PARTITIONS = (TopicPartition("prices", 0), TopicPartition("prices", 1))
KEYS = {PARTITIONS[0]: (b"a", b"b", None), PARTITIONS[1]: (b"c", b"d", None)}


class Words(Rendering):
    """`name partition offset -> id`, an event a line."""

    def head(self, entry: News) -> bytes | None:
        if type(entry) is Record:
            return b"record %d %d" % (entry.tp.partition, entry.offset)
        if type(entry) is Gap:
            return b"gap %d %d" % (entry.tp.partition, entry.offset)
        return b"snapshot-end %d" % entry.records if type(entry) is SnapshotEnd else None

    def position(self) -> bytes:
        return b"position"

    def end(self, token: bytes | None) -> bytes:
        if token is None:
            return b"\n"
        offsets = decode(token.decode()).topics[0].offsets
        return (" -> " + " ".join(map(str, offsets)) + "\n").encode()


class Topic:
    """Two partitions, and a gateway that has read them up to where its logs stand.

    steps: its tail moves when it is told to, and its views are conflated.
    """

    def __init__(self, *, steps: bool = False, ring: int = 1 << 20, cache: int = 1 << 20) -> None:
        self.written: dict[TopicPartition, list[Record]] = {tp: [] for tp in PARTITIONS}
        self.logs = {tp: Log(tp, cache, 60.0) for tp in PARTITIONS}
        self.tail = Tail("cluster", self.logs.values(), {"prices": "id"}, conflates=steps)
        self.channel = Channel(self.tail, b"view-", Words(), max_bytes=ring)
        self._spread = Spread(self.tail)
        self._spread.add(self.channel, Filters())
        self._steps = steps
        self._held: list[Entry] = []
        for log in self.logs.values():
            log.open(0, 0)
            self._held.append(Ready(log.tp, 0, 0, 0))
        self.step()

    def write(self, p: int, key: bytes | None, value: bytes | None = b"v") -> Record:
        tp = PARTITIONS[p]
        record = Record(tp, len(self.written[tp]), 0, 0, key, value)
        self.written[tp].append(record)
        self.logs[tp].append(record, 0.0)
        self._held.append(record)
        if not self._steps:
            self.step()
        return record

    def step(self) -> None:
        self._spread.publish(self.tail.turn(self._held, 1))
        self._held = []

    def edition(self, tp: TopicPartition) -> Edition:
        table = Table(tp, Place(0))
        table.apply(self.written[tp])
        return table.edition()

    def known(self, offsets: Sequence[int]) -> dict[bytes, bytes]:
        """What there is up to these offsets."""
        table: dict[bytes, bytes] = {}
        for tp, end in zip(PARTITIONS, offsets, strict=True):
            for record in self.written[tp][:end]:
                _apply(table, record)
        return table

    def ends(self) -> list[int]:
        return [len(self.written[tp]) for tp in PARTITIONS]


def _apply(table: dict[bytes, bytes], record: Record) -> None:
    if record.key is not None and record.value is None:
        table.pop(record.key, None)
    elif record.key is not None and record.value is not None:
        table[record.key] = record.value


@dataclass
class Known:
    """What a client has: values by key, records without one, how many snapshots ended."""

    table: dict[bytes, bytes] = field(default_factory=dict)
    keyless: list[tuple[int, int]] = field(default_factory=list)
    ended: int = 0

    def copy(self) -> Known:
        return Known(dict(self.table), list(self.keyless), self.ended)


class Client:
    """One that is cut now and then. What came after its last id it does not keep."""

    def __init__(
        self,
        topic: Topic,
        *,
        slow: SlowClient = SlowClient.CATCH_UP,
        snapshot: bool = False,
        blocks: bool = False,
    ) -> None:
        self.topic = topic
        self.slow = slow
        self.mode, self.blocks = snapshot, blocks
        self.known, self._kept = Known(), Known()
        self.id: list[int] | None = None
        self.lines: list[str] = []
        self._editions: dict[TopicPartition, Edition] = {}
        """snapshot: it begins with one, and is brought it in blocks or one by one."""
        fresh = dict.fromkeys(PARTITIONS, Place(0)) if snapshot else {}
        self.subscription = self._subscribe(fresh, PARTITIONS)

    def cut(self) -> None:
        """And come back with the last id."""
        self.subscription.close()
        self.known = self._kept.copy()
        assert self.id is not None
        own = {tp: Place(offset) for tp, offset in zip(PARTITIONS, self.id, strict=True)}
        self.subscription = self._subscribe(own, ())

    def take(self, budget: int = 1 << 20) -> list[str]:
        """What there is for so much budget."""
        self._feed()
        lines = self.subscription.take(budget).decode().splitlines()
        for line in lines:
            self._hear(line)
        self.lines += lines
        return lines

    def take_all(self) -> list[str]:
        """Until there is no more."""
        taken: list[str] = []
        idle = 0
        while idle < 3:
            lines = self.take()
            taken += lines
            idle = 0 if lines or self.subscription.more else idle + 1
        return taken

    def _subscribe(self, own: Position, fresh: Iterable[TopicPartition]) -> Subscription:
        snapshot = Snapshot(["prices"], PARTITIONS, fresh) if self.mode else None
        sub = Subscription(self.topic.channel, own, slow=self.slow, snapshot=snapshot)
        self._editions.clear()
        if self.id is None:
            self._told(sub.begin()[1])
        return sub

    def _told(self, token: bytes) -> None:
        self.id = [offset or 0 for offset in decode(token.decode()).topics[0].offsets]
        self._kept = self.known.copy()

    def _feed(self) -> None:
        sub = self.subscription
        for tp, place in sub.lacks():
            assert place.offset is not None
            snapshot = sub.snapshot
            if snapshot is None or not snapshot.seeks(tp):
                sub.feed(tp, place, self.topic.written[tp][place.offset : place.offset + 2])
            elif not snapshot.is_fresh(tp):
                sub.ends(tp, len(self.topic.written[tp]))
            else:
                edition = self._editions.setdefault(tp, self.topic.edition(tp))
                sub.ends(tp, edition.end.offset or 0)
                sub.bring(tp, place, self._pieces(edition, place.offset))

    def _pieces(self, edition: Edition, offset: int) -> Iterable[Entry | Block]:
        if not self.blocks:
            return edition.read(offset, 300)
        block = Blocks.of(edition, self.topic.channel).at(edition, offset)
        return [block] if block is not None else []

    def _hear(self, line: str) -> None:
        said, _, id = line.partition(" -> ")
        name, *rest = said.split()
        if name == "record":
            record = self.topic.written[PARTITIONS[int(rest[0])]][int(rest[1])]
            _apply(self.known.table, record)
            if record.key is None:
                self.known.keyless.append((int(rest[0]), int(rest[1])))
        elif name == "snapshot-end":
            self.known.ended += 1
        if id:
            before, self.id = self.id, list(map(int, id.split()))
            assert before is None or all(a <= b for a, b in zip(before, self.id, strict=True))
            self._kept = self.known.copy()


def keyless(written: Mapping[TopicPartition, Sequence[Record]]) -> list[tuple[int, int]]:
    """All records without a key, by partition and offset."""
    return sorted((r.tp.partition, r.offset) for rs in written.values() for r in rs if not r.key)
