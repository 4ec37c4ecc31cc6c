"""What members of a classic group tell each other through the broker: bytes of the `consumer`
protocol type, ConsumerProtocolSubscription 0 to 3 and ConsumerProtocolAssignment 0 to 3.

The same bytes as of Java's CooperativeStickyAssignor, whose user data is the generation: a
leader older than version 2 (KIP-792) looks for it there. librdkafka's user data, too, ends
with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from gateway.core.group.assignor import MemberSubscription
from gateway.core.log.record import TopicPartition

from .codec import FieldReader, FieldWriter

SUBSCRIPTION_VERSION = 3
# Nothing came after 0 but the number; whoever reads only that takes a later one all the same.
ASSIGNMENT_VERSION = 3

_GENERATION_STRUCT = struct.Struct(">i")


def encode_subscription(
    subscription: MemberSubscription, version: int = SUBSCRIPTION_VERSION
) -> bytes:
    """What a joining member says of itself; its rack is not told."""
    out = FieldWriter(flexible=False)
    out.i16(version)
    out.array(len(subscription.topics))
    for topic in sorted(subscription.topics):
        out.string(topic)
    out.octets(_GENERATION_STRUCT.pack(subscription.generation))
    if version >= 1:
        _write_partitions(out, subscription.owned)
    if version >= 2:
        out.i32(subscription.generation)
    if version >= 3:
        out.string(None)
    return bytes(out.data)


def decode_subscription(member: str, data: bytes) -> MemberSubscription:
    """Of any version: later ones only append. Raises ValueError, IndexError, struct.error."""
    read = FieldReader(data, 0, flexible=False)
    version = read.i16()
    topics = frozenset(read.string() or "" for _ in range(read.array()))
    user_data = read.octets() or b""
    owned = _read_partitions(read) if version >= 1 else frozenset()
    generation = read.i32() if version >= 2 else -1
    if generation < 0:
        generation = _parse_generation(user_data)
    return MemberSubscription(member, topics, owned, generation)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    out = FieldWriter(flexible=False)
    out.i16(ASSIGNMENT_VERSION)
    _write_partitions(out, tps)
    out.octets(None)
    return bytes(out.data)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Of any version; no bytes at all are no partitions. Raises as `decode_subscription`."""
    if not data:
        return frozenset()
    read = FieldReader(data, 0, flexible=False)
    read.i16()
    return _read_partitions(read)


def _parse_generation(user_data: bytes) -> int:
    """Java: the generation alone. librdkafka, aiokafka: topics and partitions before it."""
    read = FieldReader(user_data, 0, flexible=False)
    try:
        if len(user_data) > _GENERATION_STRUCT.size:
            _read_partitions(read)
        return read.i32()
    except (ValueError, struct.error):
        return -1  # another assignor's own


def _write_partitions(out: FieldWriter, tps: Iterable[TopicPartition]) -> None:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(tps):
        topics.setdefault(topic, []).append(partition)
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.string(topic)
        out.array(len(partitions))
        for partition in partitions:
            out.i32(partition)


def _read_partitions(read: FieldReader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(read.array()):
        topic = read.string() or ""
        found.update(TopicPartition(topic, partition) for partition in read.ints())
    return frozenset(found)
