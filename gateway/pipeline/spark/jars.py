"""Fetch the four jars that Spark's wheel lacks to read and write Kafka.

Spark's own way, `spark.jars.packages`, cannot resolve the token provider, so Spark is given files.
Only four are needed: Maven would also fetch ten dependencies (hadoop-client, scala-library, slf4j,
lz4, snappy, ...) that the wheel has in newer versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.maven import JarBundle, MavenCoordinate, cache_path, read_pins

from .versions import SPARK_VERSION


def read_pinned_jars() -> dict[MavenCoordinate, str]:
    return read_pins(Path(__file__).with_name("jars.sha256"))


def fetch_connector_jars() -> Sequence[Path]:
    """Return the paths of the jars; download those that the user's cache does not have."""
    description = f"Spark's Kafka connector {SPARK_VERSION}"
    pins = read_pinned_jars()
    directory = JarBundle(description, pins, PipelineError).ensure_fetched(
        cache_path(f"spark-kafka-{SPARK_VERSION}")
    )
    return [directory / jar.file_name for jar in pins]
