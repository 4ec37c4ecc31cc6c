"""Metadata, and the internal interface of aiokafka that requests of our own rely on."""

from __future__ import annotations

import struct
from io import BytesIO
from uuid import UUID

import pytest
from support.fake_broker import BrokerRequest, FakeBroker

from gateway.errors import FormatError, KafkaError
from gateway.kafka.client.aiokafka_internals import KafkaConnection
from gateway.kafka.protocol.requests import (
    BrokerMetadata,
    MetadataRequest,
    PartitionMetadata,
    TopicMetadata,
    TopicOperation,
)

ID = UUID(int=0xF00)


def encode_text(value: str, flexible: bool) -> bytes:
    head = bytes([len(value) + 1]) if flexible else struct.pack(">h", len(value))
    return head + value.encode()


def encode_metadata(version: int, operations: int = 0) -> bytes:
    """One broker and one leaderless partition, as Kafka's message tables say."""
    flexible = version >= 9
    one = b"\2" if flexible else struct.pack(">i", 1)
    two = b"\3" if flexible else struct.pack(">i", 2)
    tags = b"\0" if flexible else b""
    out = struct.pack(">i", 3) + one
    out += struct.pack(">i", 1) + encode_text("b1", flexible) + struct.pack(">i", 9092)
    out += encode_text("r", flexible) + tags
    out += encode_text("c", flexible) + struct.pack(">i", 1) + one
    out += struct.pack(">h", 0) + encode_text("orders", flexible)
    out += (ID.bytes if version >= 10 else b"") + b"\0" + one
    out += struct.pack(">hiii", 5, 2, -1, 8)
    out += two + struct.pack(">ii", 1, 2) + one + struct.pack(">i", 1)
    out += one + struct.pack(">i", 2) + tags
    out += struct.pack(">i", operations) + tags
    return out + (struct.pack(">i", 0) if version <= 10 else b"") + tags


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
def test_metadata_is_read_in_every_version(version: int):
    answer = MetadataRequest(["orders"]).decode(version, encode_metadata(version), 0)
    partition = PartitionMetadata(-1, 8, (1, 2), (1,), 5)
    topic_id = ID if version >= 10 else None
    assert answer == (
        3,
        "c",
        (BrokerMetadata(1, "b1", 9092, "r"),),
        {"orders": TopicMetadata("orders", topic_id, 0, {2: partition})},
    )


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (8, struct.pack(">ih", 1, 6) + b"orders" + b"\0\0\0"),
        (9, b"\2" + b"\7orders\0" + b"\0\0\0" + b"\0"),
        (10, b"\2" + bytes(16) + b"\7orders\0" + b"\0\0\0" + b"\0"),
        (12, b"\2" + bytes(16) + b"\7orders\0" + b"\0\0" + b"\0"),
    ],
)
def test_asking_for_metadata_never_creates_a_topic(version: int, body: bytes):
    """allow_auto_topic_creation is the first of the booleans at the end: 0."""
    assert MetadataRequest(["orders"]).encode(version) == body


@pytest.mark.parametrize(
    ("version", "ending"), [(8, b"\0\0\1"), (10, b"\0\0\1\0"), (12, b"\0\1\0")]
)
def test_rights_are_asked_for_by_the_last_of_the_booleans(version: int, ending: bytes):
    assert MetadataRequest(["orders"], include_operations=True).encode(version).endswith(ending)


@pytest.mark.parametrize("version", [8, 9, 10, 11, 12])
def test_rights_are_read_where_they_are_told(version: int):
    request, reads = MetadataRequest(["orders"], include_operations=True), 1 << TopicOperation.READ
    told = request.decode(version, encode_metadata(version, reads), 0).topics["orders"]
    assert (told.is_allowed(TopicOperation.READ), told.is_allowed(TopicOperation.WRITE)) == (
        True,
        False,
    )
    untold = request.decode(version, encode_metadata(version, -(1 << 31)), 0).topics["orders"]
    assert untold.is_allowed(TopicOperation.READ) is None
    unasked = MetadataRequest(["orders"]).decode(version, encode_metadata(version, reads), 0)
    assert unasked.topics["orders"].authorized_operations is None


@pytest.mark.parametrize(
    ("version", "body"),
    [(8, b"\xff\xff\xff\xff" + b"\0\0\0"), (9, b"\0" + b"\0\0\0\0"), (12, b"\0" + b"\0\0\0")],
)
def test_all_topics_are_asked_for_by_no_list(version: int, body: bytes):
    assert MetadataRequest(None).encode(version) == body


def test_the_zero_id_is_no_id():
    raw = encode_metadata(12).replace(ID.bytes, bytes(16))
    assert MetadataRequest([]).decode(12, raw, 0).topics["orders"].topic_id is None


def test_the_version_is_the_highest_that_both_speak():
    assert MetadataRequest([]).choose_version({3: (0, 13)}) == 12
    assert MetadataRequest([]).choose_version({3: (0, 9)}) == 9


@pytest.mark.parametrize("version", [8, 12])
def test_a_name_that_kafka_cannot_read_is_not_sent(version: int):
    """Brokers closed the connection of all requests because of a group or topic of a client."""
    longest = "g" * 32_767
    assert longest.encode() in MetadataRequest([longest]).encode(version)
    with pytest.raises(FormatError, match="32768 bytes"):
        MetadataRequest([longest + "g"]).encode(version)


@pytest.mark.parametrize("theirs", [{}, {3: (0, 7)}, {3: (13, 20)}])
def test_no_common_version_is_told(theirs: dict[int, tuple[int, int]]):
    with pytest.raises(KafkaError, match="Metadata"):
        MetadataRequest([]).choose_version(theirs)


async def test_aiokafkas_connection_still_takes_requests_of_our_own():
    """Pinned: an upgrade of aiokafka that fails here changed the interface named in
    `kafka.client.aiokafka_internals`, or the constructor that `connections` uses."""

    async def answer(asked: BrokerRequest) -> bytes | None:
        return b"\0" + encode_metadata(asked.api_version)  # no tags in the flexible header

    async with FakeBroker(answer) as broker:
        connection = KafkaConnection(
            *broker.address, client_id="tester", request_timeout_ms=5000, max_idle_ms=60_000
        )
        await connection.connect()
        assert connection._versions[3] == (0, 12)
        answered = await connection.send(MetadataRequest(["orders"]))
        assert answered.cluster_id == "c"
        assert broker.requests[0][:3] == (3, 12, "tester")
        # the flexible header: the client id in its old form, then tags
        assert broker.requests[0].body == b"\0" + MetadataRequest(["orders"]).encode(12)
        assert connection.connected()
        connection.close()
        assert not connection.connected()


def test_a_stream_made_of_bytes_gives_them_back_uncopied():
    """What answers are read through: no copy of megabytes of records."""
    data = bytes(1 << 16)
    assert BytesIO(data).getvalue() is data
