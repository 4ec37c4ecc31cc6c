"""A snapshot as its client reads it, on the embedded broker."""

from __future__ import annotations

import time

from support.brokers import embedded_kafka
from support.records import RecordToSend, produce_records

from gateway.api.events import Record
from gateway.api.gateway import Gateway
from gateway.api.options import build_view
from gateway.api.stream import Stream
from gateway.config import Settings
from gateway.hub.reads.position_resolver import StreamStart
from gateway.kafka.embedded import EmbeddedKafka

kafka = embedded_kafka({"prices": 1})

KEYS, VERSIONS = 220, 3


async def test_a_client_whose_table_was_released_is_sent_the_rest_of_it_from_kafka(
    kafka: EmbeddedKafka,
):
    topics = [{"name": "prices", "cache": {"bytes": "256KiB"}}]
    servers = {"servers": list(kafka.bootstrap), "topics": topics}
    settings = Settings.model_validate({"kafka": servers, "memory": "1MiB"})
    expected = [str(version) * 1000 for version in range(VERSIONS) for _ in range(KEYS)]
    async with Gateway(settings) as gateway:
        streams, values = list[Stream](), list[str]()

        async def read_value() -> None:
            record = await anext(streams[0])
            assert type(record) is Record and record.value is not None
            values.append(record.value.decode())

        for version in range(VERSIONS):
            written = expected[version * KEYS : (version + 1) * KEYS]
            records = [RecordToSend(v.encode(), b"%d" % k) for k, v in enumerate(written)]
            await produce_records(kafka.bootstrap, "prices", records)
            stream = Stream(gateway.hub, build_view("prices", None, ()), StreamStart(snapshot=True))
            streams.append(stream)
            await (read_value() if version == 0 else anext(stream))
            gateway.hub.sweep(time.monotonic())
        reads = gateway.hub.backfill_reader.read_counts.total()
        while len(values) < KEYS:
            await read_value()
        assert gateway.hub.backfill_reader.read_counts.total() > reads
        while len(values) < len(expected):
            await read_value()
        assert values == expected
