from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson
import pytest
from support.app_server import running_app
from support.registry import FakeRegistry

from gateway.config import SchemaRegistry
from gateway.config.sections.sidecar import Group, Sidecar
from gateway.core.log.record import Record, TopicPartition
from gateway.errors import RegistryUnavailable, SchemaNotFound
from gateway.formats.codec import Codecs, SerializationFormat
from gateway.sidecar.reactive.batch_encoder import MISSING_SCHEMA_PAUSE_S, BatchEncoder, get_ids

TP = TopicPartition("orders", 1)


def record(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> Record:
    return Record(TP, 7, 0, 1700000000000, key, value, headers)


def build_writer(topics: dict[str, Any] | None = None, **options: Any) -> BatchEncoder:
    group = Group.model_validate({"group": "g", "topics": ["orders"], **options})
    section = Sidecar.model_validate({"topics": topics or {}})
    return BatchEncoder(Codecs(None), section, group)


async def write_json(encoder: BatchEncoder, *records: Record) -> list[dict[str, Any]]:
    batch = await encoder.encode(records)
    assert not batch.unreadable
    found: list[dict[str, Any]] = orjson.loads(batch.body)
    return found


async def test_keys_and_values_are_in_the_formats_of_the_group_or_of_their_topic():
    (one,) = await write_json(build_writer(), record(b"k", b"abc"))
    assert (one["key"], one["value"]) == ("k", "YWJj")
    (one,) = await write_json(build_writer(valueFormat="json"), record(b"k", b'{"a": 1}'))
    assert one["value"] == {"a": 1}
    formats = {"orders": {"keyFormat": "binary", "valueFormat": "string"}}
    (one,) = await write_json(build_writer(formats), record(b"abc", b"abc"))
    assert (one["key"], one["value"]) == ("YWJj", "abc")


async def test_json_stays_as_it_is_written_however_deep_it_is():
    encoder = build_writer(valueFormat="json")
    deep = b"[" * 900 + b"]" * 900
    for text in (b'{"n": 123456789012345678901234567890}', b"1.10", b'{"a":1,"a":2}', deep):
        batch = await encoder.encode([record(b"k", text)])
        assert b'"value":' + text in batch.body


async def test_a_tombstone_is_null_and_no_bytes_are_the_empty_string():
    one, two = await write_json(build_writer(), record(None, None), record(b"", b""))
    assert (one["key"], one["value"]) == (None, None)
    assert (two["key"], two["value"]) == ("", "")


async def test_headers_that_repeat_are_a_list_and_bytes_that_are_no_text_are_base64():
    headers = [("a", b"1"), ("b", b"\xff"), ("a", None), ("a", b"3"), ("c", None)]
    (one,) = await write_json(build_writer(), record(b"k", b"v", *headers))
    assert one["headers"] == {"a": ["1", None, "3"], "b": {"base64": "/w=="}, "c": None}


async def test_ids_are_those_of_the_record_or_derived_from_its_place():
    brings = record(b"k", b"v", ("x-correlation-id", b"c"), ("X-Traceability-Id", b"t"))
    (one,) = await write_json(build_writer(), brings)
    assert (one["correlationId"], one["traceabilityId"]) == ("c", "t")
    (first,) = await write_json(build_writer(), record(b"k", b"v"))
    (again,) = await write_json(build_writer(), record(b"k", b"v"))
    assert first["correlationId"] == again["correlationId"]
    other = record(b"k", b"v")._replace(offset=8)
    assert get_ids(other)[0] != first["correlationId"]


async def test_unreadable_records_are_left_out_with_the_reason():
    batch = await build_writer(valueFormat="json").encode(
        [record(b"a", b"1"), record(b"b", b"{"), record(b"\xff", b"2"), record(b"d", b"3")]
    )
    assert [item["key"] for item in orjson.loads(batch.body)] == ["a", "d"]
    assert [item.key for item in batch.sent] == [b"a", b"d"]
    assert "not JSON" in batch.unreadable[1]
    assert "not UTF-8" in batch.unreadable[2]


async def test_records_with_a_schema_are_shown_once_the_registry_was_asked():
    registry = FakeRegistry()
    fields = [{"name": "n", "type": "long"}]
    id = registry.register_schema("orders-value", {"type": "record", "name": "R", "fields": fields})
    good = b"\0" + id.to_bytes(4, "big") + b"\x02"
    async with running_app(registry.app) as url:
        codecs = Codecs(SchemaRegistry.model_validate({"type": "schema-registry", "url": url}))
        group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
        encoder = BatchEncoder(codecs, Sidecar(), group, missing_schema_timeout_s=0.0)
        patient_encoder = BatchEncoder(codecs, Sidecar(), group)
        unknown = record(b"b", b"\0\0\0\0\x63\x02")
        try:
            # A follower of another registry learns of a schema after the record with it.
            with pytest.raises(RegistryUnavailable, match="no schema with the id 99"):
                await patient_encoder.encode([unknown])
            registry.error_status = 503
            with pytest.raises(RegistryUnavailable):
                await encoder.encode([record(b"k", good)])
            registry.error_status = None
            batch = await encoder.encode([record(b"a", good), unknown, record(b"c", b"x")])
            named = record(b"d", b"\x04", ("__value_schema_id", b"\1" + UUID(int=id).bytes))
            by_header = await encoder.encode([named])
        finally:
            await codecs.close()
    assert [item["value"] for item in orjson.loads(batch.body)] == [{"n": 1}]
    assert batch.unreadable.keys() == {1, 2}
    assert [item["value"] for item in orjson.loads(by_header.body)] == [{"n": 2}]


async def test_missing_schemas_of_a_batch_are_waited_for_together():
    """Each was asked for when the one before it had been given up, after 15 seconds."""
    registry = FakeRegistry()
    async with running_app(registry.app) as url:
        codecs = Codecs(SchemaRegistry.model_validate({"type": "schema-registry", "url": url}))
        group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
        batch = [record(b"k", bytes([0, 0, 0, 0, id])) for id in range(1, 20)]
        try:
            with pytest.raises(RegistryUnavailable):
                await BatchEncoder(codecs, Sidecar(), group).encode(batch)
            # All are known to be missing, and are not asked for again.
            assert not any(codecs.find_missing_id(each.value or b"") for each in batch)
        finally:
            await codecs.close()


async def test_after_waiting_in_vain_other_missing_schemas_are_not_waited_for():
    """Records with ids that were made up stopped their partition, each batch for 15 seconds.

    The 15 seconds were those of an entry in a cache, and began again without end while clients of
    the sidecar filled that cache with other errors.
    """

    class EmptyCodecs(Codecs):
        def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
            raise SchemaNotFound("there is none")

    now = 100.0
    group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
    encoder = BatchEncoder(EmptyCodecs(), Sidecar(), group, now=lambda: now)
    batch, other = [record(b"k", b"v")], [record(b"k", b"v")._replace(tp=TopicPartition("new", 0))]
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(batch)
    now += 14.0
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(batch)
    now += 1.0
    assert (await encoder.encode(batch)).unreadable
    assert (await encoder.encode(batch)).unreadable
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(other)
    now += MISSING_SCHEMA_PAUSE_S
    with pytest.raises(RegistryUnavailable):
        await encoder.encode(batch)


async def test_a_fault_in_decoding_blames_no_record():
    """orjson's error is a TypeError, so each TypeError of decoding made a dead letter."""

    class FaultyCodecs(Codecs):
        def decode_text_cached(self, format: SerializationFormat, data: bytes) -> bytes:
            raise TypeError("'int' object is not iterable")

    group = Group.model_validate({"group": "g", "topics": ["orders"], "valueFormat": "avro"})
    with pytest.raises(TypeError, match="not iterable"):
        await BatchEncoder(FaultyCodecs(), Sidecar(), group).encode([record(b"k", b"v")])
