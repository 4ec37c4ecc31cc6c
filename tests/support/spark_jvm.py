"""Spark that runs for a few seconds: settings, and options of its JVMs.

First compiler and one collector only: 22 s instead of 26 for ten small tests and the start.
"""

from __future__ import annotations

from pathlib import Path

LEAN_JVM_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:-UsePerfData",
)
LEAN_CONF = {
    "spark.driver.host": "127.0.0.1",
    # A query of a few rows ends before its code would be compiled: 60 s of CPU instead of 78 for
    # the sessions' tests.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # By default a query that waits asks its sources every 10 ms: 29 s instead of 58 for the same.
    "spark.sql.streaming.pollingDelay": "100",
}
# Of this machine's workers; those of a cluster have no folder of tests.
WORKER_CONF = {
    "spark.python.daemon.module": "support.spark_daemon",
    "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[1]),
}


def build_spark_conf() -> dict[str, str]:
    """The settings of Spark in a process of its own, or on a cluster."""
    options = " ".join(LEAN_JVM_OPTIONS)
    jvms = {f"spark.{kind}.extraJavaOptions": options for kind in ("driver", "executor")}
    return {**LEAN_CONF, **jvms}
