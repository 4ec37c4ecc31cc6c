"""The pinned jars: fetched by one, seen by nobody before they are right."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

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


@pytest.fixture
def jgo(monkeypatch, tmp_path):
    """jgo, with a local repository of the jar `one` only."""
    jar = tmp_path / "repository.jar"
    jar.write_bytes(b"one")

    class MavenContext:
        def __init__(self, timeout):
            assert timeout > 0

        def create_dependency(self, coordinate):
            if coordinate != "org.example:one:1.0":
                raise RuntimeError("not found in remote repositories")
            return SimpleNamespace(artifact=SimpleNamespace(resolve=lambda: jar))

    monkeypatch.setitem(sys.modules, "jgo", SimpleNamespace(__spec__=None))
    monkeypatch.setitem(sys.modules, "jgo.maven", SimpleNamespace(MavenContext=MavenContext))
    monkeypatch.setattr(jars.importlib.util, "find_spec", lambda name: name)


def test_jgo_brings_each_jar_by_its_pinned_name(jgo, tmp_path, monkeypatch, capsys):
    only = {name: digest for name, digest in JARS.items() if name.artifact == "one"}
    monkeypatch.setattr(jars, "pinned", lambda: only)
    assert (jars.fetched(tmp_path) / "one-1.0.jar").read_bytes() == b"one"
    assert "1 of 1 jars" in capsys.readouterr().err


def test_what_jgo_cannot_bring_is_named(jgo, tmp_path, monkeypatch):
    monkeypatch.setattr(jars, "pinned", lambda: JARS)
    with pytest.raises(LocalBrokerError, match=r"org.example:two:2.0 could not be fetched"):
        jars.fetched(tmp_path)
