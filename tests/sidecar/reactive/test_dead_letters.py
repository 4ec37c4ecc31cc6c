"""Dead letters on their way, to a double of Kafka that says what it is told to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.delivery.delivery_queue import DeadLetterRecord
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import BrokerUnavailable, KafkaError, PartitionFailed, UnknownTopic, WritesFull
from gateway.kafka.produce.pending_records import OffsetResults, ProducerRecord, compute_partition
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.reactive import dead_letters as letters
from gateway.sidecar.reactive.dead_letters import (
    MAX_STACKTRACE_CHARS,
    DeadLetterMessage,
    DeadLetterWriter,
    parse_message,
)

MESSAGE_TOO_LARGE = 10


class FakeContext:
    """A context's part that is used. most: bytes of headers that it takes. refuses: by value."""

    def __init__(self, partition_count: int = 3, max_header_bytes: int = 1 << 20) -> None:
        self.producer = self.gzip_producer = self
        self.partition_count = partition_count
        self.max_header_bytes = max_header_bytes
        self.room = 1 << 20
        self.errors_by_value: dict[bytes, KafkaError] = {}
        self.sent_records: list[tuple[TopicPartition, bytes | None, dict[str, bytes | None]]] = []

    async def get_topic(self, name: str) -> TopicMetadata:
        if not self.partition_count:
            raise UnknownTopic(f"no broker knows the topic {name}", topic=name)
        one = PartitionMetadata(0, 0, (), (), 0)
        return TopicMetadata(name, None, 0, dict.fromkeys(range(self.partition_count), one))

    async def send_many(self, records: Sequence[ProducerRecord], **_: Any) -> OffsetResults:
        if sum(len(record.value or b"") for record in records) > self.room:
            raise WritesFull("too much waits", retry_after=1.0)
        return [self._send(record) for record in records]

    def _send(self, record: ProducerRecord) -> int | KafkaError:
        tp, _, value, headers, _ = record
        if sum(len(text or b"") for _, text in headers) > self.max_header_bytes:
            return PartitionFailed(
                "too large", topic=tp.topic, partition=tp.partition, code=MESSAGE_TOO_LARGE
            )
        if (error := self.errors_by_value.get(value or b"")) is not None:
            return error
        self.sent_records.append((tp, value, dict(headers)))
        return len(self.sent_records)


def build_dead_letters(kafka: FakeContext) -> DeadLetterWriter:
    context: Any = kafka
    return DeadLetterWriter(context, "g", ".dlq", False)


def build_dead_letter(
    value: bytes, partition: int = 0, *, reason: str = "boom", key: bytes | None = b"k"
) -> DeadLetterRecord:
    return DeadLetterRecord(
        Record(TopicPartition("orders", partition), 7, 0, 5, key, value), reason
    )


async def test_letters_keep_their_order_and_their_partitions_number():
    kafka = FakeContext()
    several = [build_dead_letter(str(n).encode(), n % 3) for n in range(9)]
    assert await build_dead_letters(kafka).write(several) == ([], "", [])
    assert [value for _, value, _ in kafka.sent_records] == [item.record.value for item in several]
    assert {(tp, int(value or b"") % 3) for tp, value, _ in kafka.sent_records} == {
        (TopicPartition("orders.dlq", n), n) for n in range(3)
    }


async def test_where_there_are_fewer_partitions_the_key_decides():
    kafka = FakeContext(partition_count=2)
    await build_dead_letters(kafka).write(
        [build_dead_letter(b"a", 5), build_dead_letter(b"b", 5, key=None)]
    )
    assert [tp.partition for tp, _, _ in kafka.sent_records] == [compute_partition(b"k", 2), 5 % 2]


async def test_dead_letters_that_kafka_refuses_are_returned_with_the_reason():
    kafka = FakeContext()
    kafka.errors_by_value[b"b"] = BrokerUnavailable("no leader")
    one, two, three = build_dead_letter(b"a"), build_dead_letter(b"b"), build_dead_letter(b"c")
    left, why, _ = await build_dead_letters(kafka).write([one, two, three])
    assert left == [two]
    assert why == "dead letters of orders-0 cannot be written: no leader"
    assert [value for _, value, _ in kafka.sent_records] == [b"a", b"c"]


async def test_none_is_written_before_one_that_the_producer_has_no_room_for():
    """The producer refuses large records first: smaller ones behind them came before them."""
    kafka = FakeContext()
    kafka.room = 100
    several = [build_dead_letter(b"a" * 150), build_dead_letter(b"b")]
    left, why, _ = await build_dead_letters(kafka).write(several)
    assert left == several
    assert "too much waits" in why
    assert not kafka.sent_records


async def test_without_their_topic_all_are_left():
    left, why, _ = await build_dead_letters(FakeContext(partition_count=0)).write(
        [build_dead_letter(b"a"), build_dead_letter(b"b")]
    )
    assert len(left) == 2
    assert "no broker knows the topic orders.dlq" in why


async def test_headers_that_make_a_record_too_large_are_left_out():
    """One that is too large nevertheless held up its partition for as long as its topic was so."""
    letters = [build_dead_letter(b"a", reason="x" * 5000)]
    kafka = FakeContext(max_header_bytes=500)
    assert await build_dead_letters(kafka).write(letters) == ([], "", [])
    ((_, _, headers),) = kafka.sent_records
    assert headers["StackTrace"] == b"(too long for the topic)"

    kafka = FakeContext(max_header_bytes=20)
    assert await build_dead_letters(kafka).write(letters) == ([], "", [])
    ((_, _, headers),) = kafka.sent_records
    assert headers == {
        "X-Origin-Topic": b"orders", "X-Origin-Partition": b"0", "X-Origin-Offset": b"7",
        "X-Origin-Timestamp": b"5", "X-Consumer-Group": b"g", "X-Dead-Letter-Retries": b"0",
    }  # fmt: skip

    kafka = FakeContext(max_header_bytes=10)
    assert await build_dead_letters(kafka).write(letters) == ([], "", letters)


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
content = st.none() | st.binary(max_size=20)
ours = st.sampled_from(
    [letters.ORIGIN_TOPIC_HEADER, letters.STACKTRACE_HEADER, letters.CORRELATION_HEADER]
)
letter = st.builds(
    DeadLetterMessage,
    st.builds(TopicPartition, st.sampled_from(["orders", "pay.ments"]), st.integers(0, 99)),
    st.integers(0, 1 << 60),
    st.integers(-1, 1 << 42),
    content,
    content,
    st.lists(st.tuples(ours | text, content), max_size=6).map(tuple),
    text,
    text,
    text,
    text,
    st.integers(0, 9),
)


@given(letter)
def test_a_parsed_dead_letter_has_the_record_unchanged_with_any_headers(sent):
    assert parse_message(read_back(sent)) == sent


def test_headers_that_repeat_stay_and_what_became_of_it_stands_behind_them():
    sent = DeadLetterMessage(
        TopicPartition("orders", 3), 41, 1700000000000, b"k", b"v",
        (("a", b"1"), ("a", b"2")), "billing", "Boom at line 1", "corr", "trace",
    )  # fmt: skip
    assert sent.to_headers() == [
        ("a", b"1"),
        ("a", b"2"),
        ("X-Origin-Topic", b"orders"),
        ("X-Origin-Partition", b"3"),
        ("X-Origin-Offset", b"41"),
        ("X-Origin-Timestamp", b"1700000000000"),
        ("X-Consumer-Group", b"billing"),
        ("X-Dead-Letter-Retries", b"0"),
        ("X-Correlation-Id", b"corr"),
        ("X-Traceability-Id", b"trace"),
        ("StackTrace", b"Boom at line 1"),
    ]


def test_a_record_of_somebody_else_is_no_letter():
    tp = TopicPartition("orders.dlq", 0)
    assert parse_message(Record(tp, 0, 0, 0, b"k", b"v", [("StackTrace", b"x")])) is None
    assert parse_message(Record(tp, 0, 0, 0, b"k", b"v", [("X-Origin-Topic", b"orders")])) is None


@pytest.mark.parametrize(
    ("header", "bits"),
    [
        (letters.ORIGIN_PARTITION_HEADER, 32),
        (letters.ORIGIN_OFFSET_HEADER, 64),
        (letters.ORIGIN_TIMESTAMP_HEADER, 64),
        (letters.RETRIES_HEADER, 32),
    ],
)
def test_a_number_that_kafka_cannot_have_written_is_no_letter(header, bits):
    """Each listing of the topic was a 500: JSON has no integers of more than 64 bits."""
    tp = TopicPartition("orders.dlq", 0)
    sent = DeadLetterMessage(tp, 7, 5, b"k", b"v", (), "g", "")
    for number, is_letter in ((2 ** (bits - 1) - 1, True), (2 ** (bits - 1), False)):
        headers = [*{**dict(sent.to_headers()), header: str(number).encode()}.items()]
        parsed = parse_message(Record(tp, 0, 0, 0, b"k", b"v", headers))
        assert (parsed is not None) == is_letter


def test_a_long_stack_trace_keeps_its_head_and_its_end():
    short = letters.shorten_stacktrace("first" + "x" * 100_000 + "last")
    assert len(short) <= MAX_STACKTRACE_CHARS
    assert short.startswith("first") and short.endswith("last")


def read_back(sent: DeadLetterMessage) -> Record:
    tp = TopicPartition("orders.dlq", 0)
    return Record(tp, 7, 0, 5, sent.key, sent.value, sent.to_headers())
