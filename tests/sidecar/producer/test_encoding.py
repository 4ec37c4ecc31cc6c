from __future__ import annotations

import time
from typing import Any

from support.waiting import TurnCounter

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
    encodings = [FieldEncoding(SerializationFormat.STRING), FieldEncoding(SerializationFormat.AVRO)]
    topic = TopicMetadata("t", None, 0, {0: PartitionMetadata(0, 1, (), (), 0)})
    with TurnCounter() as turns:
        await RecordEncoder(SlowCodecs()).encode(  # type: ignore[arg-type]
            topic, [{"value": 1}] * 10, encodings, RequestIds("a", "b", "c")
        )
    assert turns.count >= 8
