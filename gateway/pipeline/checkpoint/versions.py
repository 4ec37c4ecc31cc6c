"""Where jobs keep their checkpoints: `checkpoints/<job>/<version>`, the highest is in use.

A version is begun by the first run and by `--fresh`; older ones stay until somebody removes them.
To take a definition back, remove the versions since. With `guarantee: exactly-once` the older one
is then refused if a later one has written rows (see `exactly_once.plan`); `backup` and `restore`
make it a new version, which writes once more what was written since. Beside Spark's own
directories each version holds `definition.json`. On another file system than this machine's,
Hadoop's is asked through Spark.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_VERSION_PATTERN = re.compile(r"v(\d{1,9})")


def local_path(location: str) -> Path | None:
    """The directory, where it is one of this machine; None for URLs of other file systems."""
    if location.startswith("file:"):
        return Path("/" + location.removeprefix("file:").lstrip("/"))
    return None if re.match(r"[a-z][a-z0-9+.-]*://", location) else Path(location).resolve()


def parse_version(name: str) -> int | None:
    """The number of a version, by the name of its directory."""
    found = _VERSION_PATTERN.fullmatch(name)
    return int(found[1]) if found else None


def list_local_versions(root: Path, job: str) -> list[int]:
    """Those a job has, the one in use last."""
    directory = root / job
    names = [each.name for each in directory.iterdir()] if directory.is_dir() else []
    return sorted(found for name in names if (found := parse_version(name)) is not None)


def version_path(location: str, job: str, version: int) -> str:
    """What Spark is told: an absolute path or a URL."""
    root = local_path(location)
    return f"{location.rstrip('/') if root is None else root}/{job}/v{version}"


def list_versions(location: str, job: str, spark: Any = None) -> list[int]:
    """The versions a job has, wherever they are. spark: needed for other file systems."""
    root = local_path(location)
    if root is not None:
        return list_local_versions(root, job)
    context = spark.sparkContext
    at = context._jvm.org.apache.hadoop.fs.Path(f"{location.rstrip('/')}/{job}")
    files = at.getFileSystem(context._jsc.hadoopConfiguration())
    names = [each.getPath().getName() for each in files.listStatus(at)] if files.exists(at) else []
    return sorted(number_ for name in names if (number_ := parse_version(name)) is not None)


def find_last_batch(directory: Path) -> int | None:
    """The last one that is complete; None before the first."""
    commits = directory / "commits"
    names = [each.name for each in commits.iterdir()] if commits.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=None)
