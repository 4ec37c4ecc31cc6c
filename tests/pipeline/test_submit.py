"""The line that runs jobs on a cluster."""

from __future__ import annotations

import zipfile
from pathlib import Path

from gateway.config.pipeline import Spark
from gateway.pipeline.submit import archive, command

JARS = [Path("/jars/one.jar"), Path("/jars/two.jar")]


def line(**spark):
    arguments = ["all", "-c", "/gateway.yaml"]
    paths = {"driver": Path("/driver.py"), "package": Path("/package.zip")}
    return command(Spark(**spark), arguments, jars=JARS, **paths)


def after(found, option):
    return found[found.index(option) + 1]


def test_it_has_master_memory_jars_package_and_settings_and_ends_with_what_to_run():
    found = line(master="spark://host:7077", memory="2GiB", conf={"spark.x": "a b"})
    assert found[0].endswith("/bin/spark-submit")
    assert after(found, "--master") == "spark://host:7077"
    assert after(found, "--executor-memory") == "2048m"
    assert after(found, "--jars") == "/jars/one.jar,/jars/two.jar"
    assert after(found, "--py-files") == "/package.zip"
    assert "spark.x=a b" in found
    assert "spark.sql.session.timeZone=UTC" in found
    assert found[-4:] == ["/driver.py", "all", "-c", "/gateway.yaml"]


def test_what_has_an_option_of_its_own_is_not_said_twice():
    settings = [each for each in line() if each.startswith(("spark.master", "spark.jars"))]
    assert settings == []


def test_the_package_is_an_archive_that_depends_on_its_contents_only(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    one = archive()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    two = archive()
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert {"gateway/__init__.py", "gateway/pipeline/jars.sha256"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("/")]


def test_every_folder_of_modules_is_a_package():
    """From an archive Python imports no folder without `__init__.py`."""
    names = {Path(name) for name in zipfile.ZipFile(archive()).namelist()}
    folders = {name.parent for name in names if name.suffix == ".py"}
    assert not [folder for folder in folders if folder / "__init__.py" not in names]
