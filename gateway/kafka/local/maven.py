"""Fetch jars that are pinned by their checksums, once for the machine.

A list names every jar and its SHA-256, so dependencies need not be resolved: `jgo` (a wheel) or
`mvn`, whichever is installed, only fetches. With jgo 3.2 the 46 jars of Kafka take 3 s and 44 MB;
resolving the dependencies would take 15 s more. Jars are verified before any process can see them.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from gateway.errors import GatewayError
from gateway.extras import format_install_command


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


_POM_TEMPLATE = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>gateway</groupId><artifactId>jars</artifactId><version>1</version>
<packaging>pom</packaging><dependencies>{}</dependencies></project>"""
_DEPENDENCY_TEMPLATE = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>"
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
    "</exclusions></dependency>"
)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
