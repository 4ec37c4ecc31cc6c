"""This package as an archive: what executors elsewhere run, so that it is what the driver runs.

What it depends on (`pip install gateway[pipeline]`) must be there, in the Python that
PYSPARK_PYTHON names.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gateway.kafka.local.maven import cache_path

PACKAGE_DIRECTORY = Path(__file__).parents[2]
_ARCHIVE_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # the archive depends on its contents only


def build_archive() -> Path:
    """A zip, made once for each content."""
    files = sorted(_iter_files())
    digest = hashlib.sha256()
    for path in files:
        digest.update(
            path.relative_to(PACKAGE_DIRECTORY).as_posix().encode() + b"\0" + path.read_bytes()
        )
    target = cache_path("submit") / f"gateway-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                name = f"{PACKAGE_DIRECTORY.name}/{path.relative_to(PACKAGE_DIRECTORY).as_posix()}"
                out.writestr(zipfile.ZipInfo(name, _ARCHIVE_TIMESTAMP), path.read_bytes())
        part.rename(target)
    return target


def _iter_files() -> Iterator[Path]:
    for path in PACKAGE_DIRECTORY.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path
