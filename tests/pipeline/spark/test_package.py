"""The archive of this package that executors are sent."""

from __future__ import annotations

import zipfile
from pathlib import Path

from gateway.pipeline.spark.spark_home import build_archive


def test_the_package_is_an_archive_that_depends_on_its_contents_only(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "one"))
    one = build_archive()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "two"))
    two = build_archive()
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()
    names = zipfile.ZipFile(one).namelist()
    assert {"gateway/__init__.py", "gateway/pipeline/spark/jars.sha256"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or name.startswith("/")]


def test_every_folder_of_modules_is_a_package():
    """From an archive Python imports no folder without `__init__.py`."""
    names = {Path(name) for name in zipfile.ZipFile(build_archive()).namelist()}
    folders = {name.parent for name in names if name.suffix == ".py"}
    assert not [folder for folder in folders if folder / "__init__.py" not in names]
