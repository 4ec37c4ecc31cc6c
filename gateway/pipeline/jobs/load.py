"""A compacted topic into Redis: each key's latest value as it is, and no key that has none.

It runs batch by batch. A batch that is repeated writes the same again, so that at least once
suffices; of a key with several records in a batch the one of the highest offset is written, by
whichever task read it. A key is expected in one partition. How far the table is loaded stands
beside it, after each batch: `<prefix>!loaded`, a hash of `topic:partition` to the next offset, and
`at`, in ms since 1970.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from gateway.config.sections.job import Fields, Input
from gateway.pipeline.tables.outage import OutageBackoff
from gateway.pipeline.tables.redis import (
    LOADED_KEY,
    RedisConfig,
    RedisTable,
    RedisUnavailable,
    decode_texts,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from gateway.config.sections.pipelines import Load

_WRITTEN_SCHEMA = "topic string, partition int, next bigint"


def build_input(settings: Load) -> Input:
    """What it reads: values as they are, among them those that delete."""
    return settings.from_.model_copy(update={"value": Fields(model="string"), "time": "_timestamp"})


def build(settings: Load, tables: Mapping[str, DataFrame]) -> DataFrame:
    """The latest record of each key of a batch: key, value, topic, partition, offset."""
    from pyspark.sql import functions as F

    key = F.col("_key").cast("string")
    rows = tables["from"].where(key.isNotNull() & (key != LOADED_KEY)).groupBy(key.alias("key"))
    place = (F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset"))
    last = rows.agg(F.max_by(F.struct("value", *place), "_offset").alias("last"))
    return last.select("key", "last.*")


class BatchLoader:
    """For foreachBatch, with a stream of what `input` reads."""

    def __init__(self, settings: Load) -> None:
        self._settings, self._server = settings, RedisConfig.from_settings(settings.into)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        """Write a batch. Raises PipelineError; waits while Redis is away."""
        server = self._server

        def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_batches(server, batches)

        latest = build(self._settings, {"from": rows})
        found = latest.mapInArrow(write_partition, _WRITTEN_SCHEMA).groupBy("topic", "partition")
        ends = found.agg({"next": "max"}).collect()
        store_loaded_positions(
            server, {f"{topic}:{partition}": end for topic, partition, end in ends}
        )


def get_output_mode(settings: Load) -> Literal["append", "update"]:
    return "append"


def check_realtime(settings: Load) -> str | None:
    return "a table is loaded batch by batch; use a trigger such as 0s"


def check_job(settings: Load, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What cannot be right, with what to do; without Spark."""
    model = settings.from_.value.model
    if model not in ("json", "string"):
        what = f"from.value.model: {model} is not what lookups read"
        yield f"{what}; make JSON of it by a job of type query, and load its topic"
    if not settings.into.url.startswith(("redis://", "rediss://", "unix://")):
        yield "into.url: is no address of Redis; write such as redis://localhost:6379/0"


def write_batches(
    server: RedisConfig, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The places behind the rows, which are written. In a worker."""
    import pyarrow as pa

    redis = RedisTable(server)
    for batch in batches:
        keys, values, *_ = batch.columns
        rows = list(zip(decode_texts(keys), values.cast(pa.binary()).to_pylist(), strict=True))
        _retry_while_unavailable(server, lambda rows=rows: redis.store_rows(rows))
        behind = pa.compute.add(batch["offset"], 1)
        columns = [batch["topic"], batch["partition"], behind]
        yield pa.RecordBatch.from_arrays(columns, ["topic", "partition", "next"])
    redis.close()


def store_loaded_positions(server: RedisConfig, positions: Mapping[str, int]) -> None:
    """How far the table is loaded, for its readers."""
    redis = RedisTable(server)
    if positions:
        _retry_while_unavailable(
            server, lambda: redis.store_positions(positions, int(time.time() * 1000))
        )
    redis.close()


def _retry_while_unavailable(server: RedisConfig, operation: Any) -> None:
    waiting = OutageBackoff(f"Redis at {server.display_url}")
    while True:
        try:
            operation()
        except RedisUnavailable as error:
            waiting.wait_for_retry(error, "the batch waits")
        else:
            return waiting.reset()
