"""The home of Spark whose Python workers import pyspark from the wheel."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config.sections.job import Spark
from gateway.pipeline.spark.spark_home import link_spark_home, spark_home_for_workers

pytestmark = pytest.mark.needs("java17")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own, without variables that choose Spark's home or Python."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    return tmp_path


def test_a_home_has_the_parts_of_the_wheel_but_not_its_archive():
    import pyspark

    wheel = Path(pyspark.__file__).parent
    home = link_spark_home()
    assert (home / "bin" / "spark-submit").samefile(wheel / "bin" / "spark-submit")
    assert (home / "jars").samefile(wheel / "jars")
    assert not (home / "python").exists()
    assert link_spark_home() == home  # links that exist are kept


def test_it_is_set_in_the_context_only():
    with spark_home_for_workers(Spark(master="local[2]")):
        assert os.environ["SPARK_HOME"] == str(link_spark_home())
    assert "SPARK_HOME" not in os.environ


@pytest.mark.parametrize(
    ("variables", "spark"),
    [
        ({"SPARK_HOME": "/opt/spark"}, {}),
        ({"PYSPARK_PYTHON": "/usr/bin/other"}, {}),
        ({}, {"conf": {"spark.pyspark.python": "/usr/bin/other"}}),
        ({}, {"master": "spark://host:7077"}),
    ],
)
def test_another_home_python_or_machine_keeps_its_own(monkeypatch, variables, spark):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with spark_home_for_workers(Spark(**{"master": "local[2]", **spark})):
        assert os.environ.get("SPARK_HOME") == variables.get("SPARK_HOME")


def test_this_python_may_be_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    with spark_home_for_workers(Spark(master="local[2]")):
        assert "SPARK_HOME" in os.environ


def test_without_a_writable_cache_spark_has_its_own_home(monkeypatch, cache):
    (cache / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache / "file"))
    with spark_home_for_workers(Spark(master="local[2]")):
        assert "SPARK_HOME" not in os.environ


def test_workers_import_pyspark_from_the_wheel(spark: Any):
    import pyspark

    def find_pyspark(rows: Iterator[Any]) -> Iterator[str]:
        import pyspark

        yield pyspark.__file__

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(find_pyspark).collect() == [
        pyspark.__file__
    ]
