"""The four jars that Spark's wheel lacks to read and write Kafka.

Maven would copy ten more (hadoop-client, scala-library, slf4j, lz4, snappy, ...): the wheel has
newer ones. `spark.jars.packages` fails on the token provider, so they are given as files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.maven import JarBundle, MavenCoordinate, cache_path, read_pins

from .versions import SPARK_VERSION


def read_pinned_jars() -> dict[MavenCoordinate, str]:
    """Every jar and its SHA-256."""
    return read_pins(Path(__file__).with_name("jars.sha256"))


def fetch_connector_jars() -> Sequence[Path]:
    """The jars as files, fetched once for the machine. Raises PipelineError."""
    what = f"Spark's Kafka connector {SPARK_VERSION}"
    pins = read_pinned_jars()
    libs = JarBundle(what, pins, PipelineError).ensure_fetched(
        cache_path(f"spark-kafka-{SPARK_VERSION}")
    )
    return [libs / jar.file_name for jar in pins]
