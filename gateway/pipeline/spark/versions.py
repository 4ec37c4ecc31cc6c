"""Name the versions of Spark, Scala and Java that go together. No other module names them.

Spark's Kafka connector is published later than Spark itself, so the newest connector that Maven can
resolve decides the version. Its token provider is of another release (4.0.0, the only one that can
be resolved). That does no harm, because it is only used for delegation tokens, which the gateway
does not support. `jars.sha256` lists the jars that the wheel of pyspark lacks.
"""

from __future__ import annotations

SPARK_VERSION = "4.2.0"
SCALA_VERSION = "2.13"
MIN_JAVA_VERSION = 17
"""The oldest Java that Spark runs on."""
