"""Read and write the files of a checkpoint or a backup, local or on a file system of Hadoop.

Names are relative to the directory and separated by `/`. The checksum files that Hadoop keeps on
local disks (`.name.crc`) are not listed: they are moved, copied and removed with their file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from gateway.errors import CheckpointRefused, PipelineError
from gateway.pipeline.job_settings import local_path
from gateway.pipeline.spark import internals


class Files(Protocol):
    """A directory with files, which need not exist yet.

    All methods raise OSError, and FileNotFoundError for a missing file, like `open`.
    """

    location: str

    def list_sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file below the directory, by name."""

    def list_names(self, directory: str = "") -> list[str]:
        """Return the names in a directory, without those below; none if it does not exist.

        Those of directories end with a slash.
        """

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None:
        """Write a file, and replace the one that exists."""

    def remove(self, name: str) -> None: ...

    def move(self, name: str, new_name: str) -> None:
        """Rename a file within the directory, and create the directories of its new name."""

    def get_mtime(self, name: str) -> float:
        """Return when a file was changed last, in seconds since 1970."""

    def fetch(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Return a context manager that provides a file as a local file."""

    def put(self, source: Path, name: str) -> None: ...

    def rename_to(self, directory: str) -> None:
        """Rename the directory to another location, which must not exist yet."""


class LocalFiles:
    def __init__(self, directory: Path | str) -> None:
        self.path = Path(directory)
        self.location = str(directory)

    def list_sizes(self) -> dict[str, int]:
        sizes = {}
        for parent, _, names in os.walk(self.path):
            for name in names:
                if not _is_hidden(name):
                    path = Path(parent, name)
                    # A running job may delete old files meanwhile.
                    with contextlib.suppress(FileNotFoundError):
                        sizes[path.relative_to(self.path).as_posix()] = path.stat().st_size
        return sizes

    def list_names(self, directory: str = "") -> list[str]:
        path = self.path / directory
        if not path.is_dir():
            return []
        return [f"{each.name}/" if each.is_dir() else each.name for each in path.iterdir()]

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically: a crash leaves the old content or the new one."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same directory, as a rename is atomic only within a file system. The dot hides it
        # from `list_sizes`, should a crash leave it behind.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).replace(path)
        crc_path(path).unlink(missing_ok=True)  # it is of the old content

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
        """Provide the file itself, not a copy."""
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


class HadoopError(OSError):
    """An error of Hadoop; its Java exception says whether another attempt may help."""

    def __init__(self, text: str, java_exception: Any) -> None:
        super().__init__(text)
        self.java_exception = java_exception


class HadoopFiles:
    """A directory of a file system that Hadoop reads in Spark's JVM, such as s3a:// or hdfs://."""

    def __init__(self, directory: str, spark: Any) -> None:
        self.location = directory.rstrip("/")
        if spark is None:
            problem = f"{self.location} is on another file system, which only a running job reads"
            raise PipelineError(f"{problem}; run the job, or give a directory of this machine")
        self._jvm = internals.get_jvm(spark)
        self._root = self._create_path(self.location)
        self._fs = self._root.getFileSystem(internals.get_hadoop_conf(spark))
        self._root = self._fs.makeQualified(self._root)

    def list_sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        if not self._fs.exists(self._root):
            return sizes
        start = len(self._root.toString()) + 1
        iterator = self._fs.listFiles(self._root, True)
        while iterator.hasNext():
            status = iterator.next()
            name = status.getPath().toString()[start:]
            if not _is_hidden(name.rsplit("/", 1)[-1]):
                sizes[name] = int(status.getLen())
        return sizes

    def list_names(self, directory: str = "") -> list[str]:
        path = self._resolve(directory) if directory else self._root
        if not self._fs.exists(path):
            return []
        return [
            status.getPath().getName() + ("/" if status.isDirectory() else "")
            for status in self._fs.listStatus(path)
        ]

    def read(self, name: str) -> bytes:
        with self.fetch(name) as path:
            return path.read_bytes()

    def write(self, name: str, data: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "file")
            path.write_bytes(data)
            self.put(path, name)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
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
            local = Path(directory, name.rsplit("/", 1)[-1])
            with self._translate_errors(name):
                # Keep the source, and write no `.crc` file beside the copy.
                self._fs.copyToLocalFile(False, self._resolve(name), self._local_path(local), True)
            yield local

    def put(self, source: Path, name: str) -> None:
        with self._translate_errors(name):
            # Keep the source, and replace the target.
            self._fs.copyFromLocalFile(False, True, self._local_path(source), self._resolve(name))

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

    @contextlib.contextmanager
    def _translate_errors(self, name: str) -> Iterator[None]:
        """Raise Java's errors with a file as OSError."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            if "FileNotFound" in error.java_exception.getClass().getName():
                raise FileNotFoundError(f"{self.location}/{name}") from None
            text = f"{self.location}/{name}: {error.java_exception.getMessage()}"
            raise HadoopError(text, error.java_exception) from error


def open_files(location: str, spark: Any = None) -> Files:
    path = local_path(location)
    return HadoopFiles(location, spark) if path is None else LocalFiles(path)


@contextlib.contextmanager
def refuse_damaged(location: str, name: str) -> Iterator[None]:
    """Raise CheckpointRefused, with the file's name, if its content cannot be interpreted."""
    try:
        yield
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointRefused(
            f"{location}/{name} is damaged ({type(error).__name__}: {error}); put it back, restore "
            "a backup, or start again with --fresh"
        ) from error


def crc_path(path: Path) -> Path:
    """Return the path where Hadoop keeps the checksums of a local file."""
    return path.with_name(f".{path.name}.crc")


def _is_hidden(name: str) -> bool:
    return name.startswith(".")  # checksums, and files that are still being written
