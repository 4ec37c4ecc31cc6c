from __future__ import annotations

import struct

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment as Assignment
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata as Metadata
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.group.assignor import MemberSubscription
from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.member_messages import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

OWNED = frozenset(
    {TopicPartition("prices", 0), TopicPartition("orders", 2), TopicPartition("orders", 0)}
)
CLAIM = MemberSubscription("m", frozenset({"prices", "orders"}), OWNED, 7)

# Written by ConsumerProtocol of kafka-clients 4.3.1, user data by its CooperativeStickyAssignor.
JAVA = {
    0: "0000 00000002 0006 6f7264657273 0006 707269636573 00000004 00000007",
    1: "0001 00000002 0006 6f7264657273 0006 707269636573 00000004 00000007"
    "00000002 0006 6f7264657273 00000002 00000000 00000002 0006 707269636573 00000001 00000000",
    2: "0002 00000002 0006 6f7264657273 0006 707269636573 00000004 00000007"
    "00000002 0006 6f7264657273 00000002 00000000 00000002 0006 707269636573 00000001 00000000"
    "00000007",
    3: "0003 00000002 0006 6f7264657273 0006 707269636573 00000004 00000007"
    "00000002 0006 6f7264657273 00000002 00000000 00000002 0006 707269636573 00000001 00000000"
    "00000007 ffff",
}
JAVA_RACK = JAVA[3].removesuffix("ffff") + "0006 7261636b2d31"
JAVA_ASSIGNMENT = (
    "0003 00000002 0006 707269636573 00000001 00000000 "
    "0006 6f7264657273 00000002 00000002 00000000 ffffffff"
)


@pytest.mark.parametrize("version", JAVA)
def test_a_subscription_is_written_as_java_writes_it(version: int):
    assert encode_subscription(CLAIM, version) == bytes.fromhex(JAVA[version])


@pytest.mark.parametrize("version", JAVA)
def test_a_subscription_of_java_is_read_with_its_generation(version: int):
    expected = CLAIM if version else CLAIM._replace(owned=frozenset())
    assert decode_subscription("m", bytes.fromhex(JAVA[version])) == expected


def test_a_rack_and_whatever_later_versions_append_is_passed_over():
    assert decode_subscription("m", bytes.fromhex(JAVA_RACK)) == CLAIM
    later = b"\0\4" + bytes.fromhex(JAVA[3])[2:] + b"what comes with KIP-9999"
    assert decode_subscription("m", later) == CLAIM


def test_a_member_without_user_data_has_no_generation():
    plain = bytes.fromhex("0001 00000001 0006 6f7264657273 ffffffff 00000000")
    assert decode_subscription("m", plain) == MemberSubscription("m", frozenset({"orders"}))


def test_the_generation_at_the_end_of_the_sticky_user_data_is_found():
    """librdkafka's and aiokafka's: the assignment of before, then the generation."""
    before = struct.pack(">ih6siii", 1, 6, b"orders", 2, 0, 2)
    said = bytes.fromhex("0001 00000001 0006 6f7264657273") + struct.pack(">i", len(before) + 4)
    found = decode_subscription("m", said + before + struct.pack(">i", 5) + b"\0\0\0\0")
    assert found == MemberSubscription("m", frozenset({"orders"}), generation=5)


def test_user_data_of_an_unknown_kind_is_no_generation():
    for data in (b"x", b"what is this?"):
        said = bytes.fromhex("0000 00000001 0006 6f7264657273") + struct.pack(">i", len(data))
        assert decode_subscription("m", said + data).generation == -1


def test_an_assignment_of_java_is_read_and_ours_differs_in_nothing_but_the_order():
    theirs = bytes.fromhex(JAVA_ASSIGNMENT)
    assert decode_assignment(theirs) == OWNED
    ours = encode_assignment(OWNED)
    assert decode_assignment(ours) == OWNED and len(ours) == len(theirs)
    assert encode_assignment(()) == bytes.fromhex("0003 00000000 ffffffff")


def test_no_bytes_are_no_partitions():
    assert decode_assignment(b"") == frozenset()


def test_aiokafka_reads_what_we_write():
    said = Metadata.decode(encode_subscription(CLAIM))
    assert said.subscription == ["orders", "prices"]
    given_out = Assignment.decode(encode_assignment(OWNED))
    assert frozenset(given_out.partitions()) == OWNED


def test_we_read_what_aiokafka_writes():
    said = Metadata(0, ["orders"], b"").encode()
    assert decode_subscription("m", said) == MemberSubscription("m", frozenset({"orders"}))
    given_out = Assignment(0, [("orders", [2, 0])], b"").encode()
    assert decode_assignment(given_out) == OWNED - {TopicPartition("prices", 0)}


@given(st.binary(max_size=60))
def test_malformed_bytes_raise_what_is_said(data: bytes):
    for decode in (lambda: decode_subscription("m", data), lambda: decode_assignment(data)):
        try:
            decode()
        except (ValueError, IndexError, struct.error):
            continue
