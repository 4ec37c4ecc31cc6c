from __future__ import annotations

import time
from typing import Any

from support.waiting import TurnCounter

from gateway.formats.codec import EncodedData, SerializationFormat
from gateway.kafka.protocol.requests import PartitionMetadata, TopicMetadata
from gateway.sidecar.http.ids import RequestIds
from gateway.sidecar.producer.encoding import FieldEncoding, RecordEncoder
from gateway.sidecar.turns import TURN_S

ENCODINGS = [FieldEncoding(SerializationFormat.STRING), FieldEncoding(SerializationFormat.AVRO)]
TOPIC = TopicMetadata("t", None, 0, {0: PartitionMetadata(0, 1, (), (), 0)})
IDS = RequestIds("a", "b", "c")


class SlowCodecs:
    def encode_cached(self, *args: Any) -> EncodedData:
        time.sleep(TURN_S)
        return EncodedData(b"")


class CodecsWithDefaults:
    def encode_cached(self, *args: Any) -> EncodedData:
        return EncodedData(bytes(1000))


async def test_other_tasks_run_while_many_records_are_encoded():
    """Values whose schemas have many branches take 0.5 s each: one request held up all others."""
    with TurnCounter() as turns:
        await RecordEncoder(SlowCodecs(), 1000).encode(  # type: ignore[arg-type]
            TOPIC, [{"value": 1}] * 10, ENCODINGS, IDS
        )
    assert turns.count >= 8


async def test_records_beyond_what_a_request_may_become_are_refused():
    """A default of a schema counted for each value alone: a body of 726 KB took 1.4 GB."""
    encoded = await RecordEncoder(CodecsWithDefaults(), 4500).encode(  # type: ignore[arg-type]
        TOPIC, [{"value": {}}] * 7, ENCODINGS, IDS
    )
    assert encoded.indexes == [0, 1, 2, 3, 4]
    assert [*encoded.failures] == [5, 6]
    assert encoded.failures[5] == (
        413, "records[5]: the records before it come to 5000 bytes; send fewer at once"
    )  # fmt: skip
