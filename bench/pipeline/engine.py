"""Start the JVM of Spark for one measurement, and end it afterwards.

`stop` of a session does not end the JVM: the next measurement would find it warm, and with the heap
of the first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gateway.config.sections.job import Spark
from gateway.pipeline.spark.session import (
    build_checkpoint_conf,
    build_job_conf,
    create_job_session,
    create_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_TIMEOUT_S = 60.0  # s for a batch or a JVM to end by itself
_STARTED_AT = time.monotonic()


def print_progress(text: str) -> None:
    """With the seconds since the start of the process, because measurements take minutes."""
    print(f"{time.monotonic() - _STARTED_AT:6.1f}  {text}", file=sys.stderr, flush=True)


@contextmanager
def run_spark(master: str = "local[2]", memory: str = "2GiB") -> Iterator[SparkSession]:
    """With the JVM's options of production. However the block ends, the JVM is gone after it."""
    print_progress(f"starting Spark, {master}, {memory}")
    try:
        made = create_session(Spark.model_validate({"master": master, "memory": memory}), "bench")
        yield made
    finally:
        stop_jvm()


def create_own_session(spark: SparkSession, job: Any, conf: Mapping[str, str] = {}) -> SparkSession:
    """A session with the job's settings, as the runner makes it. conf: over these."""
    return create_job_session(spark, {**build_checkpoint_conf("/"), **build_job_conf(job), **conf})


def wait_for_query(query: Any) -> None:
    """Wait until it has read all there is. Told to end meanwhile, it goes before its files do, or
    it would fail for them with a long story. Raises what it failed with."""
    try:
        query.awaitTermination()
    finally:
        query.stop()


def stop_query(query: Any, timeout_s: float = STOP_TIMEOUT_S) -> None:
    """As the runner does it: not within a batch, if one ends within so many seconds. Spark would
    look for the interruption in the text of Python's error, by a pattern that overflows the stack
    and puts a thousand lines on stderr."""
    until = time.monotonic() + timeout_s
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < until:
        time.sleep(0.005)
    query.stop()


def stop_jvm() -> None:
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
        process.wait(STOP_TIMEOUT_S)
    except Exception:
        process.kill()
        process.wait()
