"""Fetch the 46 jars of Apache Kafka that are listed in `jars.sha256`.

slf4j-simple is one of them: without it the broker logs nothing.
"""

from __future__ import annotations

from pathlib import Path

from gateway.errors import LocalBrokerError

from .maven import JarBundle, MavenCoordinate, cache_path, lock_cache, read_pins

__all__ = [
    "KAFKA_VERSION",
    "cache_directory",
    "fetch_jars",
    "lock_cache",
    "read_pinned_jars",
    "verify_jars",
]

KAFKA_VERSION = "4.3.1"


def read_pinned_jars() -> dict[MavenCoordinate, str]:
    return read_pins(Path(__file__).with_name("jars.sha256"))


def cache_directory() -> Path:
    return cache_path(f"kafka-{KAFKA_VERSION}")


def fetch_jars(cache: Path) -> Path:
    return _create_bundle().ensure_fetched(cache)


def verify_jars(libs: Path) -> None:
    _create_bundle().verify(libs)


def _create_bundle() -> JarBundle:
    return JarBundle(f"Kafka {KAFKA_VERSION}", read_pinned_jars(), LocalBrokerError)
