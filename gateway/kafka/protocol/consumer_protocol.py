"""What members of a classic group tell each other through the broker: bytes of the `consumer`
protocol type, ConsumerProtocolSubscription 0 to 3 and ConsumerProtocolAssignment 0 to 3.

The same bytes as of Java's CooperativeStickyAssignor, whose user data is the generation: a
leader older than version 2 (KIP-792) looks for it there. librdkafka's user data, too, ends
with it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from gateway.core.group.assignor import Claim
from gateway.core.log.record import TopicPartition

from .codec import Reader, Writer

SUBSCRIPTION = 3
# Nothing came after 0 but the number; whoever reads only that takes a later one all the same.
ASSIGNMENT = 3

_GENERATION = struct.Struct(">i")


def encode_subscription(claim: Claim, version: int = SUBSCRIPTION) -> bytes:
    """What a joining member says of itself; its rack is not told."""
    out = Writer(flexible=False)
    out.i16(version)
    out.array(len(claim.topics))
    for topic in sorted(claim.topics):
        out.string(topic)
    out.octets(_GENERATION.pack(claim.generation))
    if version >= 1:
        _write(out, claim.owned)
    if version >= 2:
        out.i32(claim.generation)
    if version >= 3:
        out.string(None)
    return bytes(out.data)


def decode_subscription(member: str, data: bytes) -> Claim:
    """Of any version: later ones only append. Raises ValueError, IndexError, struct.error."""
    read = Reader(data, 0, flexible=False)
    version = read.i16()
    topics = frozenset(read.string() or "" for _ in range(read.array()))
    user_data = read.octets() or b""
    owned = _read(read) if version >= 1 else frozenset()
    generation = read.i32() if version >= 2 else -1
    if generation < 0:
        generation = _generation(user_data)
    return Claim(member, topics, owned, generation)


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    out = Writer(flexible=False)
    out.i16(ASSIGNMENT)
    _write(out, tps)
    out.octets(None)
    return bytes(out.data)


def decode_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Of any version; no bytes at all are no partitions. Raises as `decode_subscription`."""
    if not data:
        return frozenset()
    read = Reader(data, 0, flexible=False)
    read.i16()
    return _read(read)


def _generation(user_data: bytes) -> int:
    """Java: the generation alone. librdkafka, aiokafka: topics and partitions before it."""
    read = Reader(user_data, 0, flexible=False)
    try:
        if len(user_data) > _GENERATION.size:
            _read(read)
        return read.i32()
    except (ValueError, struct.error):
        return -1  # another assignor's own


def _write(out: Writer, tps: Iterable[TopicPartition]) -> None:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(tps):
        topics.setdefault(topic, []).append(partition)
    out.array(len(topics))
    for topic, partitions in topics.items():
        out.string(topic)
        out.array(len(partitions))
        for partition in partitions:
            out.i32(partition)


def _read(read: Reader) -> frozenset[TopicPartition]:
    found: set[TopicPartition] = set()
    for _ in range(read.array()):
        topic = read.string() or ""
        found.update(TopicPartition(topic, partition) for partition in read.ints())
    return frozenset(found)
