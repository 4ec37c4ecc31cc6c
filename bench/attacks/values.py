"""Attack by records that are small in Kafka and large in the gateway."""

from __future__ import annotations

from support.record_sets import encode_varint

from .attack import AttackCounts, Target, attack
from .connections import AttackConnection, drain_connections, follow_stream

VALUE_MODEL = {"value": {"model": "avro", "catalog": "registry"}}
MAX_BATCH_BYTES = 1_000_000_000  # bytes; the most that librdkafka takes


@attack("batch-compressed", "one batch of 300 MB of zeros, by zstd", 300, seconds=8)
def write_compressed_zeros(target: Target) -> AttackCounts:
    """Write one batch of zeros that zstd makes small. size: megabytes."""
    options = {
        "compression.type": "zstd",
        "linger.ms": 2000,
        "message.max.bytes": MAX_BATCH_BYTES,
        "batch.size": MAX_BATCH_BYTES,
        "queue.buffering.max.kbytes": 2_000_000,
    }
    return _write_and_read(target, [bytes(1_000_000)] * target.size, options)


@attack(
    "array-of-nulls",
    "an Avro array of 20 million nulls, in 9 bytes",
    20_000_000,
    100,
    seconds=8,
    coded_topic_settings=VALUE_MODEL,
)
def write_nulls(target: Target) -> AttackCounts:
    """Write an Avro array of nulls, each of which takes no byte. size: nulls."""
    schema_one = b"\0\0\0\0\1"
    return _write_and_read(target, [schema_one + encode_varint(target.size) + b"\0"], {})


def _write_and_read(
    target: Target, values: list[bytes], options: dict[str, object]
) -> AttackCounts:
    with AttackConnection(target.port) as line:
        status = follow_stream(line, "/coded")
        target.announce_begin()
        target.produce_values(target.coded_topic, values, **options)
        return {f"status {status}": 1, **drain_connections([line], target.seconds)}
