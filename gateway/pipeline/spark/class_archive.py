"""Keep an archive of the classes that Spark and jobs load, so that a JVM starts faster.

`gateway pipeline prefetch` builds it, and the JVM of every job that runs in this process's own
Spark uses it. It is about 200 MB in the user's cache, and is mapped into memory: JVMs on one
machine share what they read of it.

It only fits a JVM with the same Java, and with a class path that begins with the same jars. So its
name has a digest of these, and its class path is that of `spark_home.link_spark_home`, with the
Kafka connector in front. A JVM with other jars, or one that `spark.conf` gives a class path of its
own, loads its classes as usual.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.errors import PipelineError
from gateway.kafka.local.class_archive import ClassArchive
from gateway.kafka.local.java import JavaRuntime

from .spark_home import link_spark_home
from .versions import SPARK_VERSION

BUILD_TIMEOUT_S = 900.0  # the build takes some 40 s of CPU
_OPTIONS = (
    "-XX:+VerifySharedSpaces",  # checksums, so that a damaged archive is ignored: 0.07 s of CPU
    # The JVM would write a warning on standard output if it cannot use the archive.
    "-Xlog:cds=off",
    "-Xlog:cds+dynamic=off",
)


def build_archive_options(archive: ClassArchive) -> tuple[str, ...]:
    """Return the JVM's options for an archive; none if it is not built.

    Args:
        archive: The archive.
    """
    path = archive.find()
    return () if path is None else (f"-XX:SharedArchiveFile={path}", *_OPTIONS)


def find_class_archive(home: Path, jars: Sequence[Path], runtime: JavaRuntime) -> ClassArchive:
    """Return the archive for a home of Spark, whether it is built or not.

    Args:
        home: The home, of `link_spark_home`.
        jars: The jars of the Kafka connector.
        runtime: The Java that Spark will use.
    """
    # Java compares the jars' sizes and times, too: jars that were installed again need a new one.
    stats = [(str(jar), jar.stat()) for jar in (*jars, *sorted((home / "jars").glob("*.jar")))]
    lines = [f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats]
    return ClassArchive(home, runtime, "\n".join((SPARK_VERSION, *lines)))


def ensure_class_archive(jars: Sequence[Path], runtime: JavaRuntime) -> Path:
    """Return the path of the archive for the installed Spark; build it if it is missing.

    Args:
        jars: The jars of the Kafka connector.
        runtime: The Java that Spark will use.

    Raises:
        PipelineError: It cannot be built.
        OSError: The user's cache cannot be written.
    """
    return find_class_archive(link_spark_home(), jars, runtime).ensure_built(_record_archive)


def _record_archive(path: Path) -> None:
    # Variables with which Spark would have another class path than by default are left out.
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_", "HADOOP_", "YARN_"))
    }
    try:
        completed = subprocess.run(
            [sys.executable, "-m", "gateway.pipeline.spark.recording", str(path)],
            cwd=path.parent,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise PipelineError(
            f"the class archive was not built within {BUILD_TIMEOUT_S:g} s; try again when the "
            "machine is less busy"
        ) from None
    if completed.returncode or not path.exists():
        raise PipelineError(f"Java wrote no class archive:\n{completed.stdout[-2000:]}")
