"""Join a small table as a whole, and read it again at intervals.

The driver keeps the table as Arrow data. A plan that reads files or blocks of an executor would
fail when they are gone; this plan contains the data itself. If a read fails, the last table stays
in use, and an alert is raised. The table is only replaced between two batches.

The first read must succeed, because otherwise events would be written without their row, and never
corrected. Later reads happen in the background. Only if the table has become older than `refresh`,
because batches are rare, its read is waited for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from gateway.errors import PipelineError
from gateway.pipeline import failures
from gateway.pipeline.reports import REFRESH_ALERT, Reports
from gateway.pipeline.spark import F

from .lookup import parse_json_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from gateway.config.sections.pipelines import Broadcast

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_COLUMN = "_table_key"
"""The column with the key of a table as text, by which the table is joined."""
_MAX_RETRY_DELAY_S = 5.0  # after a read that failed


class RefreshedValue(Generic[T]):
    """A value that a background thread reads again at intervals.

    A job creates one for its table, and calls `get_current` in every batch. A read begins when half
    of the interval has passed, and at most one runs at a time. Except for the first value, the
    thread assigns the value and its times, and `get_current` only reads them.
    """

    def __init__(
        self,
        read: Callable[[], T],
        refresh_interval_s: float,
        *,
        job: str,
        reports: Reports,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the value up; it is not read yet.

        Args:
            read: Reads the value. It may take any time. Once it has succeeded, its errors only
                raise an alert.
            refresh_interval_s: How old a value may be, in seconds, as long as reads succeed.
        """
        self._read = read
        self._refresh_interval_s = refresh_interval_s
        self._job = job
        self._reports = reports
        self._clock = clock
        self._value: T | None = None
        # Seconds of the clock: when the next read may begin, and from when on `get_current` waits
        # for it.
        self._refresh_at = self._wait_after = 0.0
        self._refresh_thread: Thread | None = None

    def get_current(self) -> T:
        """Return the value, and begin to read it again if that is due."""
        if self._refresh_thread is not None and not self._refresh_thread.is_alive():
            self._refresh_thread = None
        if self._value is None:
            return self._read_first()
        now = self._clock()
        # Compared before the thread starts: a read that fails at once changes `_wait_after`.
        is_overdue = now >= self._wait_after
        if self._refresh_thread is None and now >= self._refresh_at:
            self._refresh_thread = Thread(
                target=self._read_again, name=f"table of {self._job}", daemon=True
            )
            self._refresh_thread.start()
        if self._refresh_thread is not None and is_overdue:
            self._refresh_thread.join()
        return self._value

    def _read_first(self) -> T:
        began = self._clock()
        try:
            value = self._read()
        except Exception as error:
            cause = failures.explain_error(error)
            problem = f"the table of job {self._job} cannot be read: {cause}"
            raise PipelineError(f"{problem}; the job does not begin without it") from error
        self._replace_value(value, began)
        return value

    def _read_again(self) -> None:
        began = self._clock()
        try:
            value = self._read()
        except Exception as error:
            now = self._clock()
            self._refresh_at = now + min(self._refresh_interval_s / 2, _MAX_RETRY_DELAY_S)
            # While reads fail, batches use the old value and do not wait.
            self._wait_after = float("inf")
            problem = f"its table cannot be read: {failures.explain_error(error)}"
            self._reports.raise_alert(
                self._job,
                REFRESH_ALERT,
                f"{problem}; the last table stays in use, check its source",
            )
        else:
            self._replace_value(value, began)

    def _replace_value(self, value: T, started_at: float) -> None:
        self._refresh_at = started_at + self._refresh_interval_s / 2
        self._wait_after = started_at + self._refresh_interval_s
        self._value = value
        # Also after the first read: the query before this one may have raised it.
        self._reports.clear_alert(self._job, REFRESH_ALERT)


def load_table(
    table: Broadcast, spark: SparkSession, kafka_options: Mapping[str, str]
) -> DataFrame:
    """Return a table as it is now, with one row per key."""
    if table.topic is not None:
        options = {
            "subscribe": table.topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": "false",
            "kafka.isolation.level": "read_committed",
        }
        raw = spark.read.format("kafka").options(**kafka_options, **options).load()
        return select_latest_rows(raw, table)
    assert table.path is not None
    rows = spark.read.parquet(table.path)
    if table.fields:
        rows = rows.select(*{table.key: None, **table.fields})
    return _drop_duplicate_keys(
        rows.withColumn(KEY_COLUMN, F.col(table.key).cast("string")).drop(table.key)
    )


def select_latest_rows(raw: DataFrame, table: Broadcast) -> DataFrame:
    """Return the latest value of each key, without keys whose latest value is a tombstone."""
    key = F.col("key").cast("string").alias(KEY_COLUMN)
    by_partition = raw.where(F.col("key").isNotNull()).groupBy(key, "partition")
    last = by_partition.agg(F.max_by(F.struct("timestamp", "value"), "offset").alias("last"))
    # If a topic got more partitions, a key may be in two of them. Offsets of different partitions
    # cannot be compared, so the record with the later timestamp counts.
    latest = last.groupBy(KEY_COLUMN).agg(F.max_by("last.value", "last.timestamp").alias("_row"))
    rows = parse_json_column(latest.where(F.col("_row").isNotNull()), "_row", table.fields)
    if table.key == "_key":
        return rows
    return _drop_duplicate_keys(
        rows.drop(KEY_COLUMN).withColumn(KEY_COLUMN, F.col(table.key).cast("string"))
    )


def _drop_duplicate_keys(rows: DataFrame) -> DataFrame:
    """Return one row per key, so that the join does not duplicate events."""
    return rows.where(F.col(KEY_COLUMN).isNotNull()).dropDuplicates([KEY_COLUMN])
