from __future__ import annotations

import json
import time

import pytest
from support.app_server import running_app
from support.registry import FakeRegistry
from support.waiting import TurnCounter

from gateway.client_memory import ClientMemory, GrowingReservation, HeldPart
from gateway.config import SchemaRegistry
from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import MemoryFull
from gateway.formats.codec import Codecs, SerializationFormat
from gateway.sidecar.consumer.record_json import (
    base64_headers,
    hold_records,
    paired_headers,
    render_records,
    text_headers,
)
from gateway.sidecar.turns import TURN_S

UNLIMITED = GrowingReservation(ClientMemory(), HeldPart.RESPONSES)


def record(key: bytes | None, value: bytes | None, headers: object = ()) -> Record:
    return Record(TopicPartition("t", 1), 5, 0, 1000, key, value, headers)  # type: ignore[arg-type]


async def render_text(
    one: Record,
    key: SerializationFormat,
    value: SerializationFormat,
    omits_empty_headers: bool = False,
) -> str:
    body, _ = await render_records(
        Codecs(),
        UNLIMITED,
        [one],
        lambda _: (key, value),
        text_headers,
        omit_empty_headers=omits_empty_headers,
    )
    return body.decode()


async def test_json_is_given_as_it_was_written():
    written = b'{"n": 1e2, "n": 1.0, "big": 340282366920938463463374607431768211456}'
    assert written.decode() in await render_text(
        record(None, written), SerializationFormat.STRING, SerializationFormat.JSON
    )


async def test_null_is_null_and_no_bytes_are_empty_text_in_every_format():
    for format in SERIALIZATION_FORMATS.values():
        (shown_one,) = json.loads(await render_text(record(None, b""), format, format))
        assert (shown_one["key"], shown_one["value"]) == (None, "")
        assert "error" not in shown_one


async def test_unreadable_data_is_returned_in_base64_with_the_reason():
    for format in (
        SerializationFormat.JSON,
        SerializationFormat.STRING,
        SerializationFormat.AVRO,
        SerializationFormat.PROTOBUF,
        SerializationFormat.JSONSCHEMA,
    ):
        headers = [("__value_schema_id", b"\0\0\0\0\1")]
        (one,) = json.loads(await render_text(record(b"\xff", b"\xfe", headers), format, format))
        assert (one["key"], one["value"]) == ("/w==", "/g==")
        assert "key: " in one["error"] and "value: " in one["error"]


async def test_headers_that_repeat_keep_their_order_and_bytes_that_are_no_text_say_so():
    pairs = [("a", b"1"), ("b", None), ("a", b"\xff"), ("a", b"3")]
    assert text_headers(pairs) == {"a": ["1", {"base64": "/w=="}, "3"], "b": None}
    assert base64_headers(pairs) == {"a": ["MQ==", "/w==", "Mw=="], "b": None}
    assert paired_headers(pairs[:2]) == [{"key": "a", "value": "MQ=="}, {"key": "b", "value": None}]
    assert '"headers":{}' in await render_text(
        record(None, None), SerializationFormat.BINARY, SerializationFormat.BINARY
    )
    assert "headers" not in await render_text(
        record(None, None),
        SerializationFormat.BINARY,
        SerializationFormat.BINARY,
        omits_empty_headers=True,
    )


async def test_records_are_read_whose_schemas_push_each_other_out_of_the_cache():
    """Large schemas are compiled before records are rendered, and not all of them stay cached."""
    fake = FakeRegistry()
    symbol, values = fake.register_large_enums(4)
    records = [record(None, value) for value in values] * 2
    formats = SerializationFormat.BINARY, SerializationFormat.AVRO
    async with running_app(fake.app) as url:
        catalog = SchemaRegistry.model_validate({"type": "schema-registry", "url": url})
        codecs = Codecs(catalog)
        shown, _ = await render_records(codecs, UNLIMITED, records, lambda _: formats, text_headers)
        await codecs.close()
    assert [each["value"] for each in json.loads(shown)] == [symbol] * 8


async def test_an_answer_ends_before_it_is_too_large_but_has_a_record():
    """5,000 records of 8 bytes of Avro were an answer of 328 MB."""

    class LongCodecs(Codecs):
        async def load_schemas(self, *args: object) -> None: ...

        def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
            return b'"%s"' % (b"x" * (int(data) << 20))

    formats = SerializationFormat.STRING, SerializationFormat.AVRO
    for mebibytes, count in ((17, 1), (6, 2)):
        records = [record(None, b"%d" % mebibytes)] * 3
        memory = ClientMemory(limit=8 << 20)  # the only request may have any size
        with hold_records(memory, [1, 1, 1]) as held:
            shown, shown_count = await render_records(
                LongCodecs(), held, records, lambda _: formats, text_headers
            )
            # Requests that took turns held 16 MiB each, and counted three times 9 bytes a record.
            assert memory.by_part[HeldPart.RESPONSES] >= 2 * len(shown)
        assert len(json.loads(shown)) == shown_count == count and not memory.total


async def test_other_tasks_run_while_many_records_are_rendered():
    """Values whose schemas have many branches take 0.5 s each: all of a poll held up the others."""

    def render_slowly(headers: object) -> None:
        time.sleep(TURN_S)

    text, records = SerializationFormat.STRING, [record(b"k", b"v")] * 10
    with TurnCounter() as turns:
        await render_records(Codecs(), UNLIMITED, records, lambda _: (text, text), render_slowly)
    assert turns.count >= 8


def test_records_count_while_a_response_is_put_together_of_them():
    """They counted in no account: each poll, however many waited for a schema, had its bytes."""
    memory, sizes = ClientMemory(limit=10_000), [1000]
    with hold_records(memory, sizes):
        assert memory.by_part[HeldPart.RESPONSES] > 3000
        with pytest.raises(MemoryFull), hold_records(memory, sizes):
            pass
    assert memory.total == 0
