from __future__ import annotations

import contextlib
import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.fetch_messages import (
    FetchedPartition,
    FetchRequest,
    FetchTarget,
    ForgottenPartition,
)
from gateway.kafka.protocol.requests import encode_uvarint

ID = UUID(int=0xABC)
TP = TopicPartition("orders", 3)
VERSIONS = [11, 12, 13, 16, 17]


def test_the_request_is_kafkas_byte_for_byte_in_version_17():
    request = FetchRequest(
        {TP: FetchTarget(1000, 7, ID, 4096, 6)},
        max_wait_ms=250,
        max_bytes=65536,
        rack="a",
        session_id=9,
        session_epoch=2,
        forgotten=[ForgottenPartition(TopicPartition("orders", 4), ID)],
    )
    expected = struct.pack(">iiibii", 250, 1, 65536, 1, 9, 2)
    expected += b"\2" + ID.bytes + b"\2" + struct.pack(">iiqiqi", 3, 7, 1000, 6, -1, 4096) + b"\0\0"
    expected += b"\2" + ID.bytes + b"\2" + struct.pack(">i", 4) + b"\0"
    expected += b"\2a" + b"\0"
    assert request.encode(17) == expected


def test_the_request_is_kafkas_byte_for_byte_in_version_11():
    request = FetchRequest(
        {TP: FetchTarget(1000, 7, ID, 4096, 6)}, max_wait_ms=250, max_bytes=65536
    )
    expected = struct.pack(">iiiibii", -1, 250, 1, 65536, 1, 0, -1)
    expected += struct.pack(">ih6si", 1, 6, b"orders", 1)
    expected += struct.pack(">iiqqi", 3, 7, 1000, -1, 4096) + struct.pack(">ih", 0, 0)
    assert request.encode(11) == expected


def test_topics_go_by_name_where_one_has_no_id():
    assert (
        FetchRequest({TP: FetchTarget(0)}, uses_topic_ids=False).choose_version({1: (4, 18)}) == 12
    )
    assert FetchRequest({TP: FetchTarget(0, topic_id=ID)}).choose_version({1: (4, 18)}) == 17


def test_many_partitions_of_a_topic_are_one_entry_of_the_request():
    request = FetchRequest(
        {TopicPartition("t", p): FetchTarget(p, topic_id=ID) for p in range(300)}
    )
    assert request.encode(17).count(ID.bytes) == 1


def encode_response(
    version: int, partition: int, one: FetchedPartition, topic: str = "orders"
) -> bytes:
    """An answer as a broker writes it."""
    flexible = version >= 12
    figures = one.high_watermark, one.last_stable_offset, one.log_start_offset
    out = struct.pack(">ihi", 40, 0, 5)
    if not flexible:
        out += struct.pack(">ih", 1, len(topic)) + topic.encode() + struct.pack(">i", 1)
        out += struct.pack(">ihqqq", partition, one.error_code, *figures)
        out += struct.pack(">i", len(one.aborted_transactions) or -1)
        out += b"".join(struct.pack(">qq", *pair) for pair in one.aborted_transactions)
        out += struct.pack(">ii", one.preferred_replica, len(one.records)) + one.records
        return out
    out += (
        b"\2"
        + (ID.bytes if version >= 13 else encode_uvarint(len(topic) + 1) + topic.encode())
        + b"\2"
    )
    out += struct.pack(">ihqqq", partition, one.error_code, *figures)
    out += encode_uvarint(len(one.aborted_transactions) + 1) if one.aborted_transactions else b"\0"
    out += b"".join(struct.pack(">qq", *pair) + b"\0" for pair in one.aborted_transactions)
    out += (
        struct.pack(">i", one.preferred_replica)
        + encode_uvarint(len(one.records) + 1)
        + one.records
    )
    tags = {}
    if one.diverging_epoch:
        tags[0] = struct.pack(">iq", *one.diverging_epoch) + b"\0"
    if one.current_leader:
        tags[1] = struct.pack(">ii", *one.current_leader) + b"\0"
    out += encode_uvarint(len(tags))
    out += b"".join(
        encode_uvarint(tag) + encode_uvarint(len(raw)) + raw for tag, raw in tags.items()
    )
    return out + b"\0" + b"\0"


i64 = st.integers(-1, 2**63 - 1)
i32 = st.integers(-1, 2**31 - 1)
answers = st.builds(
    FetchedPartition,
    st.integers(-1, 120),
    i64,
    i64,
    i64,
    i32,
    st.lists(st.tuples(i64, i64), max_size=200).map(tuple),
    st.binary(max_size=400),
    st.none() | st.tuples(i32, i64),
    st.none() | st.tuples(i32, i32),
    st.none(),
)


@given(st.sampled_from(VERSIONS), st.integers(0, 2**31 - 1), answers)
def test_every_field_of_an_answer_is_read(version: int, partition: int, one: FetchedPartition):
    if version < 12:
        one = one._replace(diverging_epoch=None, current_leader=None)
    request = FetchRequest({}, topic_names={ID: "orders"})
    answer = request.decode(version, b"head" + encode_response(version, partition, one), 4)
    if version >= 13 and one.current_leader is not None:
        one = one._replace(topic_id=ID)
    assert (answer.throttle_ms, answer.error, answer.session_id) == (40, 0, 5)
    assert answer.partitions == {TopicPartition("orders", partition): one}


def test_an_answer_about_an_id_nobody_asked_for_is_left_out():
    raw = encode_response(17, 3, FetchedPartition(0, records=b"abc"))
    assert FetchRequest({}, topic_names={}).decode(17, raw, 0).partitions == {}


@pytest.mark.parametrize("version", VERSIONS)
@given(st.binary(max_size=80))
def test_malformed_answers_raise_what_a_connection_takes_for_broken(version: int, junk: bytes):
    with contextlib.suppress(ValueError, IndexError, struct.error):
        FetchRequest({}, topic_names={}).decode(version, junk, 0)
