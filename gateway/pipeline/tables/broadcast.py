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

from .columns import parse_json_column

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections.pipelines import Broadcast

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_COLUMN = "_table_key"
"""The column of a table that is held by which it is looked up: its key as text."""
REFRESH_ALERT = "table-not-refreshed"
_MAX_RETRY_DELAY_S = 5.0  # s after a read that failed, at most


class RefreshedValue(Generic[T]):
    """A value that is read anew in the background.

    read:    takes as long as it takes; its failures are kept back once it has succeeded.
    refresh: seconds that a value is used, as long as reads succeed.
    """

    def __init__(
        self,
        read: Callable[[], T],
        refresh_interval_s: float,
        *,
        job: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._refresh_interval_s, self._job, self._clock = (
            read,
            refresh_interval_s,
            job,
            clock,
        )
        self._value: T | None = None
        self._read_started_at = self._refresh_at = self._wait_after = (
            0.0  # when: its read, the next, one waited for
        )
        self._refresh_thread: Thread | None = None

    @property
    def age_s(self) -> float:
        """Seconds since the read began that brought the value."""
        return self._clock() - self._read_started_at

    def get_current(self) -> T:
        """The value for now. Raises PipelineError: there is none yet, and it cannot be read."""
        if self._refresh_thread is not None and not self._refresh_thread.is_alive():
            self._refresh_thread = None
        if self._value is None:
            return self._read_first()
        now = self._clock()
        overdue = now >= self._wait_after  # before it is begun: a read that fails at once moves it
        if self._refresh_thread is None and now >= self._refresh_at:
            self._refresh_thread = Thread(
                target=self._read_again, name=f"table of {self._job}", daemon=True
            )
            self._refresh_thread.start()
        if self._refresh_thread is not None and overdue:
            self._refresh_thread.join()
        return self._value

    def _read_first(self) -> T:
        begun = self._clock()
        try:
            value = self._read()
        except Exception as error:
            what = f"the table of job {self._job} cannot be read: {failures.explain_error(error)}"
            raise PipelineError(f"{what}; the job does not begin without it") from error
        self._replace_value(value, begun)
        return value

    def _read_again(self) -> None:
        begun = self._clock()
        try:
            value = self._read()
        except Exception as error:
            now = self._clock()
            self._refresh_at = now + min(self._refresh_interval_s / 2, _MAX_RETRY_DELAY_S)
            self._wait_after = float("inf")  # what is not to be had is not waited for
            what = f"its table cannot be read: {failures.explain_error(error)}"
            alerts.raise_alert(
                self._job, REFRESH_ALERT, f"{what}; the last one goes on, look at its source"
            )
        else:
            self._replace_value(value, begun)
            alerts.clear_alert(self._job, REFRESH_ALERT)

    def _replace_value(self, value: T, started_at: float) -> None:
        self._read_started_at = started_at
        self._refresh_at, self._wait_after = (
            started_at + self._refresh_interval_s / 2,
            started_at + self._refresh_interval_s,
        )
        self._value = value


def create_refreshed_table(
    table: Broadcast,
    spark: SparkSession,
    kafka_options: Mapping[str, str],
    client_config: Mapping[str, Any] | None = None,
    *,
    job: str,
) -> RefreshedValue[DataFrame]:
    """Return a table of the settings: its columns, and KEY.

    Args:
        table: Its settings.
        spark: A session.
        kafka: Spark's options of the cluster.
        client: librdkafka's properties of it. Without them a topic with a record that Spark cannot
            read is no table.
        job: The name of the job.
    """
    reader = TopicReader(job, table.topic, client_config) if table.topic and client_config else None

    def build_table(raw: pa.Table | None) -> DataFrame:
        if raw is not None:
            return materialize_rows(select_latest_rows(spark.createDataFrame(raw), table))
        return materialize_rows(load_table(table, spark, kafka_options))

    def read_table() -> DataFrame:
        return reader.read(build_table) if reader else build_table(None)

    return RefreshedValue(read_table, table.refresh, job=job)


def load_table(
    table: Broadcast, spark: SparkSession, kafka_options: Mapping[str, str]
) -> DataFrame:
    """Return the table as it is now, one row a key.

    Args:
        table: Its settings.
        spark: A session.
        kafka: Spark's options of the cluster.
    """
    if table.topic is not None:
        whole = {"subscribe": table.topic, "startingOffsets": "earliest"}
        always = {"failOnDataLoss": "false", "kafka.isolation.level": "read_committed"}
        raw = spark.read.format("kafka").options(**kafka_options, **whole, **always).load()
        return select_latest_rows(raw, table)
    from pyspark.sql import functions as F

    assert table.path is not None
    rows = spark.read.parquet(table.path)
    if table.fields:
        rows = rows.select(*{table.key: None, **table.fields})
    return _drop_duplicate_keys(
        rows.withColumn(KEY_COLUMN, F.col(table.key).cast("string")).drop(table.key)
    )


def materialize_rows(rows: DataFrame) -> DataFrame:
    """The same rows, of which nothing has to be read again."""
    return rows.sparkSession.createDataFrame(rows.toArrow(), schema=rows.schema)


def select_latest_rows(raw: DataFrame, table: Broadcast) -> DataFrame:
    """Of Kafka's columns: each key's latest value, unless that is a tombstone."""
    from pyspark.sql import functions as F

    key = F.col("key").cast("string").alias(KEY_COLUMN)
    each = raw.where(F.col("key").isNotNull()).groupBy(key, "partition")
    last = each.agg(F.max_by(F.struct("timestamp", "value"), "offset").alias("last"))
    # Where a topic got more partitions a key may be in two: then the later record.
    one = last.groupBy(KEY_COLUMN).agg(F.max_by("last.value", "last.timestamp").alias("_row"))
    found = parse_json_column(one.where(F.col("_row").isNotNull()), "_row", table.fields)
    if table.key == "_key":
        return found
    return _drop_duplicate_keys(
        found.drop(KEY_COLUMN).withColumn(KEY_COLUMN, F.col(table.key).cast("string"))
    )


def _drop_duplicate_keys(rows: DataFrame) -> DataFrame:
    """One row a key: an event must not become two."""
    from pyspark.sql import functions as F

    return rows.where(F.col(KEY_COLUMN).isNotNull()).dropDuplicates([KEY_COLUMN])
