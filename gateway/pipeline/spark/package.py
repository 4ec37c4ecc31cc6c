"""Build an archive of the package `gateway` for executors on other machines.

With it, executors run the same code as the driver. The dependencies (`pip install
kafka-gateway[pipeline]`) are not in the archive: the Python that PYSPARK_PYTHON names must have
them.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gateway.kafka.local.maven import cache_path

PACKAGE_DIRECTORY = Path(__file__).parents[2]
_ARCHIVE_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # fixed, so that equal files give equal archives


def build_archive() -> Path:
    """Return a zip archive of the package in the user's cache, built for these files once."""
    files = sorted(_iter_files())
    digest = hashlib.sha256()
    for path in files:
        digest.update(
            path.relative_to(PACKAGE_DIRECTORY).as_posix().encode() + b"\0" + path.read_bytes()
        )
    archive = cache_path("submit") / f"gateway-{digest.hexdigest()[:16]}.zip"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        # Another process may build the same archive: it is renamed once it is complete.
        temporary = archive.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as out:
            for path in files:
                name = f"{PACKAGE_DIRECTORY.name}/{path.relative_to(PACKAGE_DIRECTORY).as_posix()}"
                out.writestr(zipfile.ZipInfo(name, _ARCHIVE_TIMESTAMP), path.read_bytes())
        temporary.rename(archive)
    return archive


def _iter_files() -> Iterator[Path]:
    for path in PACKAGE_DIRECTORY.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path
