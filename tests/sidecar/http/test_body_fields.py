"""Integers that are written as 1.0 become integers; what a record holds stays as it is."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.sidecar.http.spec import SPEC_DIRECTORY, Spec

EVERY = Spec(sorted({path.stem for path in SPEC_DIRECTORY.glob("*.yaml")} - {"base"}))


@pytest.mark.parametrize(
    ("operation", "text", "way"),
    [
        ("seekGroup", '{"offsets": [{"topic": "t", "partition": 0.0, "offset": 7e0}]}',
         ["offsets", 0]),
        ("commitDeadLetters",
         '{"group": "g", "topic": "t", "offsets": [{"partition": 0.0, "offset": 7.0}]}',
         ["offsets", 0]),
        ("commmitConsumerOffsets",
         '{"offsets": [{"topic": "t", "partition": 0.0, "offset": 7.0}]}', ["offsets", 0]),
        ("seekReactive", '{"offsets": [{"topic": "t", "partition": 0.0, "offset": 7.0}]}',
         ["offsets", 0]),
        ("writeDeadLetters",
         '[{"record": {"topic": "t", "partition": 0.0, "offset": 7.0}, "processed": true}]',
         [0, "record"]),
    ],
)  # fmt: skip
def test_an_offset_of_7_point_0_is_that_of_the_eighth_record(operation: str, text: str, way: Any):
    """They went into Kafka's bytes as they were, which was a 500."""
    found = EVERY[operation].parse_body(text.encode(), "application/json")
    for step in way:
        found = found[step]
    assert (found["partition"], found["offset"]) == (0, 7)
    assert type(found["partition"]) is type(found["offset"]) is int


def test_keys_and_values_of_records_stay_as_they_are_written():
    text = b'{"records": [{"key": 1.0, "value": {"partition": 2.0}, "partition": 0.0}]}'
    (record,) = EVERY["postData"].parse_body(text, "application/json")["records"]
    assert type(record["partition"]) is int
    assert type(record["key"]) is type(record["value"]["partition"]) is float


def test_what_64_bits_do_not_hold_stays_a_float():
    text = b'[{"timestamp": 1e30}, {"timestamp": 1e15}]'
    large, small = EVERY["auditActive"].parse_body(text, "application/json")
    assert type(large["timestamp"]) is float and type(small["timestamp"]) is int
