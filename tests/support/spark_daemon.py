"""PySpark's daemon, whose forks are Spark's Python workers, with their imports done beforehand.

Each new worker would take 0.8 s of CPU for them. PySpark does without because threads do not
survive a fork; of these modules only jemalloc has one, which it starts again.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyarrow  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import gateway.pipeline.exactly_once.task  # noqa: F401

if __name__ == "__main__":
    manager()
