from __future__ import annotations

import pytest

from gateway.kafka.produce.pending_records import compute_partition


@pytest.mark.parametrize(
    ("key", "murmur2"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
@pytest.mark.parametrize("count", [1, 7, 12, 1000])
def test_a_key_is_where_the_clients_of_kafka_put_it(key: bytes, murmur2: int, count: int):
    """The hashes are those of Kafka's own UtilsTest; made positive as Utils.toPositive does."""
    assert compute_partition(key, count) == (murmur2 & 0x7FFFFFFF) % count


def test_a_long_key_is_placed_alike():
    assert {compute_partition(b"k" * 1000, 12) for _ in range(2)} == {
        compute_partition(b"k" * 1000, 12)
    }
