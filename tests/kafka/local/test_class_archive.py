"""Archives of classes that are built once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gateway.kafka.local.java import ClassArchive, JavaRuntime


def create_archive(directory: Path, banner: str = "17.0.9") -> ClassArchive:
    return ClassArchive(directory, JavaRuntime(directory / "java", 17, banner))


def write_archive(path: Path) -> None:
    path.write_text("classes")


def test_another_build_of_java_has_another_archive(tmp_path: Path):
    first = create_archive(tmp_path).ensure_built(write_archive)
    other = create_archive(tmp_path, "17.0.15").ensure_built(write_archive)
    assert first != other
    assert first.exists() and other.exists()


def test_of_several_builders_one_builds(tmp_path: Path):
    built: list[Path] = []

    def build(path: Path) -> None:
        built.append(path)
        write_archive(path)

    archive = create_archive(tmp_path)
    assert archive.find() is None
    threads = [threading.Thread(target=archive.ensure_built, args=(build,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    path = archive.find()
    assert path is not None and path.read_text() == "classes"
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name, "lock"]


def test_an_archive_whose_build_fails_half_way_does_not_appear(tmp_path: Path):
    def fail(path: Path) -> None:
        write_archive(path)
        raise OSError("no space left")

    archive = create_archive(tmp_path)
    with pytest.raises(OSError, match="no space"):
        archive.ensure_built(fail)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert archive.ensure_built(write_archive).exists()


def test_an_archive_that_was_cut_short_is_built_again(tmp_path: Path):
    """The JVM does not notice it, and ends by a signal when it reads what is not there."""
    archive = create_archive(tmp_path)
    archive.ensure_built(write_archive).write_text("cla")
    assert archive.find() is None
    assert archive.ensure_built(write_archive).read_text() == "classes"
