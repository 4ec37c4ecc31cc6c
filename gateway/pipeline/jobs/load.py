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

from gateway.config.sections.pipeline import Fields, Input
from gateway.pipeline.tables.redis import NOTE, Away, Redis, Server, texts
from gateway.pipeline.tables.waiting import Waiting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from gateway.config.sections.pipelines import Load

_WRITTEN = "topic string, partition int, next bigint"


def input(settings: Load) -> Input:
    """What it reads: values as they are, among them those that delete."""
    return settings.from_.model_copy(update={"value": Fields(model="string"), "time": "_timestamp"})


def build(settings: Load, tables: Mapping[str, DataFrame]) -> DataFrame:
    """The latest record of each key of a batch: key, value, topic, partition, offset."""
    from pyspark.sql import functions as F

    key = F.col("_key").cast("string")
    rows = tables["from"].where(key.isNotNull() & (key != NOTE)).groupBy(key.alias("key"))
    place = (F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset"))
    last = rows.agg(F.max_by(F.struct("value", *place), "_offset").alias("last"))
    return last.select("key", "last.*")


class Loader:
    """For foreachBatch, with a stream of what `input` reads."""

    def __init__(self, settings: Load) -> None:
        self._settings, self._server = settings, Server.of(settings.into)

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        """Write a batch. Raises PipelineError; waits while Redis is away."""
        server = self._server

        def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return written(server, batches)

        latest = build(self._settings, {"from": rows})
        found = latest.mapInArrow(write, _WRITTEN).groupBy("topic", "partition")
        ends = found.agg({"next": "max"}).collect()
        note(server, {f"{topic}:{partition}": end for topic, partition, end in ends})


def mode(settings: Load) -> Literal["append", "update"]:
    return "append"


def realtime(settings: Load) -> str | None:
    return "a table is loaded batch by batch; use a trigger such as 0s"


def problems(settings: Load, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    """What cannot be right, with what to do; without Spark."""
    model = settings.from_.value.model
    if model not in ("json", "string"):
        what = f"from.value.model: {model} is not what lookups read"
        yield f"{what}; make JSON of it by a job of type query, and load its topic"
    if not settings.into.url.startswith(("redis://", "rediss://", "unix://")):
        yield "into.url: is no address of Redis; write such as redis://localhost:6379/0"


def written(server: Server, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The places behind the rows, which are written. In a worker."""
    import pyarrow as pa

    redis = Redis(server)
    for batch in batches:
        keys, values, *_ = batch.columns
        rows = list(zip(texts(keys), values.cast(pa.binary()).to_pylist(), strict=True))
        _patiently(server, lambda rows=rows: redis.store(rows))
        behind = pa.compute.add(batch["offset"], 1)
        columns = [batch["topic"], batch["partition"], behind]
        yield pa.RecordBatch.from_arrays(columns, ["topic", "partition", "next"])
    redis.close()


def note(server: Server, positions: Mapping[str, int]) -> None:
    """How far the table is loaded, for its readers."""
    redis = Redis(server)
    if positions:
        _patiently(server, lambda: redis.note(positions, int(time.time() * 1000)))
    redis.close()


def _patiently(server: Server, do: Any) -> None:
    waiting = Waiting(f"Redis at {server.shown}")
    while True:
        try:
            do()
        except Away as error:
            waiting.failed(error, "the batch waits")
        else:
            return waiting.succeeded()
