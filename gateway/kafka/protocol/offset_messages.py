"""ListOffsets and OffsetForLeaderEpoch: where logs begin, end, and changed hands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

from .codec import Reader, Writer, by_topic
from .requests import CONSUMER, Request, Versions


class OffsetAsked(NamedTuple):
    """`spec`: -1 latest, -2 earliest, or milliseconds of a record timestamp."""

    spec: int
    leader_epoch: int


class OffsetAnswer(NamedTuple):
    """`offset` -1: no record is that late. `timestamp` -1 for latest and earliest."""

    error: int
    timestamp: int
    offset: int
    epoch: int


class OffsetsAnswer(NamedTuple):
    throttle_ms: int
    offsets: dict[TopicPartition, OffsetAnswer]


@dataclass(slots=True)
class ListOffsetsRequest(Request[OffsetsAnswer]):
    """Where logs begin and end, or the first offset at or after a time."""

    API = 2
    NAME = "ListOffsets"
    SPOKEN = Versions(4, 7, 6)

    asked: Mapping[TopicPartition, OffsetAsked]
    isolation: int = 1

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        out.i32(CONSUMER)
        out.i8(self.isolation)
        topics = by_topic(self.asked)
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

    def decode(self, version: int, data: bytes, pos: int) -> OffsetsAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle = read.i32()
        offsets = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                tp = TopicPartition(topic, read.i32())
                offsets[tp] = OffsetAnswer(read.i16(), read.i64(), read.i64(), read.i32())
                read.tags()
            read.tags()
        return OffsetsAnswer(throttle, offsets)


class EpochAsked(NamedTuple):
    epoch: int
    leader_epoch: int


class EpochAnswer(NamedTuple):
    """The largest epoch not above the one asked for, and where it ends; -1: unknown."""

    error: int
    epoch: int
    end_offset: int


class EpochsAnswer(NamedTuple):
    throttle_ms: int
    ends: dict[TopicPartition, EpochAnswer]


@dataclass(slots=True)
class EpochEndsRequest(Request[EpochsAnswer]):
    """OffsetForLeaderEpoch (KIP-320): where a leader's reign ended."""

    API = 23
    NAME = "OffsetForLeaderEpoch"
    SPOKEN = Versions(2, 4, 4)

    asked: Mapping[TopicPartition, EpochAsked]

    def encode(self, version: int) -> bytes:
        out = Writer(version >= self.SPOKEN.flexible)
        if version >= 3:
            out.i32(CONSUMER)
        topics = by_topic(self.asked)
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

    def decode(self, version: int, data: bytes, pos: int) -> EpochsAnswer:
        read = Reader(data, pos, version >= self.SPOKEN.flexible)
        throttle = read.i32()
        ends = {}
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                error, partition = read.i16(), read.i32()
                ends[TopicPartition(topic, partition)] = EpochAnswer(error, read.i32(), read.i64())
                read.tags()
            read.tags()
        return EpochsAnswer(throttle, ends)
