"""Define ListOffsets and OffsetForLeaderEpoch, which look up ends of logs and of leader epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

from .codec import FieldReader, FieldWriter, write_partitions
from .requests import CONSUMER_REPLICA_ID, KafkaRequest, VersionRange


class OffsetQuery(NamedTuple):
    """The offset to look up: -1 for the latest, -2 for the earliest, or a time in ms.

    The broker refuses a leader epoch that is not its own.
    """

    spec: int
    leader_epoch: int


class OffsetResult(NamedTuple):
    error: int
    timestamp: int
    offset: int
    epoch: int


class ListOffsetsResponse(NamedTuple):
    throttle_ms: int
    offsets: dict[TopicPartition, OffsetResult]


@dataclass(slots=True)
class ListOffsetsRequest(KafkaRequest[ListOffsetsResponse]):
    """Ask a leader for an end of its logs, or for the first offset at or after a time.

    With isolation level 1 (READ_COMMITTED), the latest offset is the last stable offset.
    """

    API_KEY = 2
    NAME = "ListOffsets"
    VERSIONS = VersionRange(4, 7, 6)

    queries: Mapping[TopicPartition, OffsetQuery]
    isolation_level: int = 1

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        out.i32(CONSUMER_REPLICA_ID)
        out.i8(self.isolation_level)
        for spec, epoch in write_partitions(out, self.queries):
            # The epoch lets the broker refuse when it is no longer (or not yet) the leader.
            out.i32(epoch)
            out.i64(spec)
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
    """The epoch whose end to look up; `leader_epoch` is that of the metadata."""

    epoch: int
    leader_epoch: int


class EpochEndOffset(NamedTuple):
    error: int
    epoch: int
    end_offset: int


class OffsetForLeaderEpochResponse(NamedTuple):
    throttle_ms: int
    end_offsets: dict[TopicPartition, EpochEndOffset]


@dataclass(slots=True)
class OffsetForLeaderEpochRequest(KafkaRequest[OffsetForLeaderEpochResponse]):
    """Ask a leader where leader epochs ended in its logs (KIP-320)."""

    API_KEY = 23
    NAME = "OffsetForLeaderEpoch"
    VERSIONS = VersionRange(2, 4, 4)

    queries: Mapping[TopicPartition, EpochQuery]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(version >= self.VERSIONS.first_flexible)
        if version >= 3:
            out.i32(CONSUMER_REPLICA_ID)
        for epoch, leader_epoch in write_partitions(out, self.queries):
            out.i32(leader_epoch)
            out.i32(epoch)
        out.tags()
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> OffsetForLeaderEpochResponse:
        read = FieldReader(data, pos, version >= self.VERSIONS.first_flexible)
        throttle = read.i32()
        ends = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                # Unlike in ListOffsets, the error is before the partition.
                error, partition = read.i16(), read.i32()
                ends[TopicPartition(topic, partition)] = EpochEndOffset(
                    error, read.i32(), read.i64()
                )
                read.tags()
            read.tags()
        return OffsetForLeaderEpochResponse(throttle, ends)
