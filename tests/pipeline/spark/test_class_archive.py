"""The archive of Spark's classes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.spark_jvm import ensure_class_archive

from gateway.config.sections.job import Spark
from gateway.kafka.local.class_archive import ClassArchive
from gateway.kafka.local.java import JavaRuntime
from gateway.pipeline.spark import java
from gateway.pipeline.spark.class_archive import build_archive_options, find_class_archive
from gateway.pipeline.spark.session import build_session_conf

pytestmark = pytest.mark.night

JARS = [Path("/one.jar"), Path("/two.jar")]


def build_conf(archive: ClassArchive, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    return build_session_conf(Spark(conf=dict(conf or {})), jars=JARS, archive=archive)


@pytest.fixture
def archive(tmp_path: Path) -> ClassArchive:
    archive = ClassArchive(tmp_path, JavaRuntime(Path("java"), 17, "17.0.9"))
    archive.ensure_built(Path.touch)
    return archive


@pytest.mark.needs("java17")
def test_the_jvm_of_a_session_maps_the_archive(spark: Any):
    path = ensure_class_archive()
    process = psutil.Process(spark.sparkContext._gateway.proc.pid)
    assert str(path) in {mapping.path for mapping in process.memory_maps()}


def run_java(tmp_path: Path, class_path: str, damage: Callable[[Path], None]) -> tuple[int, str]:
    """Its exit code and standard output, with a copy of the archive."""
    runtime = java.find_java()
    copied = ClassArchive(tmp_path, runtime)
    damage(copied.ensure_built(partial(shutil.copyfile, ensure_class_archive())))
    options = build_archive_options(copied)
    done = subprocess.run(
        [runtime.path, *options, "-cp", class_path, "-version"], capture_output=True, text=True
    )
    assert done.returncode or done.stderr.startswith("openjdk")
    return done.returncode, done.stdout


@pytest.mark.needs("java17")
def test_an_archive_of_another_class_path_is_ignored_without_a_word(tmp_path: Path):
    assert run_java(tmp_path, str(tmp_path), lambda _: None) == (0, "")


@pytest.mark.needs("java17")
def test_a_damaged_archive_is_ignored_without_a_word(spark: Any, tmp_path: Path):
    """The JVM ended by a signal."""

    def damage(path: Path) -> None:
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(b"?" * 10_000)

    class_path = spark._jvm.System.getProperty("java.class.path")
    assert run_java(tmp_path, class_path, damage) == (0, "")


def test_without_an_archive_the_jvm_gets_no_option(tmp_path: Path):
    missing = ClassArchive(tmp_path, JavaRuntime(Path("java"), 17, "17.0.9"))
    assert build_archive_options(missing) == ()


def test_the_connector_is_on_the_class_path_that_the_archive_was_built_with(archive: ClassArchive):
    conf = build_conf(archive)
    assert conf["spark.driver.extraClassPath"] == "/one.jar:/two.jar"
    assert str(archive.find()) in conf["spark.driver.defaultJavaOptions"]
    assert "spark.jars" not in conf


def test_options_of_the_user_are_used_beside_the_archive(archive: ClassArchive):
    conf = build_conf(archive, {"spark.driver.extraJavaOptions": "-Xshare:off"})
    assert conf["spark.driver.extraJavaOptions"] == "-Xshare:off"
    assert str(archive.find()) in conf["spark.driver.defaultJavaOptions"]


@pytest.mark.parametrize("name", ["spark.jars", "spark.driver.extraClassPath"])
def test_jars_of_the_user_are_used_as_without_an_archive(archive: ClassArchive, name: str):
    conf = build_conf(archive, {name: "/mine.jar"})
    assert conf == build_session_conf(Spark(conf={name: "/mine.jar"}), jars=JARS)


def test_jars_that_were_installed_again_need_another_archive(tmp_path: Path):
    """Java compares their sizes and times: it would ignore the archive for ever."""
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "spark.jar"
    jar.touch()
    runtime = JavaRuntime(Path("java"), 17, "17.0.9")
    path = find_class_archive(tmp_path, [], runtime).ensure_built(Path.touch)
    assert find_class_archive(tmp_path, [], runtime).find() == path
    os.utime(jar, (1, 1))
    assert find_class_archive(tmp_path, [], runtime).find() is None
