"""The versions that go together; the only place that names them.

Spark's Kafka connector is published after Spark itself: the newest that resolves decides. Its
token provider is of another release (4.0.0, the only one that resolves); what runs here needs no
delegation tokens. The jars beside the wheel are in `jars.sha256`.
"""

from __future__ import annotations

SPARK_VERSION = "4.2.0"
SCALA_VERSION = "2.13"
MIN_JAVA_VERSION = 17
"""The oldest Java that Spark runs on."""
