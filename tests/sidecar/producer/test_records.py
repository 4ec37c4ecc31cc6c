from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from support.waiting import TurnCounter, wait_until

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import PartitionFailed
from gateway.formats.codec import EncodedData, SchemaNotLoaded, SerializationFormat
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.requests import RequestIds
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.producer.records import (
    EncodedRecords,
    FieldEncoding,
    RecordEncoder,
    build_body,
    build_response,
    check_answer_size,
    describe_results,
)
from gateway.sidecar.producer.transactions import build_failures
from gateway.sidecar.turns import TURN_S, take_turns

TOPIC = TopicMetadata("t", None, 0, {0: PartitionMetadata(0, 1, (), (), 0)})
ENCODINGS = [FieldEncoding(SerializationFormat.STRING), FieldEncoding(SerializationFormat.AVRO)]


class SlowCodecs:
    def __init__(self) -> None:
        self.encoded = 0

    def encode_cached(self, *args: Any) -> EncodedData:
        time.sleep(TURN_S)
        self.encoded += 1
        return EncodedData(b"")


async def encode(codecs: Any, count: int, held: list[int] | None = None) -> EncodedRecords:
    held = [] if held is None else held
    async with take_turns() as turns:
        return await RecordEncoder(codecs, 4500).encode(
            turns, TOPIC, [{"value": 1}] * count, ENCODINGS, RequestIds("a", "b", "c"), held.append
        )


async def test_other_tasks_run_while_many_records_are_encoded():
    """Values whose schemas have many branches take 0.5 s each: one request held up all others."""
    with TurnCounter() as turns:
        await encode(SlowCodecs(), 10)
    assert turns.count >= 8


async def test_what_is_encoded_counts_while_others_have_their_turn():
    """150 requests whose schema has a default of 90 KB exceeded `memory` six times."""

    class CodecsWithDefaults(SlowCodecs):
        def encode_cached(self, *args: Any) -> EncodedData:
            super().encode_cached()
            return EncodedData(bytes(1000))

    held: list[int] = []
    encoded = await encode(CodecsWithDefaults(), 3, held)
    assert held[-2:] == [1000, 2000] and encoded.size == 3000


async def test_requests_take_turns_and_a_new_one_is_next():
    """60 requests each took 20 ms of every turn of the event loop, which were 1.2 s together."""
    codecs = SlowCodecs()
    requests = [asyncio.create_task(encode(codecs, 5)) for _ in range(10)]
    with TurnCounter() as turns:
        await wait_until(lambda: codecs.encoded >= 15)
        before = codecs.encoded
        await encode(codecs, 1)
        assert codecs.encoded <= before + 3
        await asyncio.gather(*requests)
    assert turns.count >= codecs.encoded - 5


async def test_a_request_that_is_cancelled_or_waits_for_a_schema_has_no_turn():
    class WaitingCodecs(SlowCodecs):
        def encode_cached(self, *args: Any) -> EncodedData:
            raise SchemaNotLoaded

        async def load_encoder(self, *args: Any) -> Any:
            await asyncio.Event().wait()

    waiting = asyncio.create_task(encode(WaitingCodecs(), 1))
    cancelled = asyncio.create_task(encode(SlowCodecs(), 1000))
    await encode(SlowCodecs(), 2)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await encode(SlowCodecs(), 2)
    assert not waiting.done()
    waiting.cancel()


async def test_records_beyond_what_a_request_may_become_are_refused():
    """A default of a schema counted for each value alone: a body of 726 KB took 1.4 GB."""

    class CodecsWithDefaults:
        def encode_cached(self, *args: Any) -> EncodedData:
            return EncodedData(bytes(1000))

    encoded = await encode(CodecsWithDefaults(), 7)
    assert encoded.indexes == [0, 1, 2, 3, 4]
    assert [*encoded.failures] == [5, 6]
    assert encoded.failures[5] == (
        413, "records[5]: the records before it come to 5000 bytes; send fewer at once"
    )  # fmt: skip


def encode_records(count: int) -> EncodedRecords:
    record = ProducerRecord(TopicPartition("orders", 0), None, b"v", (), 1)
    return EncodedRecords(count, [record] * count, list(range(count)))


def test_an_answer_that_is_too_large_to_be_remembered_is_refused_before_the_records_are_written():
    """Its record was refused by Kafka, at each attempt, after the records were in their topic."""
    check_answer_size(encode_records(20_000))
    with pytest.raises(StatusError, match="40000 records") as refused:
        check_answer_size(encode_records(40_000))
    assert refused.value.status == 413


def test_records_are_refused_like_the_answer_that_shares_their_transaction():
    """No record was to blame, and looking for the one that was ended in a 500."""
    refused = PartitionFailed(
        "too large", topic="remembered", partition=1, code=ErrorCode.MESSAGE_TOO_LARGE
    )
    encoded = encode_records(2)
    results = describe_results(encoded, build_failures(encoded.items, refused))
    assert build_response(build_body(results, encoded.schema_ids)).status_code == 413
