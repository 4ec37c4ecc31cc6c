from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway import Record

RECORD = Record("orders", 0, 7, 1_700_000_000_123, b"ada", b'{"n": 1}', (("a", b"1"), ("a", b"2")))


def test_a_record_tells_its_time_as_a_datetime():
    assert RECORD.time == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)
    for never in (-1, 2**62):
        assert RECORD._replace(timestamp=never).time is None


def test_a_value_is_read_as_json_on_demand():
    assert RECORD.json() == {"n": 1}
    assert RECORD._replace(value=None).json() is None
    with pytest.raises(ValueError):
        RECORD._replace(value=b"NaN").json()


def test_a_header_that_is_there_twice_is_the_last_one():
    assert RECORD.header("a") == b"2"
    assert RECORD.header("b") is None


def test_a_record_cannot_be_changed():
    record: Any = RECORD
    with pytest.raises(AttributeError):
        record.value = b""


def test_the_position_is_not_shown_with_a_record_and_empty_without_a_stream():
    assert RECORD.position == ""
    assert repr(RECORD).startswith("Record(topic='orders', partition=0, offset=7")
    assert "mark" not in repr(RECORD)
