from __future__ import annotations

import struct

import pytest

from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.topic_messages import (
    EpochEnd,
    LeaderQuery,
    ListOffsetsRequest,
    OffsetAndTimestamp,
    OffsetForLeaderEpochRequest,
)

ONE, TWO = TopicPartition("orders", 1), TopicPartition("orders", 2)


def test_list_offsets_asks_as_kafka_wants_it():
    request = ListOffsetsRequest({ONE: LeaderQuery(-1, 7), TWO: LeaderQuery(99, 8)}, 1)
    old = struct.pack(">ibih6si", -1, 1, 1, 6, b"orders", 2)
    old += struct.pack(">iiq", 1, 7, -1) + struct.pack(">iiq", 2, 8, 99)
    assert request.encode(4) == request.encode(5) == old
    new = struct.pack(">ib", -1, 1) + b"\2\7orders\3"
    new += struct.pack(">iiqx", 1, 7, -1) + struct.pack(">iiqx", 2, 8, 99) + b"\0\0"
    assert request.encode(6) == request.encode(7) == new


@pytest.mark.parametrize("version", [4, 5, 6, 7])
def test_list_offsets_answers_are_read(version: int):
    row = struct.pack(">ihqqi", 1, 0, 1700, 42, 7)
    if version < 6:
        raw = struct.pack(">iih6si", 5, 1, 6, b"orders", 1) + row
    else:
        raw = struct.pack(">i", 5) + b"\2\7orders\2" + row + b"\0\0\0"
    answer = ListOffsetsRequest({}).decode(version, raw, 0)
    assert answer == (5, {ONE: OffsetAndTimestamp(42, 1700, 7)})


@pytest.mark.parametrize(("version", "replica"), [(2, b""), (3, b"\xff" * 4)])
def test_epoch_ends_asks_as_kafka_wants_it(version: int, replica: bytes):
    expected = replica + struct.pack(">ih6siiii", 1, 6, b"orders", 1, 1, 9, 4)
    assert OffsetForLeaderEpochRequest({ONE: LeaderQuery(4, 9)}).encode(version) == expected


def test_epoch_ends_is_flexible_from_version_4():
    expected = b"\xff" * 4 + b"\2\7orders\2" + struct.pack(">iiix", 1, 9, 4) + b"\0\0"
    assert OffsetForLeaderEpochRequest({ONE: LeaderQuery(4, 9)}).encode(4) == expected


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epoch_ends_answers_are_read(version: int):
    row = struct.pack(">hiiq", 0, 1, 4, 420)
    if version < 4:
        raw = struct.pack(">iih6si", 0, 1, 6, b"orders", 1) + row
    else:
        raw = struct.pack(">i", 0) + b"\2\7orders\2" + row + b"\0\0\0"
    assert OffsetForLeaderEpochRequest({}).decode(version, raw, 0) == (
        0,
        {ONE: EpochEnd(4, 420)},
    )
