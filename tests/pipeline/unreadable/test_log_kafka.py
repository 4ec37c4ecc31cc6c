"""Unreadable records as librdkafka reads them, from a real Kafka; without Spark."""

from __future__ import annotations

import pytest
from support.brokers import KafkaCluster
from support.raw_produce import produce_raw
from support.record_sets import BatchRecord

from gateway.pipeline.unreadable.records import find_next_unreadable, read_run

pytestmark = pytest.mark.night

ANY_TIME = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
BEYOND = 2**60


@pytest.mark.parametrize("name", [b"caf\xe9", b"\xed\xa0\x80"])
def test_names_of_headers_may_be_any_bytes(kafka: KafkaCluster, name: bytes):
    """confluent_kafka raised SystemError for any record with such a header: the job failed."""
    topic = kafka.create_unique_topic(configs=ANY_TIME)
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    headers = [(name, b"1")]
    items = [
        BatchRecord(0, b"a", b"k", 1, headers),
        BatchRecord(1, b"b", b"k", BEYOND, headers),
        BatchRecord(2, b"c", b"k", BEYOND, [(b"h", b"1")]),
        BatchRecord(3, b"d", b"k", 1, headers),
    ]
    produce_raw(kafka.bootstrap_servers, topic, 0, items)
    assert find_next_unreadable(client, topic, 0, 0, 4) == 1
    assert find_next_unreadable(client, topic, 0, 3, 4) is None
    (found,) = read_run(client, topic, 0, 1)
    assert [(each.value, each.headers, each.has_unreadable_headers) for each in found] == [
        (b"b", [], True),
        (b"c", [("h", b"1")], False),
    ]


def test_many_records_with_such_names_are_read_one_after_the_other(kafka: KafkaCluster):
    """The error of one was raised later, by another call, once Python had specialised the first."""
    topic = kafka.create_unique_topic(configs=ANY_TIME)
    items = [BatchRecord(each, b"v", b"k", BEYOND, [(b"caf\xe9", b"1")]) for each in range(300)]
    produce_raw(kafka.bootstrap_servers, topic, 0, items)
    found = [
        each
        for chunk in read_run({"bootstrap.servers": kafka.bootstrap_servers}, topic, 0, 0)
        for each in chunk
    ]
    assert [(each.offset, each.has_unreadable_headers) for each in found] == [
        (n, True) for n in range(300)
    ]
