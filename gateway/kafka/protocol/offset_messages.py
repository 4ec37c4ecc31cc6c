"""ListOffsets and OffsetForLeaderEpoch: where logs begin, end, and changed hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

from .codec import FieldReader, FieldWriter, group_by_topic
from .requests import CONSUMER_REPLICA_ID, KafkaRequest, VersionRange


class OffsetQuery(NamedTuple):
    """`spec`: -1 latest, -2 earliest, or milliseconds of a record timestamp."""

    spec: int
    leader_epoch: int


class OffsetResult(NamedTuple):
    """`offset` -1: no record is that late. `timestamp` -1 for latest and earliest."""

    error: int
    timestamp: int
    offset: int
    epoch: int


class ListOffsetsResponse(NamedTuple):
    throttle_ms: int
    offsets: dict[TopicPartition, OffsetResult]


@dataclass(slots=True)
class ListOffsetsRequest(KafkaRequest[ListOffsetsResponse]):
    """Where logs begin and end, or the first offset at or after a time."""

    API_KEY = 2
    NAME = "ListOffsets"
    VERSIONS = VersionRange(4, 7, 6)

    queries: Mapping[TopicPartition, OffsetQuery]
    isolation_level: int = 1

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.i32(CONSUMER_REPLICA_ID)
        out.i8(self.isolation_level)
        topics = group_by_topic(self.queries)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, (spec, epoch) in partitions:
                out.i32(partition)
                out.i32(epoch)
                out.i64(spec)
                out.tags()
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> ListOffsetsResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle = read.i32()
        offsets = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                tp = TopicPartition(topic, read.i32())
                offsets[tp] = OffsetResult(read.i16(), read.i64(), read.i64(), read.i32())
                read.tags()
            read.tags()
        return ListOffsetsResponse(throttle, offsets)


class EpochQuery(NamedTuple):
    epoch: int
    leader_epoch: int


class EpochEndOffset(NamedTuple):
    """The largest epoch not above the one asked for, and where it ends; -1: unknown."""

    error: int
    epoch: int
    end_offset: int


class OffsetForLeaderEpochResponse(NamedTuple):
    throttle_ms: int
    end_offsets: dict[TopicPartition, EpochEndOffset]


@dataclass(slots=True)
class OffsetForLeaderEpochRequest(KafkaRequest[OffsetForLeaderEpochResponse]):
    """OffsetForLeaderEpoch (KIP-320): where a leader's reign ended."""

    API_KEY = 23
    NAME = "OffsetForLeaderEpoch"
    VERSIONS = VersionRange(2, 4, 4)

    queries: Mapping[TopicPartition, EpochQuery]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        if version >= 3:
            out.i32(CONSUMER_REPLICA_ID)
        topics = group_by_topic(self.queries)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, (epoch, leader_epoch) in partitions:
                out.i32(partition)
                out.i32(leader_epoch)
                out.i32(epoch)
                out.tags()
            out.tags()
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> OffsetForLeaderEpochResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle = read.i32()
        ends = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                error, partition = read.i16(), read.i32()
                ends[TopicPartition(topic, partition)] = EpochEndOffset(
                    error, read.i32(), read.i64()
                )
                read.tags()
            read.tags()
        return OffsetForLeaderEpochResponse(throttle, ends)
