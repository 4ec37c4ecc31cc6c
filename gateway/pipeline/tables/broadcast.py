"""A small table that is joined as a whole, and read anew as it ages.

It is read by Spark and kept in the driver as Arrow: a plan that reads files, or blocks of an
executor, fails when they are gone; this one is a value. A read that fails changes nothing (the
last good table goes on, with a line and an alert), and the swap is between two batches.

The first read is waited for, and must succeed: events would otherwise be told without their row,
for ever. Later ones happen meanwhile; only a table that got older than `refresh` nevertheless,
because batches are rare, is waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gateway.errors import PipelineError
from gateway.pipeline.progress import alerts
from gateway.pipeline.run import failures
from gateway.pipeline.unreadable.table import TopicReader

from .columns import parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections.pipelines import Broadcast

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY = "_table_key"
"""The column of a table that is held by which it is looked up: its key as text."""
ALERT = "table-not-refreshed"
_AGAIN = 5.0  # s after a read that failed, at most


class Refreshed(Generic[T]):
    """A value that is read anew in the background.

    read:    takes as long as it takes; its failures are kept back once it has succeeded.
    refresh: seconds that a value is used, as long as reads succeed.
    """

    def __init__(
        self,
        read: Callable[[], T],
        refresh: float,
        *,
        job: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._refresh, self._job, self._clock = read, refresh, job, clock
        self._value: T | None = None
        self._begun = self._due = self._overdue = 0.0  # when: its read, the next, one waited for
        self._reading: Thread | None = None

    @property
    def age(self) -> float:
        """Seconds since the read began that brought the value."""
        return self._clock() - self._begun

    def current(self) -> T:
        """The value for now. Raises PipelineError: there is none yet, and it cannot be read."""
        if self._reading is not None and not self._reading.is_alive():
            self._reading = None
        if self._value is None:
            return self._first()
        now = self._clock()
        overdue = now >= self._overdue  # before it is begun: a read that fails at once moves it
        if self._reading is None and now >= self._due:
            self._reading = Thread(target=self._again, name=f"table of {self._job}", daemon=True)
            self._reading.start()
        if self._reading is not None and overdue:
            self._reading.join()
        return self._value

    def _first(self) -> T:
        begun = self._clock()
        try:
            value = self._read()
        except Exception as error:
            what = f"the table of job {self._job} cannot be read: {failures.explain(error)}"
            raise PipelineError(f"{what}; the job does not begin without it") from error
        self._swap(value, begun)
        return value

    def _again(self) -> None:
        begun = self._clock()
        try:
            value = self._read()
        except Exception as error:
            now = self._clock()
            self._due = now + min(self._refresh / 2, _AGAIN)
            self._overdue = float("inf")  # what is not to be had is not waited for
            what = f"its table cannot be read: {failures.explain(error)}"
            alerts.raise_(self._job, ALERT, f"{what}; the last one goes on, look at its source")
        else:
            self._swap(value, begun)
            alerts.clear(self._job, ALERT)

    def _swap(self, value: T, begun: float) -> None:
        self._begun = begun
        self._due, self._overdue = begun + self._refresh / 2, begun + self._refresh
        self._value = value


def held(
    table: Broadcast,
    spark: SparkSession,
    kafka: Mapping[str, str],
    client: Mapping[str, Any] | None = None,
    *,
    job: str,
) -> Refreshed[DataFrame]:
    """Return a table of the settings: its columns, and KEY.

    Args:
        table: Its settings.
        spark: A session.
        kafka: Spark's options of the cluster.
        client: librdkafka's properties of it. Without them a topic with a record that Spark cannot
            read is no table.
        job: The name of the job.
    """
    reader = TopicReader(job, table.topic, client) if table.topic and client else None

    def load(raw: pa.Table | None) -> DataFrame:
        if raw is not None:
            return kept(newest(spark.createDataFrame(raw), table))
        return kept(latest(table, spark, kafka))

    def read() -> DataFrame:
        return reader.read(load) if reader else load(None)

    return Refreshed(read, table.refresh, job=job)


def latest(table: Broadcast, spark: SparkSession, kafka: Mapping[str, str]) -> DataFrame:
    """Return the table as it is now, one row a key.

    Args:
        table: Its settings.
        spark: A session.
        kafka: Spark's options of the cluster.
    """
    if table.topic is not None:
        whole = {"subscribe": table.topic, "startingOffsets": "earliest"}
        always = {"failOnDataLoss": "false", "kafka.isolation.level": "read_committed"}
        raw = spark.read.format("kafka").options(**kafka, **whole, **always).load()
        return newest(raw, table)
    from pyspark.sql import functions as F

    assert table.path is not None
    rows = spark.read.parquet(table.path)
    if table.fields:
        rows = rows.select(*{table.key: None, **table.fields})
    return _unique(rows.withColumn(KEY, F.col(table.key).cast("string")).drop(table.key))


def kept(rows: DataFrame) -> DataFrame:
    """The same rows, of which nothing has to be read again."""
    return rows.sparkSession.createDataFrame(rows.toArrow(), schema=rows.schema)


def newest(raw: DataFrame, table: Broadcast) -> DataFrame:
    """Of Kafka's columns: each key's latest value, unless that is a tombstone."""
    from pyspark.sql import functions as F

    key = F.col("key").cast("string").alias(KEY)
    each = raw.where(F.col("key").isNotNull()).groupBy(key, "partition")
    last = each.agg(F.max_by(F.struct("timestamp", "value"), "offset").alias("last"))
    # Where a topic got more partitions a key may be in two: then the later record.
    one = last.groupBy(KEY).agg(F.max_by("last.value", "last.timestamp").alias("_row"))
    found = parsed(one.where(F.col("_row").isNotNull()), "_row", table.fields)
    if table.key == "_key":
        return found
    return _unique(found.drop(KEY).withColumn(KEY, F.col(table.key).cast("string")))


def _unique(rows: DataFrame) -> DataFrame:
    """One row a key: an event must not become two."""
    from pyspark.sql import functions as F

    return rows.where(F.col(KEY).isNotNull()).dropDuplicates([KEY])
