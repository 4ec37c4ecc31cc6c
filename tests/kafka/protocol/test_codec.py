from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.kafka.protocol.requests import (
    FieldReader,
    FieldWriter,
    encode_uvarint,
    read_tags,
    read_uvarint,
)


@given(st.integers(0, 2**63 - 1))
def test_varints_come_back(value: int):
    assert read_uvarint(b"x" + encode_uvarint(value) + b"y", 1) == (
        value,
        1 + len(encode_uvarint(value)),
    )


@pytest.mark.parametrize(("value", "raw"), [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02")])
def test_varints_are_kafkas(value: int, raw: str):
    assert encode_uvarint(value).hex() == raw


def test_a_varint_without_an_end_is_refused():
    with pytest.raises(ValueError, match="varint"):
        read_uvarint(b"\xff" * 20, 0)
    with pytest.raises(IndexError):
        read_uvarint(b"\xff", 0)


@pytest.mark.parametrize("flexible", [False, True])
@given(
    text=st.none() | st.text(max_size=200),
    number=st.integers(-(2**31), 2**31 - 1),
    topic_id=st.uuids(),
)
def test_fields_come_back_in_both_dialects(flexible, text: str | None, number: int, topic_id: UUID):
    out = FieldWriter(flexible)
    out.string(text)
    out.i32(number)
    out.uuid(topic_id)
    out.i64(number * 2**31)
    out.array(2)
    out.i32(1)
    out.i32(number)
    out.tags()
    read = FieldReader(bytes(out.data), 0, flexible)
    assert read.string() == text
    assert read.i32() == number
    assert read.uuid() == (topic_id if topic_id.int else None)
    assert read.i64() == number * 2**31
    assert read.ints() == (1, number)
    assert read.tags() == {}
    assert read.pos == len(out.data)


def test_tags_are_read_by_number():
    assert read_tags(b"\2\0\2ab\5\0rest", 0) == ({0: b"ab", 5: b""}, 7)


@pytest.mark.parametrize("flexible", [False, True])
def test_null_arrays_are_empty(flexible):
    assert FieldReader(b"\0" if flexible else b"\xff" * 4, 0, flexible).array() == 0


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("value", [None, b"", b"bytes"])
def test_bytes_that_are_none_and_no_bytes_stay_apart(value: bytes | None, flexible):
    out = FieldWriter(flexible)
    out.octets(value)
    assert FieldReader(bytes(out.data), 0, flexible).octets() == value


@pytest.mark.parametrize("field", ["string", "uuid", "ints", "octets"])
@pytest.mark.parametrize("flexible", [False, True])
def test_a_field_longer_than_its_message_is_refused(field: str, flexible):
    with pytest.raises(ValueError, match="longer"):
        getattr(FieldReader(b"\x7f\x7f\x7f\x7fab", 0, flexible), field)()
