"""The JVM of Spark, begun for a measurement and ended with it.

`stop` of a session leaves its JVM to the process: the next measurement would find it warm, and
with the heap of the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from gateway.config.pipeline import Spark
from gateway.pipeline.session import session

from .telling import tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE = 20.0  # s for a JVM to end; then it is killed


@contextmanager
def spark(master: str = "local[2]", memory: str = "2GiB") -> Iterator[SparkSession]:
    """With the JVM's options of production. However the block ends, the JVM is gone after it."""
    tell(f"starting Spark, {master}, {memory}")
    try:
        made = session(Spark.model_validate({"master": master, "memory": memory}), "bench")
        yield made
    finally:
        end()


def end() -> None:
    """The JVM of this process, if it has one: also one that does not answer any more."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if (context := SparkContext._active_spark_context) is not None:
        with suppress(Exception):
            context.stop()
    SparkSession._instantiatedSession = None
    gateway = SparkContext._gateway
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    process = gateway.proc
    with suppress(Exception):
        gateway.shutdown()
    with suppress(OSError):
        process.stdin.close()  # what it ends by
    try:
        process.wait(_PATIENCE)
    except Exception:
        process.kill()
        process.wait()
