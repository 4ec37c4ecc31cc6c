"""Find the checkpoints of jobs: `checkpoints/<job>/v<N>`, of which the highest is in use.

The first run, `--fresh` and `restore` create a version. Older versions stay until an operator
removes them. To go back to an earlier definition, remove the versions since. With `guarantee:
exactly-once` the earlier version is then refused if a later one has written rows (see
`exactly_once.writer_plan`); `backup` and `restore` make it a new version, which writes those rows
once more. Other file systems than the local one are listed by Hadoop in Spark's JVM.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_VERSION_PATTERN = re.compile(r"v(\d{1,9})")


def local_path(location: str) -> Path | None:
    """Return the path of a local location, or None for URLs of other file systems."""
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if re.match(r"[a-z][a-z0-9+.-]*://", location) else Path(location).resolve()


def parse_version(name: str) -> int | None:
    match = _VERSION_PATTERN.fullmatch(name)
    return int(match[1]) if match else None


def list_local_versions(root: Path, job: str) -> list[int]:
    directory = root / job
    paths = directory.iterdir() if directory.is_dir() else ()
    names = [path.name for path in paths if path.is_dir()]
    return sorted(number for name in names if (number := parse_version(name)) is not None)


def version_path(location: str, job: str, version: int) -> str:
    """Return the location of a version as Spark takes it: an absolute path or a URL."""
    root = local_path(location)
    return f"{location.rstrip('/') if root is None else root}/{job}/v{version}"


def list_versions(location: str, job: str, spark: Any = None) -> list[int]:
    """Return the numbers of a job's versions, ascending; other file systems need a session."""
    root = local_path(location)
    if root is not None:
        return list_local_versions(root, job)
    context = spark.sparkContext
    path = context._jvm.org.apache.hadoop.fs.Path(f"{location.rstrip('/')}/{job}")
    fs = path.getFileSystem(context._jsc.hadoopConfiguration())
    names = (
        [status.getPath().getName() for status in fs.listStatus(path)] if fs.exists(path) else []
    )
    return sorted(number for name in names if (number := parse_version(name)) is not None)


def find_last_batch(directory: Path) -> int | None:
    commits = directory / "commits"
    names = [path.name for path in commits.iterdir()] if commits.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)
