"""The pinned jars: fetched by one, seen by nobody before they are right."""

from __future__ import annotations

import threading

import pytest

from gateway.errors import LocalBrokerError
from gateway.kafka.local import jars
from gateway.kafka.local.jars import Coordinate

JARS = {
    Coordinate("org.example", "one", "1.0"): jars.hashlib.sha256(b"one").hexdigest(),
    Coordinate("org.example", "two", "2.0"): jars.hashlib.sha256(b"two").hexdigest(),
}


@pytest.fixture
def maven(monkeypatch):
    """A repository of two jars, and the list of fetches from it."""
    fetches = []

    def fetch(wanted, target):
        fetches.append(target)
        for coordinate in wanted:
            (target / coordinate.file).write_bytes(coordinate.artifact.encode())

    monkeypatch.setattr(jars, "pinned", lambda: JARS)
    monkeypatch.setattr(jars, "_fetch", fetch)
    return fetches


def test_every_jar_is_pinned_by_name_version_and_checksum():
    pinned = jars.pinned()
    assert len(pinned) == 46
    assert Coordinate("org.apache.kafka", "kafka_2.13", jars.KAFKA_VERSION) in pinned
    assert len({coordinate.file for coordinate in pinned}) == 46
    assert all(len(bytes.fromhex(digest)) == 32 for digest in pinned.values())


def test_what_is_there_is_not_fetched_again(maven, tmp_path):
    libs = jars.fetched(tmp_path)
    assert jars.fetched(tmp_path) == libs
    assert len(maven) == 1
    assert sorted(path.name for path in libs.iterdir()) == ["one-1.0.jar", "two-2.0.jar"]


def test_two_at_once_fetch_once(maven, tmp_path):
    threads = [threading.Thread(target=jars.fetched, args=[tmp_path]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(maven) == 1


def test_a_damaged_download_is_never_seen(maven, tmp_path, monkeypatch):
    monkeypatch.setattr(
        jars, "_fetch", lambda wanted, target: (target / "one-1.0.jar").write_bytes(b"evil")
    )
    with pytest.raises(LocalBrokerError, match=r": one-1.0.jar, two-2.0.jar;"):
        jars.fetched(tmp_path)
    assert not (tmp_path / "libs").exists()


def test_a_jar_damaged_later_is_found_by_verifying(maven, tmp_path):
    libs = jars.fetched(tmp_path)
    (libs / "two-2.0.jar").write_bytes(b"other")
    with pytest.raises(LocalBrokerError, match=r": two-2.0.jar;"):
        jars.verify(libs)


def test_with_nothing_to_fetch_with_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(jars.shutil, "which", lambda name: None)
    with pytest.raises(LocalBrokerError, match="pip install jgo"):
        jars.fetched(tmp_path)


def test_the_cache_is_outside_the_clone_and_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jars.cache_directory() == tmp_path / "gateway" / f"kafka-{jars.KAFKA_VERSION}"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert jars.cache_directory().is_relative_to(tmp_path / ".cache")
