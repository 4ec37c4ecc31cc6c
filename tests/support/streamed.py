"""A job as a stream without a broker: batches are files, each read by one trigger."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = Mapping[str, Any]


class Streamed:
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
        self._source, self._checkpoint = directory / "source", directory / "checkpoint"
        self._source.mkdir(parents=True)
        self._files = 0
        self._query: Any = None
        self._batches: dict[int, list[dict[str, Any]]] = {}
        self.progress: list[Any] = []

    def __enter__(self) -> Streamed:
        self._start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def restart(self) -> None:
        self._stop()
        self._start()

    def feed(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """What comes out of these rows, and of the batch without any that Spark adds where the
        watermark has moved."""
        before = max(self._batches, default=-1)
        self._files += 1
        written = self._source / f".{self._files:06}.json"
        written.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
        written.rename(self._source / f"{self._files:06}.json")
        self._query.processAllAvailable()
        return [row for n, rows in sorted(self._batches.items()) if n > before for row in rows]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for _, rows in sorted(self._batches.items()) for row in rows]

    @property
    def dropped(self) -> int:
        """Rows that Spark found late, until now."""
        return sum(
            operator.numRowsDroppedByWatermark
            for progress in self._told()
            for operator in progress.stateOperators
        )

    @property
    def state(self) -> int:
        """Rows of state after the newest batch. A query that idles tells of no operator."""
        batches = [progress for progress in self._told() if progress.stateOperators]
        return sum(operator.numRowsTotal for operator in batches[-1].stateOperators)

    def _told(self) -> list[Any]:
        return [*self.progress, *self._query.recentProgress]

    def _start(self) -> None:
        events = (
            self._spark.readStream.schema(self._columns)
            .option("maxFilesPerTrigger", 1)
            .json(str(self._source))
            .withWatermark("time", self._watermark)
        )
        self._query = (
            self._job(events)
            .writeStream.outputMode(self._mode)
            .option("checkpointLocation", str(self._checkpoint))
            .foreachBatch(self._keep)
            .start()
        )

    def _stop(self) -> None:
        with suppress(Exception):  # of a query that failed: what it failed with is told already
            self.progress += self._query.recentProgress
        self._query.stop()

    def _keep(self, rows: DataFrame, batch: int) -> None:
        self._batches[batch] = [row.asDict() for row in rows.collect()]
