"""Which Java runs the broker."""

from __future__ import annotations

import pytest

from gateway.errors import LocalBrokerError
from gateway.kafka.local import java

pytestmark = pytest.mark.needs("process")  # `java -version`


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    """As on a machine without any Java; `found` must not remember what it found here."""
    java.find_java.cache_clear()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    yield
    java.find_java.cache_clear()


def create_fake_java(directory, version):
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    path.chmod(0o755)
    return path


def test_java_home_is_asked_first(monkeypatch, tmp_path):
    path = create_fake_java(tmp_path / "home", "21.0.1")
    other = create_fake_java(tmp_path / "other", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(java.shutil, "which", lambda name: str(other))
    assert (java.find_java().path, java.find_java().major) == (path, 21)


def test_an_old_java_is_passed_over(monkeypatch, tmp_path):
    create_fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    path = create_fake_java(tmp_path / "new", "17.0.9")
    monkeypatch.setattr(java.shutil, "which", lambda name: str(path))
    assert java.find_java().path == path


def test_without_a_java_the_error_says_what_was_seen_and_what_to_install(monkeypatch, tmp_path):
    create_fake_java(tmp_path, "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalBrokerError, match=r"Java 11.*kafka-gateway\[broker\]"):
        java.find_java()
