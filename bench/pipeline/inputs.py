"""Keep the input of a job in files as records of Kafka would be, so that the job and its state are
measured, and not a broker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def write_batches(directory: Path, batches: Iterable[Sequence[bytes]]) -> None:
    """A file a batch, in pieces for two tasks. Records are of two partitions in turn."""
    import pyarrow as pa
    from pyarrow import parquet

    first = 0
    directory.mkdir(parents=True, exist_ok=True)
    for number, values in enumerate(batches):
        places = range(first, first + len(values))
        first += len(values)
        columns = {
            "value": pa.array(values, pa.binary()),
            "_partition": pa.array([place % 2 for place in places], pa.int32()),
            "_offset": pa.array([place // 2 for place in places], pa.int64()),
        }
        path, group = directory / f"{number:05}.parquet", max(1, len(values) // 4)
        parquet.write_table(pa.table(columns), path, row_group_size=group)


def read_batches(
    spark: SparkSession, directory: Path, schema: str, reader: Any = None
) -> DataFrame:
    """Read a file a batch, with values of this schema. reader: instead of a stream's."""
    from pyspark.sql import functions as F

    if reader is None:
        reader = spark.readStream.option("maxFilesPerTrigger", 1)
    files = reader.schema("value binary, _partition int, _offset bigint").parquet(str(directory))
    value = F.from_json(F.col("value").cast("string"), schema).alias("v")
    table: DataFrame = files.select(value, "_partition", "_offset")
    return table.select("v.*", "_partition", "_offset")
