"""Archives of classes that are built once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gateway.kafka.local.java import ClassArchive, JavaRuntime


def create_archive(directory: Path, banner: str = "17.0.9", content: str = "") -> ClassArchive:
    return ClassArchive(directory, JavaRuntime(directory / "java", 17, banner), content)


def write_archive(path: Path) -> None:
    path.write_text("classes")


def test_another_build_of_java_and_other_jars_have_another_archive(tmp_path: Path):
    archives = [
        create_archive(tmp_path / number, *parts)
        for number, parts in {
            "0": ("17.0.9",), "1": ("17.0.15",), "2": ("17.0.9", "a.jar"), "3": ("17.0.9", "b.jar")
        }.items()
    ]  # fmt: skip
    assert len({each.ensure_built(write_archive).name for each in archives}) == len(archives)


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


def test_archives_for_former_jars_are_removed_and_those_of_another_java_stay(tmp_path: Path):
    former = create_archive(tmp_path, content="a.jar").ensure_built(write_archive)
    other = create_archive(tmp_path, "21.0.1", "a.jar").ensure_built(write_archive)
    current = create_archive(tmp_path, content="b.jar").ensure_built(write_archive)
    assert not former.exists()
    assert other.exists() and current.exists()
