from __future__ import annotations

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
