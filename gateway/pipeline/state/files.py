"""Files of a checkpoint or a backup, wherever they are: on this machine, or where Hadoop reads.

Names are relative, with `/`. Checksum files that Hadoop keeps on local disks (`.name.crc`) are not
listed: they go with the file they are of.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from gateway.pipeline.checkpoint import versions

from . import layout


class Files(Protocol):
    """A directory, perhaps not there yet. All raise OSError (FileNotFoundError) as open does."""

    location: str

    def list_sizes(self) -> dict[str, int]:
        """Bytes of every file below it; none if it is not there."""

    def read(self, name: str) -> bytes: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, name: str) -> None: ...
    def move(self, name: str, new_name: str) -> None: ...
    def get_mtime(self, name: str) -> float:
        """Seconds since the epoch."""

    def fetch(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """It as a file of this machine."""

    def put(self, source: Path, name: str) -> None:
        """Copy a file of this machine here."""

    def rename_to(self, directory: str) -> None:
        """Be renamed; `directory` must not be there yet."""


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory)
        self.location = str(directory)

    def list_sizes(self) -> dict[str, int]:
        found = {}
        for parent, _, names in os.walk(self.path):
            for name in names:
                if not _is_hidden(name):
                    path = Path(parent, name)
                    with contextlib.suppress(FileNotFoundError):  # retention is at work
                        found[path.relative_to(self.path).as_posix()] = path.stat().st_size
        return found

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Whole or not at all."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as made:
            made.write(data)
            made.flush()
            os.fsync(made.fileno())
        Path(made.name).replace(path)
        crc_path(path).unlink(missing_ok=True)  # of what was there

    def remove(self, name: str) -> None:
        (self.path / name).unlink()
        crc_path(self.path / name).unlink(missing_ok=True)

    def move(self, name: str, new_name: str) -> None:
        source, target = self.path / name, self.path / new_name
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
        with contextlib.suppress(FileNotFoundError):
            crc_path(source).replace(crc_path(target))

    def get_mtime(self, name: str) -> float:
        return (self.path / name).stat().st_mtime

    @contextlib.contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        yield self.path / name

    def put(self, source: Path, name: str) -> None:
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(crc_path(source), crc_path(target))

    def rename_to(self, directory: str) -> None:
        Path(directory).parent.mkdir(parents=True, exist_ok=True)
        self.path.rename(directory)


class HadoopFiles:
    """A directory that Spark's JVM reaches, such as s3a:// or hdfs://."""

    def __init__(self, directory: str, spark: Any) -> None:
        self.location = directory.rstrip("/")
        self._jvm = spark._jvm
        self._conf = spark._jsc.hadoopConfiguration()
        self._root = self._create_path(self.location)
        self._fs = self._root.getFileSystem(self._conf)
        self._root = self._fs.makeQualified(self._root)

    def list_sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        if not self._fs.exists(self._root):
            return found
        start = len(self._root.toString()) + 1
        each = self._fs.listFiles(self._root, True)
        while each.hasNext():
            status = each.next()
            name = status.getPath().toString()[start:]
            if not _is_hidden(name.rsplit("/", 1)[-1]):
                found[name] = int(status.getLen())
        return found

    def read(self, name: str) -> bytes:
        with self.fetch(name) as path:
            return path.read_bytes()

    def write(self, name: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "file")
            path.write_bytes(data)
            self.put(path, name)

    def remove(self, name: str) -> None:
        self._fs.delete(self._resolve(name), False)

    def move(self, name: str, new_name: str) -> None:
        self._fs.mkdirs(self._resolve(new_name).getParent())
        if not self._fs.rename(self._resolve(name), self._resolve(new_name)):
            raise OSError(f"{self.location}/{name} cannot be renamed to {new_name}")

    def get_mtime(self, name: str) -> float:
        return float(self._fs.getFileStatus(self._resolve(name)).getModificationTime()) / 1000

    @contextlib.contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, name.rsplit("/", 1)[-1])
            self._run_on_path(
                name, lambda at: self._fs.copyToLocalFile(False, at, self._local_path(path), True)
            )
            yield path

    def put(self, source: Path, name: str) -> None:
        here = self._local_path(source)
        self._run_on_path(name, lambda at: self._fs.copyFromLocalFile(False, True, here, at))

    def rename_to(self, directory: str) -> None:
        target = self._create_path(directory)
        self._fs.mkdirs(target.getParent())
        if not self._fs.rename(self._root, target):
            raise OSError(f"{self.location} cannot be renamed to {directory}")

    def _create_path(self, text: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(text)

    def _resolve(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)

    def _local_path(self, path: Path) -> Any:
        return self._create_path(path.absolute().as_uri())

    def _run_on_path(self, name: str, operation: Any) -> None:
        from py4j.protocol import Py4JJavaError

        try:
            operation(self._resolve(name))
        except Py4JJavaError as error:
            if "FileNotFound" in error.java_exception.getClass().getName():
                raise FileNotFoundError(f"{self.location}/{name}") from None
            raise OSError(f"{self.location}/{name}: {error.java_exception.getMessage()}") from None


def open_files(location: str, spark: Any = None) -> Files:
    """Of a path, or of a URL that Hadoop reads (needs a session)."""
    path = versions.local_path(location)
    return HadoopFiles(location, spark) if path is None else LocalFiles(path)


def crc_path(path: Path) -> Path:
    """Where Hadoop keeps the checksums of a file of a local disk."""
    return path.with_name(f".{path.name}.crc")


def _is_hidden(name: str) -> bool:
    return name.startswith(".")  # also what is still being written


def discard_state(files: Files, version: int) -> None:
    """Remove the state that is newer than a version. The query must not run.

    Spark writes each version again, but would go on from a snapshot that is there.

    Args:
        held: The files of the checkpoint.
        version: That of the last finished batch is one more than its number.
    """
    for name in layout.find_newer_files(files.list_sizes(), version):
        with contextlib.suppress(FileNotFoundError):
            files.remove(name)
