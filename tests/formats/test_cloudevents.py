from __future__ import annotations

from base64 import b64decode
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import Record, TopicPartition
from gateway.formats.cloudevents import encode_cloudevents

TIME = 1_700_000_000_123


def record(value: bytes | None, *headers: tuple[str, bytes | None], key: bytes | None = b"ada"):
    return Record(TopicPartition("orders", 3), 42, 0, TIME, key, value, headers)


def event(of: Record) -> dict[str, Any]:
    name, data = encode_cloudevents(of)
    assert name is None
    return orjson.loads(data)


def test_a_plain_record_becomes_an_event_identified_by_where_it_is():
    assert event(record(b'{"total": 1.50}')) == {
        "specversion": "1.0",
        "id": "orders:3:42",
        "source": "/kafka/orders",
        "type": "org.apache.kafka.record",
        "time": "2023-11-14T22:13:20.123Z",
        "subject": "ada",
        "partitionkey": "ada",
        "datacontenttype": "application/json",
        "data": {"total": 1.5},
    }


def test_json_data_keeps_the_very_text_of_the_value():
    _, data = encode_cloudevents(record(b'{"total": 1.50, "id": 12345678901234567890123}'))
    assert b'"data":{"total": 1.50, "id": 12345678901234567890123}}' in data
    _, data = encode_cloudevents(record(b'\xef\xbb\xbf"\\ud83d"'))
    assert data.endswith(b'"datacontenttype":"application/json","data":"\\ud83d"}')


@pytest.mark.parametrize(
    ("value", "members"),
    [
        (b"plain", {"datacontenttype": "text/plain", "data": "plain"}),
        (b"\xff", {"datacontenttype": "application/octet-stream", "data_base64": "/w=="}),
        (b"NaN", {"datacontenttype": "text/plain", "data": "NaN"}),
        (b"null", {"datacontenttype": "application/json", "data": None}),
        (b"", {"datacontenttype": "text/plain", "data": ""}),
    ],
)
def test_without_a_content_type_the_data_is_what_the_value_is(value: bytes, members: dict):
    got = event(record(value))
    assert {name: got[name] for name in got if name.startswith("data")} == members


@pytest.mark.parametrize(
    ("content_type", "value", "members"),
    [
        (b"text/csv", b"1,2", {"data": "1,2"}),
        (b"text/csv", b"7", {"data": "7"}),
        (b"application/avro", b"\0\xff", {"data_base64": "AP8="}),
        (b"application/vnd.order+json; charset=utf-8", b"[1]", {"data": [1]}),
        (b"application/json", b"{oops", {"data_base64": "e29vcHM="}),
    ],
)
def test_a_content_type_says_how_the_data_is_read(content_type: bytes, value: bytes, members):
    got = event(record(value, ("content-type", content_type)))
    assert got.pop("datacontenttype") == content_type.decode()
    assert {name: got[name] for name in got if name.startswith("data")} == members


def test_binary_mode_takes_the_attributes_of_the_headers():
    got = event(
        record(
            b"<o/>",
            ("ce_specversion", b"1.0"),
            ("ce_id", b"A-1"),
            ("ce_source", b"/shop"),
            ("ce_type", b"com.example.paid"),
            ("ce_time", b"2024-01-01T00:00:00Z"),
            ("ce_traceparent", b"00-ab"),
            ("ce_datacontenttype", b"not/this"),
            ("ce_data", b"forged"),
            ("ce_Bad-Name", b"x"),
            ("ce_empty", b""),
            ("ce_none", None),
            ("ce_bytes", b"\xff"),
            ("content-type", b"application/xml"),
        )
    )
    assert got == {
        "specversion": "1.0",
        "id": "A-1",
        "source": "/shop",
        "type": "com.example.paid",
        "time": "2024-01-01T00:00:00Z",
        "traceparent": "00-ab",
        "partitionkey": "ada",
        "datacontenttype": "application/xml",
        "data": "<o/>",
    }


def test_binary_mode_without_a_required_attribute_is_still_a_valid_event():
    got = event(record(b"1", ("ce_specversion", b"1.0")))
    assert (got["id"], got["source"]) == ("orders:3:42", "/kafka/orders")
    assert got["type"] == "org.apache.kafka.record"


def test_structured_mode_passes_the_event_on_untouched():
    value = b'{ "specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": 1.0 }'
    content_type = ("Content-Type", b"application/cloudevents+json; charset=UTF-8")
    assert encode_cloudevents(record(value, content_type)) == (None, value)


@pytest.mark.parametrize("value", [b"{}", b"[]", b"oops", b'{"specversion":"1.0","id":""}'])
def test_what_only_says_that_it_is_an_event_is_wrapped_in_one(value: bytes):
    got = event(record(value, ("content-type", b"application/cloudevents+json")))
    assert got["id"] == "orders:3:42"


def test_a_tombstone_is_a_delete():
    assert encode_cloudevents(record(None)) == ("delete", b'{"key":"ada"}')


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
def test_a_key_that_is_no_text_is_left_out(key: bytes | None):
    assert not {"subject", "partitionkey"} & event(record(b"1", key=key)).keys()


@pytest.mark.parametrize("timestamp", [-1, 2**62])
def test_a_time_that_cannot_be_written_is_left_out(timestamp: int):
    assert "time" not in event(record(b"1")._replace(timestamp=timestamp))


@given(
    value=st.binary(),
    content_type=st.sampled_from([None, b"application/json", b"text/plain", b"x/y", b""]),
    key=st.none() | st.binary(max_size=4),
)
def test_any_record_is_one_valid_event_and_no_data_is_lost(value, content_type, key):
    headers = [] if content_type is None else [("content-type", content_type)]
    got = event(record(value, *headers, key=key))
    assert {"specversion", "id", "source", "type"} <= got.keys()
    if "data_base64" in got:
        assert b64decode(got["data_base64"]) == value
    elif isinstance(got["data"], str) and "json" not in got["datacontenttype"]:
        assert got["data"].encode() == value
    else:
        assert got["data"] == orjson.loads(value)
