"""Keep class archives of Java in the user's cache, each built once.

An archive has classes as Java keeps them in memory: a JVM maps the file instead of reading, parsing
and verifying the classes. JEP 310 describes archives that are written from a list of classes, and
JEP 350 those that a program writes when it ends.

A JVM ignores an archive that is of another Java, or that does not fit its class path or settings
(`-Xshare:auto`, its default). It does not notice that a file was cut short, and ends by a signal
(Java 17). So the name of an archive has its size, which is compared.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .java import JavaRuntime
from .maven import lock_cache


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The class archive of one program on one build of Java, whether it is built or not."""

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
