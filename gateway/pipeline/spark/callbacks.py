"""Connections by which Spark's JVM calls Python: for batches of a query, and for its listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def close_idle_connections(spark: SparkSession) -> None:
    """Close the connections over which no call is under way.

    py4j opens one for each thread of the JVM that calls Python, and a query has a thread of its
    own. It closes none of them (0.10.9.9: `PythonClient.setupCleaner` is empty, and its list of
    connections holds on to those of threads that have ended), so that each start of a query left
    a thread and a descriptor here and a descriptor in the JVM, also after the JVM's collector ran.
    `periodicCleanup` is what py4j itself runs where threads share connections. Another query whose
    connection is closed between two of its batches opens a new one for the next.
    """
    from py4j.java_gateway import JavaObject

    gateway = spark.sparkContext._gateway
    assert gateway is not None
    server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    server.getCallbackClient().periodicCleanup()
