"""The pinned jars of Kafka."""

from __future__ import annotations

from gateway.kafka.local import java
from gateway.kafka.local.java import MavenCoordinate


def test_every_jar_is_pinned_by_name_version_and_checksum():
    pinned = java.load_kafka_jars().pins
    assert len(pinned) == 46
    assert MavenCoordinate("org.apache.kafka", "kafka_2.13", java.KAFKA_VERSION) in pinned
    assert len({coordinate.file_name for coordinate in pinned}) == 46
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pinned.values())


def test_the_cache_is_outside_the_clone_and_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert java.kafka_cache_path() == tmp_path / "gateway" / f"kafka-{java.KAFKA_VERSION}"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert java.kafka_cache_path().is_relative_to(tmp_path / ".cache")
