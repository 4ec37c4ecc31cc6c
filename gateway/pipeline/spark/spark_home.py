"""Let Spark's Python workers import pyspark from its wheel instead of a zip archive.

Spark puts the archive `python/lib/pyspark.zip` of its home (SPARK_HOME) before the packages that
are installed. Python does not keep the compiled code of an archive, so every worker compiled
pyspark again: it took 1.4 s of CPU to start instead of 0.25 s. On a busy machine that was not only
slow. Spark gives up on the worker that begins a query with `transformWithState` after 10 s, which
cannot be configured, and the job fails.

Spark therefore gets a home with links to all parts of the wheel but this archive.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.config.sections.job import Spark
from gateway.kafka.local.maven import cache_path

# What the scripts and the JVM look for in a home. The others in the wheel are Python packages,
# licenses and examples.
_LINKED_NAMES = ("bin", "conf", "jars", "sbin")


@contextmanager
def spark_home_for_workers(spark: Spark) -> Iterator[None]:
    """Set SPARK_HOME to such a home in the context, if Spark is to run its workers on this machine.

    Nothing is changed if SPARK_HOME is set already, or if the workers run another Python than this
    process: that one may find pyspark only in the archive.
    """
    python = spark.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    home = None
    is_same_python = python in (None, sys.executable)
    if spark.master.startswith("local") and is_same_python and "SPARK_HOME" not in os.environ:
        with suppress(OSError):  # for example a cache that cannot be written: only slower
            home = link_spark_home()
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def link_spark_home() -> Path:
    """Return the home in the user's cache; raise OSError if its links cannot be created."""
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "pyspark is not installed"
    wheel = Path(spec.origin).parent
    digest = hashlib.sha256(str(wheel).encode()).hexdigest()[:16]
    home = cache_path(f"spark-home-{digest}")
    home.mkdir(parents=True, exist_ok=True)
    for name in _LINKED_NAMES:
        if (wheel / name).exists():
            with suppress(FileExistsError):  # created before, or just now by another process
                (home / name).symlink_to(wheel / name)
    return home
