"""Jobs of type `load`: load a compacted topic into Redis.

Redis then has the latest value of each key, and no keys whose latest value is a tombstone, unless
compaction removed it before it was read: rows that no record deletes stay, as the log says. A batch
that is repeated writes the same values again, so at-least-once delivery suffices. If a batch has
several records of a key, the one with the highest offset is written. All records of a key must be
in one partition, because offsets of different partitions cannot be compared.

After each batch, the progress is written to the hash `<prefix>!loaded`: `topic:partition` has the
next offset to load, `at` the time in milliseconds since 1970, and `batch of <job>` the batch. Rows
are written once only, so a job ends if Redis has lost the batch before, and its rows with it.

`owner of <job>` is the query (the id of the checkpoint) that loads the table, as a number. The
first batch of a process makes its query the owner, unless its checkpoint was only begun because
the owner's is missing: it would write values of years ago over the latest ones. A process whose
query is not the owner any more ends. So does one that finds in `process of <job>` a process that
is neither itself nor the one that was there at its first batch: it was held up, and a newer one
with the same checkpoint has gone on.

Before the first row of a batch, `token of <job>` is set to a new number. If it is another one after
the last row, Redis has lost rows of this batch, which is written again.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar
from uuid import UUID

from gateway.errors import CheckpointRefused
from gateway.pipeline.spark import F
from gateway.pipeline.tables.lookup import OutageBackoff
from gateway.pipeline.tables.redis import (
    LOADED_KEY,
    RedisConfig,
    RedisTable,
    RedisUnavailable,
    decode_texts,
    is_url,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from gateway.config.sections.pipelines import Load

log = logging.getLogger(__name__)

T = TypeVar("T")

# Of the rows that `write_batches` returns: the next offset after each record that was written.
_WRITTEN_SCHEMA = "topic string, partition int, next bigint"


def build(settings: Load, tables: Mapping[str, DataFrame]) -> DataFrame:
    """Return `key`, `value`, `topic`, `partition`, `offset` of the latest record of each key."""
    key = F.col("_key").cast("string")
    rows = tables["from"].where(key.isNotNull() & (key != LOADED_KEY)).groupBy(key.alias("key"))
    origin = (F.col(f"_{name}").alias(name) for name in ("topic", "partition", "offset"))
    last = rows.agg(F.max_by(F.struct("value", *origin), "_offset").alias("last"))
    return last.select("key", "last.*")


class BatchLoader:
    """The function of `foreachBatch` that writes a batch, with values as they are, into Redis."""

    def __init__(self, settings: Load, query_id: str, *, is_first: bool = False) -> None:
        """Do nothing yet.

        Args:
            is_first: As of `Checkpoint`.
        """
        self._settings, self._server = settings, RedisConfig.from_settings(settings.into)
        self._owner = UUID(query_id).int
        self._may_replace_owner = not is_first
        self._process = secrets.randbits(62)
        self._previous_process: int | None = None  # until the first batch

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        """Write a batch, and then the loaded offsets. Wait while Redis does not answer.

        Raises:
            CheckpointRefused: Redis has lost batches before this one, or another query loads it.
        """
        server = self._server  # a local variable, so that only this is sent to the workers

        def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return write_batches(server, batches)

        name = self._settings.name
        is_stored = False
        while not is_stored:
            token = self._begin_batch(epoch)
            latest = build(self._settings, {"from": rows})
            written = latest.mapInArrow(write_partition, _WRITTEN_SCHEMA)
            ends = written.groupBy("topic", "partition").agg({"next": "max"}).collect()
            positions = {f"{topic}:{partition}": end for topic, partition, end in ends}
            is_stored = self._store_positions(epoch, positions, token)
            if not is_stored:
                problem = f"Redis at {server.display_url} has lost rows of {server.prefix}*"
                log.warning("job %s: %s; batch %d is written again", name, problem, epoch)

    def _begin_batch(self, epoch: int) -> int:
        """Verify that Redis has the batch before, and return the token of this one."""
        token = secrets.randbits(62)

        def verify_and_store() -> None:
            stored = redis.fetch_positions()
            self._verify(stored, epoch)
            begun = {"token": token, "owner": self._owner, "process": self._process}
            fields = {f"{name} of {self._settings.name}": value for name, value in begun.items()}
            redis.store_positions(fields, stored.get("at", 0))

        with closing(RedisTable(self._server)) as redis:
            _retry_while_unavailable(self._server, verify_and_store)
        self._may_replace_owner = False
        return token

    def _verify(self, stored: Mapping[str, int], epoch: int) -> None:
        job, prefix, url = self._settings.name, self._server.prefix, self._server.display_url
        owner = stored.get(f"owner of {job}")
        if owner not in (None, self._owner) and not self._may_replace_owner:
            raise CheckpointRefused(
                f"job {job}: query {UUID(int=owner)} has loaded {prefix}* into Redis at {url}: put "
                "its checkpoint back (see `pipelines.checkpoints`), or start again with --fresh, "
                "which loads all"
            )
        if stored and owner != self._owner and epoch == 0:
            log.warning(
                "job %s: rows of earlier loads stay in Redis at %s, also of keys that the topic "
                "does not have any more: to drop them, delete %s* and start with --fresh",
                *(job, url, prefix),
            )
        process = stored.get(f"process of {job}", 0)
        if self._previous_process is None:
            self._previous_process = process
        if process not in (0, self._process, self._previous_process):
            raise CheckpointRefused(
                f"job {job}: another process with this checkpoint has begun to load {prefix}* into "
                f"Redis at {url} since: run only one. This one may have written older rows over "
                "newer ones; --fresh loads all again"
            )
        last = stored.get(f"batch of {job}", -1)
        if last < epoch - 1:
            raise CheckpointRefused(
                f"job {job}: Redis at {url} has lost rows of {prefix}*: it has {last + 1} of "
                f"{epoch} batches; start again with --fresh, which loads all"
            )

    def _store_positions(self, epoch: int, positions: Mapping[str, int], token: int) -> bool:
        """Store the progress, and return True, if Redis still has the token of the batch."""
        job = self._settings.name

        def verify_and_store() -> bool:
            is_kept = redis.fetch_positions().get(f"token of {job}") == token
            if is_kept:
                progress = {**positions, f"batch of {job}": epoch}
                redis.store_positions(progress, int(time.time() * 1000))
            return is_kept

        with closing(RedisTable(self._server)) as redis:
            return _retry_while_unavailable(self._server, verify_and_store)


def get_output_mode(settings: Load) -> Literal["append", "update"]:
    return "append"


def check_realtime(settings: Load) -> str | None:
    return "a table is loaded batch by batch; use a trigger such as 0s"


def check_job(settings: Load, columns: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    model = settings.from_.value.model
    if model not in ("json", "string"):
        problem = f"from.value.model: lookups cannot read {model}"
        yield f"{problem}; convert it to JSON with a job of type query, and load the output of that"
    if not is_url(settings.into.url):
        yield "into.url: is not a URL of Redis; write one such as redis://localhost:6379/0"


def write_batches(
    server: RedisConfig, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write rows into Redis in a worker; yield topic, partition and next offset of each row."""
    import pyarrow as pa

    redis = RedisTable(server)
    for batch in batches:
        keys, values, *_ = batch.columns
        rows = list(zip(decode_texts(keys), values.cast(pa.binary()).to_pylist(), strict=True))
        _retry_while_unavailable(server, partial(redis.store_rows, rows))
        next_offsets = pa.compute.add(batch["offset"], 1)
        columns = [batch["topic"], batch["partition"], next_offsets]
        yield pa.RecordBatch.from_arrays(columns, ["topic", "partition", "next"])
    redis.close()


def _retry_while_unavailable(server: RedisConfig, operation: Callable[[], T]) -> T:
    backoff = OutageBackoff(f"Redis at {server.display_url}")
    while True:
        try:
            result = operation()
        except RedisUnavailable as error:
            backoff.wait_for_retry(error, "the batch waits")
        else:
            backoff.reset()
            return result
