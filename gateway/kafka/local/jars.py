"""The 46 jars of Apache Kafka. slf4j-simple is one of them: without it the broker logs nothing."""

from __future__ import annotations

from pathlib import Path

from gateway.errors import LocalBrokerError

from .maven import Bundle, Coordinate, cached, locked, read_pins

__all__ = ["KAFKA_VERSION", "cache_directory", "fetched", "locked", "pinned", "verify"]

KAFKA_VERSION = "4.3.1"


def pinned() -> dict[Coordinate, str]:
    """Every jar and its SHA-256."""
    return read_pins(Path(__file__).with_name("jars.sha256"))


def cache_directory() -> Path:
    """Where jars, class archives and the formatted checkpoint stay between runs."""
    return cached(f"kafka-{KAFKA_VERSION}")


def fetched(cache: Path) -> Path:
    """The directory with all the jars. Raises LocalBrokerError: see `Bundle`."""
    return _bundle().fetched(cache)


def verify(libs: Path) -> None:
    """Raises LocalBrokerError with the names of the jars that are missing or not as pinned."""
    _bundle().verify(libs)


def _bundle() -> Bundle:
    return Bundle(f"Kafka {KAFKA_VERSION}", pinned(), LocalBrokerError)
