from __future__ import annotations

import asyncio
import time
from typing import Any

from gateway.formats.codec import EncodedData, SerializationFormat
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.ids import RequestIds
from gateway.sidecar.producer.encoding import FieldEncoding, RecordEncoder
from gateway.sidecar.turns import TURN_S


class SlowCodecs:
    def encode_cached(self, *args: Any) -> EncodedData:
        time.sleep(TURN_S)
        return EncodedData(b"")


async def test_other_tasks_run_while_many_records_are_encoded():
    """Values whose schemas have many branches take 0.5 s each: one request held up all others."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    other = asyncio.create_task(count_turns())
    encodings = [FieldEncoding(SerializationFormat.STRING), FieldEncoding(SerializationFormat.AVRO)]
    topic = TopicMetadata("t", None, 0, {0: PartitionMetadata(0, 1, (), (), 0)})
    await RecordEncoder(SlowCodecs()).encode(  # type: ignore[arg-type]
        topic, [{"value": 1}] * 10, encodings, RequestIds("a", "b", "c")
    )
    other.cancel()
    assert turns >= 8
