"""Attacks by those who may write to Kafka: values that are small there and large here."""

from __future__ import annotations

from support.record_sets import varint

from .attack import Attack, Counts, Target, tally
from .lines import Line, drain, follow

MODEL = {"value": {"model": "avro", "catalog": "registry"}}
MAX_BATCH = 1_000_000_000  # bytes; the most that librdkafka takes


def compress_much(target: Target) -> Counts:
    """Write one batch of zeros that zstd makes small. size: megabytes."""
    options = {
        "compression.type": "zstd",
        "linger.ms": 2000,
        "message.max.bytes": MAX_BATCH,
        "batch.size": MAX_BATCH,
        "queue.buffering.max.kbytes": 2_000_000,
    }
    return _write(target, [bytes(1_000_000)] * target.size, options)


def count_nulls(target: Target) -> Counts:
    """Write an Avro array of nulls, each of which takes no byte. size: nulls."""
    schema_one = b"\0\0\0\0\1"
    return _write(target, [schema_one + varint(target.size) + b"\0"], {})


def _write(target: Target, values: list[bytes], options: dict[str, object]) -> Counts:
    with Line(target.port) as line:
        status = follow(line, "/coded")
        target.begin()
        target.produce(target.coded, values, **options)
        return {f"status {status}": 1, **tally(drain([line], target.seconds))}


ATTACKS = {
    "batch-compressed": Attack(
        "one batch of 300 MB of zeros, by zstd", compress_much, 300, 2, seconds=8
    ),
    "array-of-nulls": Attack(
        "an Avro array of 20 million nulls, in 9 bytes",
        count_nulls,
        20_000_000,
        100,
        seconds=8,
        coded=MODEL,
    ),
}
