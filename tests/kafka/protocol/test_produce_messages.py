"""Bytes written down from the message JSON files of Apache Kafka 4.3 (ProduceRequest versions 7
and 8, InitProducerId version 1), not made by the code under test."""

from __future__ import annotations

from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch
from gateway.kafka.protocol.topic_messages import (
    AppendResult,
    InitProducerIdRequest,
    ProduceRequest,
)


def test_partitions_of_a_topic_are_sent_together_with_acks_of_all():
    request = ProduceRequest(
        {TopicPartition("t", 0): b"AB", TopicPartition("u", 5): b"C", TopicPartition("t", 3): b""},
        timeout_ms=4000,
    )
    assert request.encode(7) == bytes.fromhex(
        "ffff ffff 00000fa0 00000002"
        "0001 74 00000002 00000000 00000002 4142 00000003 00000000"
        "0001 75 00000001 00000005 00000001 43"
    )


def test_every_partition_has_its_own_word():
    data = bytes.fromhex(
        "00000001 0001 74 00000002"
        "00000000 0000 0000000000000029 ffffffffffffffff 0000000000000000"
        "00000003 000a ffffffffffffffff ffffffffffffffff ffffffffffffffff"
        "00000007"
    )
    answer = ProduceRequest({}, 0).decode(7, b"head" + data, 4)
    assert answer.throttle_ms == 7
    assert answer.partitions == {
        TopicPartition("t", 0): AppendResult(0, 41),
        TopicPartition("t", 3): AppendResult(10, -1),
    }


def test_the_records_are_named_because_of_which_a_batch_is_refused():
    data = bytes.fromhex(
        "00000001 0001 74 00000002"
        "00000000 0020 ffffffffffffffff ffffffffffffffff ffffffffffffffff"
        "00000002 00000001 0003 6f6c64 00000004 ffff 0003 626164"
        "00000003 0000 0000000000000029 ffffffffffffffff 0000000000000000 00000000 ffff"
        "00000007"
    )
    answer = ProduceRequest({}, 0).decode(8, data, 0)
    assert answer.throttle_ms == 7
    assert answer.partitions == {
        TopicPartition("t", 0): AppendResult(32, -1, {1: "old", 4: ""}),
        TopicPartition("t", 3): AppendResult(0, 41),
    }


def test_a_producer_id_is_asked_for_without_transactions():
    request = InitProducerIdRequest()
    assert request.encode(1) == bytes.fromhex("ffff 7fffffff")
    data = bytes.fromhex("00000000 0000 00000000000003e8 0002")
    assert request.decode(1, data, 0) == (0, 0, ProducerIdAndEpoch(1000, 2))
