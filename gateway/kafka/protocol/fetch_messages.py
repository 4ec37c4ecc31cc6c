"""Define the Fetch request and its sessions; it is on the hot path, and so written by `struct`.

Versions 11 to 17 are spoken. From 13 on topics are named by id (KIP-516), so that a recreated topic
is an error instead of other records. From 12 on the leader compares `last_fetched_epoch` with its
log and answers a `diverging_epoch` where the two differ (KIP-320, KIP-595), so that a truncated log
is noticed without an extra request. From 16 on NOT_LEADER_OR_FOLLOWER comes with the new leader
(KIP-951).

Measured in microseconds for 1, 12 and 500 partitions: a full request takes 3, 6, 150 (aiokafka's
v11: 8, 23, 650), and a full response 4, 13, 460. In a fetch session (KIP-227), whatever its number
of partitions, a request with nothing changed takes 3, one with a partition that moved on 5, and a
response without news 1.2.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from uuid import UUID

from gateway.core.log.record import TopicPartition

from .requests import (
    CONSUMER_REPLICA_ID,
    Api,
    FieldReader,
    FieldWriter,
    KafkaRequest,
    read_tags,
    read_uvarint,
)

FIRST_TOPIC_ID_VERSION = 13  # from this version on topics are named by id
_NO_OFFSET = -1  # the log start offset, which only followers send
MAX_PARTITION_BYTES = 1 << 20  # the default of `FetchTarget.max_bytes`

# Layouts up to version 11 and, flexible, from version 12 on. The pad byte at the end of a flexible
# one is the number of tagged fields, 0.
_TARGET_11 = struct.Struct(">iiqqi")  # partition, leader epoch, offset, log start, max bytes
_TARGET_12 = struct.Struct(">iiqiqix")  # the same with the last fetched epoch after the offset
_PARTITION = struct.Struct(">ihqqq")  # partition, error, high watermark, LSO, log start
_ABORTED_11 = struct.Struct(">qq")  # producer id, first offset
_ABORTED_12 = struct.Struct(">qqx")
_I32 = struct.Struct(">i")
_DIVERGING = struct.Struct(">iq")  # epoch, end offset
_LEADER = struct.Struct(">ii")  # node, leader epoch

# Named tuples are created by this: 1.1 us instead of 1.8 for the two of a partition.
_tuple_new = tuple.__new__


class FetchTarget(NamedTuple):
    """The position from which to fetch a partition.

    Attributes:
        leader_epoch: The leader epoch in the metadata; the broker refuses the fetch if its own is
            lower or higher. -1 is not compared.
        topic_id: The id of the topic; None if the broker has none. The whole request then names
            topics by name.
        max_bytes: The largest number of bytes; one batch comes however large it is.
        last_fetched_epoch: The leader epoch of the last record before `offset`; -1 if the leader is
            not to compare it with its log.
    """

    offset: int
    leader_epoch: int = -1
    topic_id: UUID | None = None
    max_bytes: int = MAX_PARTITION_BYTES
    last_fetched_epoch: int = -1

    def has_other_topic_id(self, other: FetchTarget) -> bool:
        # Mostly both are the same object; UUIDs are compared in Python code, which takes 0.3 us.
        return self.topic_id is not other.topic_id and self.topic_id != other.topic_id


class FetchedPartition(NamedTuple):
    """The answer for one partition. Numbers are -1 where the broker did not send them.

    Attributes:
        high_watermark: The offset after the last record that all replicas in sync have.
        last_stable_offset: The first offset of an open transaction, or the high watermark.
        preferred_replica: The node id of the replica to fetch from instead (KIP-392).
        aborted_transactions: Producer id and first offset of each aborted transaction within
            `records`.
        records: The record batches; the last one may be cut.
        diverging_epoch: The last epoch that the leader's truncated log has in common with the
            fetched records, and its end offset; None where they agree.
        current_leader: Node id and leader epoch of the new leader, along with
            NOT_LEADER_OR_FOLLOWER (KIP-951).
        topic_id: The id of the topic that `current_leader` is a leader of; None without a leader.
    """

    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    preferred_replica: int = -1
    aborted_transactions: tuple[tuple[int, int], ...] = ()
    records: bytes = b""
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    topic_id: UUID | None = None


class FetchResponse(NamedTuple):
    throttle_ms: int
    error: int
    session_id: int
    partitions: dict[TopicPartition, FetchedPartition]


class ForgottenPartition(NamedTuple):
    tp: TopicPartition
    topic_id: UUID | None


@dataclass(slots=True)
class FetchRequest(KafkaRequest[FetchResponse]):
    """Fetch records of partitions that one broker leads (or follows, KIP-392).

    Attributes:
        targets: In a session only those that have changed.
        max_bytes: The largest number of bytes of the response; one batch may be larger.
        uses_topic_ids: Whether to name topics by id if the broker can. All topics of the session
            must have an id then.
        session_id: The fetch session (KIP-227); 0 for a new one or none.
        session_epoch: The number of the request in the session; 0 for a new one, -1 for none.
        topic_names: The names of all topic ids of the session. Partitions of other ids are left out
            of the response.
    """

    API = Api(key=1, name="Fetch", lowest=11, highest=17, first_flexible=12)

    targets: Mapping[TopicPartition, FetchTarget]
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    isolation_level: int = 1
    rack: str = ""
    uses_topic_ids: bool = True
    session_id: int = 0
    session_epoch: int = -1
    forgotten: Collection[ForgottenPartition] = ()
    topic_names: Mapping[UUID, str] | None = None

    @property
    def highest_version(self) -> int:
        return self.API.highest if self.uses_topic_ids else FIRST_TOPIC_ID_VERSION - 1

    def write_body(self, out: FieldWriter, version: int) -> None:
        if version < 15:
            out.i32(CONSUMER_REPLICA_ID)
        out.i32(self.max_wait_ms)
        out.i32(self.min_bytes)
        out.i32(self.max_bytes)
        out.i8(self.isolation_level)
        out.i32(self.session_id)
        out.i32(self.session_epoch)
        self._write_targets(out, version)
        self._write_forgotten(out, version)
        out.string(self.rack)

    def _write_targets(self, out: FieldWriter, version: int) -> None:
        pack = _TARGET_12.pack if version >= 12 else None
        topics: dict[tuple[str, UUID | None], list[bytes]] = {}
        partitions: list[bytes] = []
        # Targets of a topic mostly follow each other, so the last one is remembered: to look up
        # its list costs 0.3 us.
        last_topic: tuple[str | None, UUID | None] = None, None
        for (topic, partition), target in self.targets.items():
            offset, epoch, topic_id, max_bytes, last_epoch = target
            if topic is not last_topic[0] or topic_id is not last_topic[1]:
                last_topic = key = topic, topic_id
                partitions = topics.setdefault(key, [])
            if pack is not None:
                packed = pack(partition, epoch, offset, last_epoch, _NO_OFFSET, max_bytes)
            else:
                packed = _TARGET_11.pack(partition, epoch, offset, _NO_OFFSET, max_bytes)
            partitions.append(packed)
        out.array(len(topics))
        for (topic, topic_id), partitions in topics.items():
            self._write_topic(out, version, topic, topic_id)
            out.array(len(partitions))
            out.data += b"".join(partitions)
            out.tags()

    def _write_forgotten(self, out: FieldWriter, version: int) -> None:
        topics: dict[tuple[str, UUID | None], list[int]] = {}
        for (topic, partition), topic_id in self.forgotten:
            topics.setdefault((topic, topic_id), []).append(partition)
        out.array(len(topics))
        for (topic, topic_id), partitions in topics.items():
            self._write_topic(out, version, topic, topic_id)
            out.array(len(partitions))
            for partition in partitions:
                out.i32(partition)
            out.tags()

    @staticmethod
    def _write_topic(out: FieldWriter, version: int, topic: str, topic_id: UUID | None) -> None:
        if version >= FIRST_TOPIC_ID_VERSION:
            out.uuid(topic_id)
        else:
            out.string(topic)

    def read_body(self, read: FieldReader, version: int) -> FetchResponse:
        throttle, error, session_id = read.i32(), read.i16(), read.i32()
        partitions: dict[TopicPartition, FetchedPartition] = {}
        read_partition = _read_partition_12 if version >= 12 else _read_partition_11
        for _ in range(read.array()):
            topic, topic_id = self._read_topic(read, version)
            count, pos = read.array(), read.pos
            for _ in range(count):
                partition, fetched, pos = read_partition(read.data, pos)
                if fetched.current_leader is not None:
                    fetched = fetched._replace(topic_id=topic_id)
                if topic is not None:
                    partitions[_tuple_new(TopicPartition, (topic, partition))] = fetched
            read.pos = pos
            read.tags()
        return FetchResponse(throttle, error, session_id, partitions)

    def _read_topic(self, read: FieldReader, version: int) -> tuple[str | None, UUID | None]:
        """Return name and id of the next topic; no name for an id that is not known."""
        if version < FIRST_TOPIC_ID_VERSION:
            return read.string(), None
        topic_id = read.uuid()
        if self.topic_names is None or topic_id is None:
            return None, topic_id
        return self.topic_names.get(topic_id), topic_id


def _read_partition_11(data: bytes, pos: int) -> tuple[int, FetchedPartition, int]:
    partition, error, high, stable, start = _PARTITION.unpack_from(data, pos)
    (count,) = _I32.unpack_from(data, pos + 30)
    pos += 34
    aborted: list[tuple[int, int]] = []
    for _ in range(count):  # -1, a null array, is none
        aborted.append(_ABORTED_11.unpack_from(data, pos))
        pos += 16
    replica, size = _LEADER.unpack_from(data, pos)  # the layout fits: two int32
    pos += 8
    end = pos + max(size, 0)
    records = data[pos:end]
    return (
        partition,
        FetchedPartition(error, high, stable, start, replica, tuple(aborted), records),
        end,
    )


def _read_partition_12(data: bytes, pos: int) -> tuple[int, FetchedPartition, int]:
    partition, error, high, stable, start = _PARTITION.unpack_from(data, pos)
    pos += 30
    aborted: tuple[tuple[int, int], ...] = ()
    if data[pos] > 1:  # the number plus one; 0 is a null array
        aborted, pos = _read_aborted_12(data, pos)
    else:
        pos += 1
    (replica,) = _I32.unpack_from(data, pos)
    size, pos = read_uvarint(data, pos + 4)
    end = pos + max(size - 1, 0)
    records = data[pos:end]
    if data[end] == 0:  # no tagged fields: the usual case
        fields = (error, high, stable, start, replica, aborted, records, None, None, None)
        return partition, _tuple_new(FetchedPartition, fields), end + 1
    tags, end = read_tags(data, end)  # 0: diverging epoch, 1: current leader, 2: snapshot id
    diverging = _DIVERGING.unpack_from(tags[0]) if 0 in tags else None
    leader = _LEADER.unpack_from(tags[1]) if 1 in tags else None
    fetched = FetchedPartition(
        error, high, stable, start, replica, aborted, records, diverging, leader
    )
    return partition, fetched, end


def _read_aborted_12(data: bytes, pos: int) -> tuple[tuple[tuple[int, int], ...], int]:
    count, pos = read_uvarint(data, pos)
    aborted: list[tuple[int, int]] = []
    for _ in range(count - 1):
        producer, first = _ABORTED_12.unpack_from(data, pos)
        tags_pos = pos + 16
        # The pad byte of the struct is the number of tagged fields. If there are any, skip them.
        pos = tags_pos + 1 if data[tags_pos] == 0 else read_tags(data, tags_pos)[1]
        aborted.append((producer, first))
    return tuple(aborted), pos


_NO_SESSION_EPOCH = -1  # a full fetch, of which the broker remembers nothing
_INITIAL_EPOCH = 0  # a full fetch that opens a session and closes the one whose id is sent
_MAX_EPOCH = 2**31 - 1  # followed by 1, since 0 would open another session


@dataclass(slots=True)
class FetchSession:
    """The partitions to fetch from one broker, and those that the broker remembers.

    It is an incremental fetch session (KIP-227). Its first fetch names every partition. The broker
    remembers them, so later fetches name only those whose offset or epoch changed, and responses
    leave out partitions without news. If the broker has forgotten the session, or a response was
    lost, the session starts over with a full fetch.

    A `FetchRound` owns one for all of its fetches; other callers create a sessionless one for each
    fetch. Only one fetch may be under way at a time, because each has its epoch in the session.
    Between fetches `_sent` is the broker's knowledge, unless the epoch says that it has none, and
    `_changed` names every partition in which `targets` and `_sent` may differ.

    Attributes:
        id: The session id that the broker chose; 0 if there is none.
        epoch: The epoch of the next fetch.
        targets: Changed by `set_target` and `forget` only, so that a fetch need not compare all.
        topic_names: The topic of each id that a response may contain.
    """

    id: int = 0
    epoch: int = _INITIAL_EPOCH
    targets: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    _sent: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    _changed: dict[TopicPartition, None] = field(default_factory=dict)
    # Partitions of topics that have no id (brokers before KIP-516).
    _without_topic_id: set[TopicPartition] = field(default_factory=set)
    _sent_by_id: bool = True  # whether the session was opened with topic ids

    @classmethod
    def create_sessionless(
        cls, targets: Mapping[TopicPartition, FetchTarget] | None = None
    ) -> Self:
        """Create one of which the broker remembers nothing, so that all fetches are full."""
        session = cls(epoch=_NO_SESSION_EPOCH)
        for tp, target in (targets or {}).items():
            session.set_target(tp, target)
        return session

    @property
    def can_use_topic_ids(self) -> bool:
        """Return whether every topic has an id. A request names all topics by id or none."""
        return not self._without_topic_id

    def set_target(self, tp: TopicPartition, target: FetchTarget) -> None:
        previous = self.targets.get(tp)
        self.targets[tp] = target
        self._changed[tp] = None
        # The usual case: only the offset moved on, and the topic id is the same object.
        if previous is not None and previous.topic_id is target.topic_id:
            return
        if target.topic_id is None:
            self._without_topic_id.add(tp)
        else:
            self._without_topic_id.discard(tp)
            self.topic_names[target.topic_id] = tp.topic

    def forget(self, tp: TopicPartition) -> None:
        del self.targets[tp]
        self._without_topic_id.discard(tp)
        self._changed[tp] = None

    def take_changes(self) -> tuple[Mapping[TopicPartition, FetchTarget], list[ForgottenPartition]]:
        """Return the new or changed targets (in a full fetch all), and the partitions to drop.

        The caller sends them, or calls `reset`.
        """
        touched, self._changed = self._changed, {}
        if self.epoch == _NO_SESSION_EPOCH:
            return self.targets, []
        if self.can_use_topic_ids != self._sent_by_id:  # fixed for the life of a session
            self._sent_by_id, self.epoch = self.can_use_topic_ids, _INITIAL_EPOCH
        if self.epoch == _INITIAL_EPOCH:
            self._sent = dict(self.targets)
            return self._sent, []
        changed: dict[TopicPartition, FetchTarget] = {}
        forgotten: list[ForgottenPartition] = []
        for tp in touched:
            sent, target = self._sent.get(tp), self.targets.get(tp)
            if sent == target:
                continue
            # A recreated topic is another one to the broker (KIP-516), so the old id is dropped.
            if sent is not None and (target is None or target.has_other_topic_id(sent)):
                forgotten.append(ForgottenPartition(tp, sent.topic_id))
            if target is None:
                del self._sent[tp]
            else:
                changed[tp] = self._sent[tp] = target
        return changed, forgotten

    def on_response(self, session_id: int) -> None:
        """Record an answer. The session id is 0 if the broker keeps no (more) sessions."""
        if self.epoch == _NO_SESSION_EPOCH:
            return
        if session_id == 0:
            self.id, self.epoch = 0, _INITIAL_EPOCH
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """Start over with a full fetch. The id stays, so that the broker closes the old session."""
        if self.epoch != _NO_SESSION_EPOCH:
            self.epoch = _INITIAL_EPOCH
