"""Where Kafka's default partitioner puts a record with a key: murmur2 of the key's bytes, made
positive (not absolute), modulo the partitions. Java's clients, librdkafka's `murmur2_random`."""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

_hash = lru_cache(1 << 16)(murmur2)  # aiokafka's is pure Python: 3 us for a short key
_LONG = 256  # bytes from which a key is not worth keeping


def partition_of(key: bytes, count: int) -> int:
    """The partition of a key among so many."""
    hashed = _hash(key) if len(key) < _LONG else murmur2(key)
    return int(hashed & 0x7FFFFFFF) % count
