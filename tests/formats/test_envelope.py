from __future__ import annotations

from base64 import b64decode
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import Record, TopicPartition
from gateway.formats.event import encode_envelope

content = st.none() | st.binary(max_size=20) | st.just(b"text\r\n\0")
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


def bytes_of(shown: Any) -> bytes | None:
    if isinstance(shown, dict):
        return b64decode(shown["base64"])
    return None if shown is None else shown.encode()


@given(
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(-1, 2**62),
    key=content,
    value=content,
    headers=st.lists(st.tuples(names, content), max_size=3),
)
def test_a_whole_record_comes_back_to_the_byte(offset, timestamp, key, value, headers):
    record = Record(TopicPartition("orders", 7), offset, 0, timestamp, key, value, headers)
    name, data = encode_envelope(record)
    shown = orjson.loads(data)
    assert name == ("delete" if value is None else None)
    assert (
        Record(
            TopicPartition(shown["topic"], shown["partition"]),
            shown["offset"],
            0,
            shown["timestamp"],
            bytes_of(shown["key"]),
            bytes_of(shown["value"]),
            [(each, bytes_of(text)) for each, text in shown["headers"]],
        )
        == record
    )


def test_it_looks_as_documented_and_fits_on_one_line():
    record = Record(TopicPartition("o", 1), 2, 0, 3, b"k", b'{"a":\n1}', [("h", b"\xff")])
    assert encode_envelope(record) == (
        None,
        b'{"topic":"o","partition":1,"offset":2,"timestamp":3,"key":"k",'
        b'"value":"{\\"a\\":\\n1}","headers":[["h",{"base64":"/w=="}]]}',
    )
