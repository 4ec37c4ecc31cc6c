"""What a transactional writer says beside its records (KIP-98).

In versions before the flexible ones: every broker since 2.3 speaks them, and what later ones add
(members of groups, epochs that grow with every transaction) is not needed by whoever has a
transactional id to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import Producer

from .codec import Reader, Writer, by_topic, partition_errors
from .requests import Request, Versions


class Said(NamedTuple):
    """Kafka's code for all that was asked."""

    throttle_ms: int
    error: int


class PartitionsSaid(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]


class Identity(NamedTuple):
    """Who writes."""

    id: str
    producer: Producer


@dataclass(slots=True)
class AddPartitionsRequest(Request[PartitionsSaid]):
    """AddPartitionsToTxn: what will be written to."""

    API = 24
    NAME = "AddPartitionsToTxn"
    SPOKEN = Versions(0, 2, 3)

    writer: Identity
    tps: Collection[TopicPartition]

    def encode(self, version: int) -> bytes:
        out = Writer(flexible=False)
        _writer(out, self.writer)
        topics = by_topic(dict.fromkeys(self.tps))
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, _ in partitions:
                out.i32(partition)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> PartitionsSaid:
        return _partitions_said(data, pos)


@dataclass(slots=True)
class AddOffsetsRequest(Request[Said]):
    """AddOffsetsToTxn: the group whose offsets will be committed."""

    API = 25
    NAME = "AddOffsetsToTxn"
    SPOKEN = Versions(0, 2, 3)

    writer: Identity
    group: str

    def encode(self, version: int) -> bytes:
        out = Writer(flexible=False)
        _writer(out, self.writer)
        out.string(self.group)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> Said:
        read = Reader(data, pos, flexible=False)
        return Said(read.i32(), read.i16())


@dataclass(slots=True)
class CommitOffsetsRequest(Request[PartitionsSaid]):
    """TxnOffsetCommit: to the group's coordinator; there with the transaction."""

    API = 28
    NAME = "TxnOffsetCommit"
    SPOKEN = Versions(0, 2, 3)

    writer: Identity
    group: str
    offsets: Mapping[TopicPartition, int]

    def encode(self, version: int) -> bytes:
        out = Writer(flexible=False)
        out.string(self.writer.id)
        out.string(self.group)
        out.i64(self.writer.producer.id)
        out.i16(self.writer.producer.epoch)
        topics = by_topic(self.offsets)
        out.array(len(topics))
        for topic, partitions in topics.items():
            out.string(topic)
            out.array(len(partitions))
            for partition, offset in partitions:
                out.i32(partition)
                out.i64(offset)
                if version >= 2:
                    out.i32(-1)  # the leader epoch is not known
                out.string("")
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> PartitionsSaid:
        return _partitions_said(data, pos)


@dataclass(slots=True)
class EndRequest(Request[Said]):
    """EndTxn: all of it is there now, or nothing."""

    API = 26
    NAME = "EndTxn"
    SPOKEN = Versions(0, 2, 3)

    writer: Identity
    commit: bool

    def encode(self, version: int) -> bytes:
        out = Writer(flexible=False)
        _writer(out, self.writer)
        out.i8(self.commit)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> Said:
        read = Reader(data, pos, flexible=False)
        return Said(read.i32(), read.i16())


def _writer(out: Writer, writer: Identity) -> None:
    out.string(writer.id)
    out.i64(writer.producer.id)
    out.i16(writer.producer.epoch)


def _partitions_said(data: bytes, pos: int) -> PartitionsSaid:
    read = Reader(data, pos, flexible=False)
    return PartitionsSaid(read.i32(), partition_errors(read))
