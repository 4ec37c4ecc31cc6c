"""The pinned jars of Kafka."""

from __future__ import annotations

from gateway.kafka.local import jars
from gateway.kafka.local.maven import MavenCoordinate


def test_every_jar_is_pinned_by_name_version_and_checksum():
    pinned = jars.read_pinned_jars()
    assert len(pinned) == 46
    assert MavenCoordinate("org.apache.kafka", "kafka_2.13", jars.KAFKA_VERSION) in pinned
    assert len({coordinate.file_name for coordinate in pinned}) == 46
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pinned.values())


def test_the_cache_is_outside_the_clone_and_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars.cache_directory() == tmp_path / "gateway" / f"kafka-{jars.KAFKA_VERSION}"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars.cache_directory().is_relative_to(tmp_path / ".cache")
