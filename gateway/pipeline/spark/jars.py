"""The four jars that Spark's wheel lacks to read and write Kafka.

Maven would copy ten more (hadoop-client, scala-library, slf4j, lz4, snappy, ...): the wheel has
newer ones. `spark.jars.packages` fails on the token provider, so they are given as files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.maven import Bundle, Coordinate, cached, read_pins

from .versions import SPARK


def pinned() -> dict[Coordinate, str]:
    """Every jar and its SHA-256."""
    return read_pins(Path(__file__).with_name("jars.sha256"))


def connector() -> Sequence[Path]:
    """The jars as files, fetched once for the machine. Raises PipelineError."""
    what = f"Spark's Kafka connector {SPARK}"
    pins = pinned()
    libs = Bundle(what, pins, PipelineError).fetched(cached(f"spark-kafka-{SPARK}"))
    return [libs / jar.file for jar in pins]
