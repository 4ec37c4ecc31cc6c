from __future__ import annotations

import threading
from typing import Any

import pytest

from gateway.errors import PipelineError
from gateway.internals import Internals
from gateway.pipeline.spark import internals


@pytest.mark.needs("java17")
def test_a_pyspark_that_lacks_what_is_used_is_named_with_the_one_to_install(spark: Any):
    internals.verify_python()
    internals.verify_java(spark)
    with pytest.raises(PipelineError, match=r"lacks pyspark.OldContext; pip install pyspark=="):
        internals.verify_python([Internals("pyspark", "OldContext")])
    dataset = "org.apache.spark.sql.classic.Dataset"
    with pytest.raises(PipelineError, match=r"pyspark \d.* lacks Old, .*Dataset.oldPlan; pip"):
        internals.verify_java(spark, {"Old": "", dataset: "queryExecution oldPlan"})


@pytest.mark.needs("java17")
@pytest.mark.parametrize("shuffles", [0, 1, 2])
def test_a_batch_that_is_computed_twice_is_counted_once(spark: Any, tmp_path: Any, shuffles: int):
    """Spark does not read again what is before a shuffle. Its counts were set to 0, so a batch with
    invalid records was taken for one without, and its dead letters were never written."""
    from pyspark.sql import functions as F

    options = {"rowsPerBatch": 10, "startTimestamp": 1_800_000_000_000}
    source = spark.readStream.format("rate-micro-batch").options(**options).load()
    rows = source.observe("read", F.count(F.lit(1)).alias("rows"))
    if shuffles:
        rows = rows.withWatermark("timestamp", "1 minute").dropDuplicates(["value", "timestamp"])
    if shuffles == 2:
        rows = rows.groupBy(F.window("timestamp", "1 hour")).count()
    done = threading.Event()

    def compute_twice(batch: Any, epoch: int) -> None:
        batch.collect()
        internals.reset_metrics(query)
        batch.collect()
        if epoch == 1:
            internals.retire_query(query)
            done.set()

    writer = rows.writeStream.outputMode("update").foreachBatch(compute_twice)
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    assert done.wait(120)
    assert query.awaitTermination(120)
    for progress in query.recentProgress[:2]:
        counts = [progress["numInputRows"], progress["observedMetrics"]["read"]["rows"]]
        counts += sorted(each["numRowsUpdated"] for each in progress["stateOperators"])
        assert counts == [[10, 10], [10, 10, 10], [10, 10, 1, 10]][shuffles]
