"""FindCoordinator, ConsumerGroupHeartbeat, OffsetCommit and OffsetFetch.

Down to what Kafka 2.3 speaks, for members of the classic protocol. From OffsetCommit 9 on the
generation may be a member's epoch (KIP-848), from 10 on topics go by id, so that an offset of a
topic that was deleted is never taken for one of its successor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from gateway.core.group.consumer_member import Beat, BeatAnswer, Place
from gateway.core.group.member import NO_EPOCH, Ask, Identity
from gateway.core.log.record import TopicPartition

from .codec import Reader, Writer, by_topic
from .requests import Request, Versions

BY_ID = 10  # from this version on OffsetCommit names topics by id
NOBODY = Identity("", NO_EPOCH)
_GROUP = 0  # the type of a coordinator's key
_BATCHED = 4  # from this version on FindCoordinator has many keys
_GROUPS = 8  # from this version on OffsetFetch has many groups


class CoordinatorAnswer(NamedTuple):
    """`node` -1: there is none now."""

    throttle_ms: int
    error: int
    message: str | None
    node: int
    host: str
    port: int


@dataclass(slots=True)
class FindCoordinatorRequest(Request[CoordinatorAnswer]):
    """Which broker coordinates a group, or another kind of key."""

    API = 10
    NAME = "FindCoordinator"
    SPOKEN = Versions(1, 6, 3)

    group: str
    kind: int = _GROUP

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        if version < _BATCHED:
            out.string(self.group)
        out.i8(self.kind)
        if version >= _BATCHED:
            out.array(1)
            out.string(self.group)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> CoordinatorAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle = read.i32()
        if version < _BATCHED:
            error, message = read.i16(), read.string()
            node, host, port = read.i32(), read.string() or "", read.i32()
            return CoordinatorAnswer(throttle, error, message, node, host, port)
        if read.array() != 1:
            raise ValueError("not the one coordinator that was asked for")
        read.string()
        node, host, port = read.i32(), read.string() or "", read.i32()
        return CoordinatorAnswer(throttle, read.i16(), read.string(), node, host, port)


@dataclass(slots=True)
class HeartbeatRequest(Request[BeatAnswer]):
    """ConsumerGroupHeartbeat (KIP-848)."""

    API = 68
    NAME = "ConsumerGroupHeartbeat"
    SPOKEN = Versions(0, 1, 0)

    beat: Beat

    def encode(self, version: int) -> bytes:
        beat, out = self.beat, Writer(True)
        out.string(beat.group)
        out.string(beat.member_id)
        out.i32(beat.epoch)
        out.string(beat.instance_id)
        out.string(None)  # rack
        timeout = beat.rebalance_timeout
        out.i32(-1 if timeout is None else int(timeout * 1000))
        _strings(out, beat.topics)
        if version >= 1:
            out.string(None)  # subscribed topic regex: names are matched here, for both protocols
        out.string(None)  # server assignor: the broker's choice
        self._owned(out, beat.owned)
        out.tags()
        return bytes(out.data)

    @staticmethod
    def _owned(out: Writer, owned: frozenset[Place] | None) -> None:
        if owned is None:
            out.array(-1)
            return
        topics: dict[UUID, list[int]] = {}
        for topic, partition in sorted(owned):
            topics.setdefault(topic, []).append(partition)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.uuid(topic)
            _ints(out, partitions)
            out.tags()

    def decode(self, version: int, data: bytes, pos: int) -> BeatAnswer:
        read = Reader(data, pos, True)
        throttle, error, message = read.i32(), read.i16(), read.string()
        member_id, epoch, interval = read.string(), read.i32(), read.i32()
        assignment: dict[UUID, frozenset[int]] | None = None
        if read.i8() >= 0:
            assignment = {}
            for _ in range(read.array()):
                topic = read.uuid()
                partitions = frozenset(read.ints())
                read.tags()
                if topic is not None:
                    assignment[topic] = partitions
            read.tags()
        return BeatAnswer(error, message, member_id, epoch, interval / 1000, assignment, throttle)


class Committed(NamedTuple):
    """An offset as it is committed. epoch: of the record before it, -1 unknown."""

    offset: int
    epoch: int = -1
    metadata: str | None = ""


class CommitAnswer(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]


@dataclass(slots=True)
class OffsetCommitRequest(Request[CommitAnswer]):
    """ids: of topics; where one is missing the request goes by names.

    identity: NOBODY for who is no member, and then only while the group has none.
    """

    API = 8
    NAME = "OffsetCommit"
    SPOKEN = Versions(7, 10, 8)

    group: str
    offsets: Mapping[TopicPartition, Committed]
    identity: Identity
    ids: Mapping[str, UUID]

    def version(self, versions: Mapping[int, tuple[int, int]]) -> int:
        version = Request.version(self, versions)  # slots forbid super()
        by_id = all(tp.topic in self.ids for tp in self.offsets)
        return version if by_id else min(version, BY_ID - 1)

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        out.string(self.group)
        out.i32(self.identity.epoch)
        out.string(self.identity.member_id)
        out.string(self.identity.instance_id)
        topics = by_topic(self.offsets)
        out.array(len(topics))
        for topic, partitions in topics.items():
            _name(out, topic, self.ids, version >= BY_ID)
            out.array(len(partitions))
            for partition, committed in partitions:
                out.i32(partition)
                out.i64(committed.offset)
                out.i32(committed.epoch)
                out.string(committed.metadata)
                out.tags()
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> CommitAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        names = {id: name for name, id in self.ids.items()}
        throttle, errors = read.i32(), dict[TopicPartition, int]()
        for _ in range(read.array()):
            topic = _topic(read, names, version >= BY_ID)
            for _ in range(read.array()):
                partition, error = read.i32(), read.i16()
                errors[TopicPartition(topic, partition)] = error
                read.tags()
            read.tags()
        return CommitAnswer(throttle, errors)


class OffsetsFetched(NamedTuple):
    """error: of the group. offsets: what is committed, or an error code; absent: nothing is."""

    throttle_ms: int
    error: int
    offsets: dict[TopicPartition, Committed | int]


@dataclass(slots=True)
class OffsetFetchRequest(Request[OffsetsFetched]):
    """What a group has committed of `tps`, None for all there is.

    stable: where a transaction may yet change it, an error (UNSTABLE_OFFSET_COMMIT, KIP-447).
    """

    API = 9
    NAME = "OffsetFetch"
    SPOKEN = Versions(5, 9, 6)

    group: str
    tps: Collection[TopicPartition] | None = None
    stable: bool = True

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        if version >= _GROUPS:
            out.array(1)
        out.string(self.group)
        if version >= 9:
            out.string(None)  # of no member: what is committed is not fenced
            out.i32(NO_EPOCH)
        self._topics(out)
        if version >= _GROUPS:
            out.tags()
        if version >= 7:
            out.i8(self.stable)
        out.tags()
        return bytes(out.data)

    def _topics(self, out: Writer) -> None:
        if self.tps is None:
            out.array(-1)
            return
        topics = by_topic(dict.fromkeys(self.tps))
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            _ints(out, [partition for partition, _ in partitions])
            out.tags()

    def decode(self, version: int, data: bytes, pos: int) -> OffsetsFetched:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle, offsets = read.i32(), dict[TopicPartition, Committed | int]()
        if version >= _GROUPS:
            if read.array() != 1:
                raise ValueError("not the one group that was asked for")
            read.string()
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                partition, found = read.i32(), Committed(read.i64(), read.i32(), read.string())
                error = read.i16()
                read.tags()
                if error or found.offset >= 0:
                    offsets[TopicPartition(topic, partition)] = error or found
            read.tags()
        return OffsetsFetched(throttle, read.i16(), offsets)


REQUESTS: Mapping[type[Ask], type[Request[Any]]] = {Beat: HeartbeatRequest}


def _strings(out: Writer, values: Collection[str] | None) -> None:
    out.array(-1 if values is None else len(values))
    for value in values or ():
        out.string(value)


def _ints(out: Writer, values: Collection[int]) -> None:
    out.array(len(values))
    for value in values:
        out.i32(value)


def _name(out: Writer, topic: str, ids: Mapping[str, UUID], by_id: bool) -> None:
    if by_id:
        out.uuid(ids[topic])
    else:
        out.string(topic)


def _topic(read: Reader, names: Mapping[UUID, str], by_id: bool) -> str:
    if not by_id:
        return read.string() or ""
    topic = read.uuid()
    return names.get(topic, "") if topic is not None else ""
