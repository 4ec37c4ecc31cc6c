from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from support.waiting import TurnCounter, wait_until

from gateway.formats.codec import EncodedData, SchemaNotLoaded, SerializationFormat
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.ids import RequestIds
from gateway.sidecar.producer.encoding import EncodedRecords, FieldEncoding, RecordEncoder
from gateway.sidecar.turns import TURN_S

TOPIC = TopicMetadata("t", None, 0, {0: PartitionMetadata(0, 1, (), (), 0)})
ENCODINGS = [FieldEncoding(SerializationFormat.STRING), FieldEncoding(SerializationFormat.AVRO)]


class SlowCodecs:
    def __init__(self) -> None:
        self.encoded = 0

    def encode_cached(self, *args: Any) -> EncodedData:
        time.sleep(TURN_S)
        self.encoded += 1
        return EncodedData(b"")


def encode(codecs: Any, count: int) -> Coroutine[Any, Any, EncodedRecords]:
    return RecordEncoder(codecs, 4500).encode(
        TOPIC, [{"value": 1}] * count, ENCODINGS, RequestIds("a", "b", "c")
    )


async def test_other_tasks_run_while_many_records_are_encoded():
    """Values whose schemas have many branches take 0.5 s each: one request held up all others."""
    with TurnCounter() as turns:
        await encode(SlowCodecs(), 10)
    assert turns.count >= 8


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
