from __future__ import annotations

import pytest

from gateway.config import Transform
from gateway.core.log.record import Gap, GapReason, Record, TopicPartition
from gateway.hub.wires.models import Transformer

TP = TopicPartition("orders", 0)
TRANSFORMS = [
    Transform.model_validate({"extract-key": "${message.value.customer.id}"}),
    Transform.model_validate(
        {"extract-headers": {"region": "${message.value.region}", "was": "${message.key}"}}
    ),
]
TRANSFORM = Transformer(TRANSFORMS)


def record(value: bytes | None, key: bytes | None = b"k") -> Record:
    return Record(TP, 4, 2, 1000, key, value, (("h", b"1"),))


def test_key_and_headers_come_from_the_value_and_the_rest_stays():
    value = b'{"customer": {"id": 7}, "region": "eu"}'
    changed = TRANSFORM(record(value))
    assert changed == Record(
        TP, 4, 2, 1000, b"7", value, (("h", b"1"), ("region", b"eu"), ("was", b"k"))
    )


def test_a_field_that_lacks_changes_nothing_of_its_own():
    changed = TRANSFORM(record(b'{"region": "eu"}', key=None))
    assert isinstance(changed, Record)
    assert (changed.key, changed.headers) == (None, (("h", b"1"), ("region", b"eu")))


@pytest.mark.parametrize("value", [None, b"", b"no json", b'{"customer": {"id": NaN}}', b"\xff"])
def test_a_value_that_is_not_json_passes_as_it_is_and_is_reported(value: bytes | None):
    unread: list[Record] = []
    transform = Transformer(TRANSFORMS, unread.append)
    assert transform(record(value)) == record(value)
    assert unread == ([] if value is None else [record(value)])


def test_half_of_a_surrogate_pair_is_a_replacement_character_in_headers():
    changed = TRANSFORM(record(rb'{"customer": {"id": "\ud83d"}, "note": "\ude00"}'))
    assert isinstance(changed, Record)
    assert changed.key == "\ufffd".encode()


def test_what_is_no_record_passes_as_it_is():
    gap = Gap(TP, 1, 2, 0, GapReason.CORRUPT)
    assert TRANSFORM(gap) is gap
