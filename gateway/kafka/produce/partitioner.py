"""Compute the partition that Kafka's default partitioner chooses for a key.

The partition is murmur2 of the key's bytes, with the sign bit cleared, modulo the number of
partitions, as in Java's clients and in librdkafka's `murmur2_random`.
"""

from __future__ import annotations

from functools import lru_cache

from aiokafka.partitioner import murmur2

_cached_murmur2 = lru_cache(1 << 16)(murmur2)  # aiokafka's is pure Python: 3 us for a short key
_MAX_CACHED_KEY_BYTES = 256  # larger keys would take too much memory in the cache


def compute_partition(key: bytes, partition_count: int) -> int:
    hashed = _cached_murmur2(key) if len(key) < _MAX_CACHED_KEY_BYTES else murmur2(key)
    return int(hashed & 0x7FFFFFFF) % partition_count
