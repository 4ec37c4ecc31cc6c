"""A job as a stream without a broker: batches are files, each read by one trigger."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.spark import NO_PYTHON_WORKER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]


class FileStream:
    """columns: Spark's types of the rows, `time` among them. job: from the watermarked stream to
    the result. One checkpoint, so that it may be ended and started again."""

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        columns: str,
        job: Callable[[DataFrame], DataFrame],
        *,
        watermark: str,
        mode: str = "append",
    ) -> None:
        self._spark, self._columns, self._job = spark, columns, job
        self._watermark, self._mode = watermark, mode
        self._source_directory, self._checkpoint_directory = (
            directory / "source",
            directory / "checkpoint",
        )
        self._source_directory.mkdir(parents=True)
        self._file_count = 0
        self._query: Any = None
        self._batches: dict[int, list[dict[str, Any]]] = {}
        self.finished_progress: list[Any] = []

    def __enter__(self) -> FileStream:
        self._start_query()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop_query()

    def restart_query(self) -> None:
        self._stop_query()
        self._start_query()

    def process_rows(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """What comes out of these rows, and of the batch without any that Spark adds where the
        watermark has moved."""
        before = max(self._batches, default=-1)
        self._file_count += 1
        written = self._source_directory / f".{self._file_count:06}.json"
        written.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
        written.rename(self._source_directory / f"{self._file_count:06}.json")
        self._process_all()
        return [row for n, rows in sorted(self._batches.items()) if n > before for row in rows]

    def _process_all(self) -> None:
        from pyspark.errors import StreamingQueryException

        while True:
            try:
                return self._query.processAllAvailable()
            except StreamingQueryException as error:
                if NO_PYTHON_WORKER not in str(error):
                    raise
                self.restart_query()

    @property
    def output_rows(self) -> list[dict[str, Any]]:
        return [row for _, rows in sorted(self._batches.items()) for row in rows]

    @property
    def dropped_row_count(self) -> int:
        """Rows that Spark found late, until now."""
        return sum(
            operator.numRowsDroppedByWatermark
            for progress in self._list_progress()
            for operator in progress.stateOperators
        )

    @property
    def state_row_count(self) -> int:
        """Rows of state after the newest batch. A query that idles tells of no operator."""
        batches = [progress for progress in self._list_progress() if progress.stateOperators]
        return sum(operator.numRowsTotal for operator in batches[-1].stateOperators)

    def _list_progress(self) -> list[Any]:
        return [*self.finished_progress, *self._query.recentProgress]

    def _start_query(self) -> None:
        events = (
            self._spark.readStream.schema(self._columns)
            .option("maxFilesPerTrigger", 1)
            .json(str(self._source_directory))
            .withWatermark("time", self._watermark)
        )
        self._query = (
            self._job(events)
            .writeStream.outputMode(self._mode)
            .option("checkpointLocation", str(self._checkpoint_directory))
            .foreachBatch(self._on_batch)
            .start()
        )

    def _stop_query(self) -> None:
        with suppress(Exception):  # of a query that failed: what it failed with is told already
            self.finished_progress += self._query.recentProgress
        self._query.stop()

    def _on_batch(self, rows: DataFrame, batch: int) -> None:
        self._batches[batch] = [row.asDict() for row in rows.collect()]
