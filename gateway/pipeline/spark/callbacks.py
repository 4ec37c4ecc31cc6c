"""Close idle connections by which Spark's JVM calls functions and query listeners in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def close_idle_connections(spark: SparkSession) -> None:
    """Close the connections over which no call is in progress.

    py4j opens a connection for each thread of the JVM that calls Python, and each start of a query
    creates such a thread. py4j closes none of them (0.10.9.9: `PythonClient.setupCleaner` is empty,
    and its list of connections keeps those of ended threads alive). Each start of a query therefore
    left a thread and a file descriptor in Python and a file descriptor in the JVM, even after a
    collection in the JVM.

    py4j itself calls `periodicCleanup` where threads share connections. It may close the connection
    of another query between two batches; py4j opens a new one for the next batch.
    """
    from py4j.java_gateway import JavaObject

    gateway = spark.sparkContext._gateway
    assert gateway is not None
    # py4j has no function for the Java object of its own server; this is the server's fixed id.
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    server.getCallbackClient().periodicCleanup()
