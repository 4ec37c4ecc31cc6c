"""Where Kafka's default partitioner puts a record with a key: murmur2 of the key's bytes, made
positive (not absolute), modulo the partitions. Java's clients, librdkafka's `murmur2_random`."""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

_cached_murmur2 = lru_cache(1 << 16)(murmur2)  # aiokafka's is pure Python: 3 us for a short key
_MAX_CACHED_KEY_BYTES = 256  # bytes from which a key is not worth keeping


def compute_partition(key: bytes, partition_count: int) -> int:
    """The partition of a key among so many."""
    hashed = _cached_murmur2(key) if len(key) < _MAX_CACHED_KEY_BYTES else murmur2(key)
    return int(hashed & 0x7FFFFFFF) % partition_count
