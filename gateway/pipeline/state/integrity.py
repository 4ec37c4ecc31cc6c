"""Is a file of a checkpoint what was written?

A local disk has Hadoop's CRC-32 of every 512 bytes beside each file. Elsewhere a file says it
itself: a snapshot is a ZIP with CRCs, a changelog LZ4 blocks with hashes, a table RocksDB's blocks
with checksums. Without a JVM, of the last two only the form is looked at.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from .files import crc_path

ContentCheck: TypeAlias = Callable[[Path], str | None]
"""What is wrong within a table or a changelog, if anything is."""

_TABLE_MAGIC = struct.pack("<Q", 0x88E241B785F4CFF7)  # RocksDB, block_based_table_builder.cc
_BLOCK_HEADER = struct.Struct(
    "<8sBIII"
)  # lz4-java, LZ4BlockOutputStream: magic, token, sizes, hash


def describe_damage(path: Path, check_content: ContentCheck | None = None) -> str | None:
    """What is wrong with it, in words; None: nothing that can be seen. Never raises."""
    try:
        return _check_crc(path) or _check_format(path, check_content)
    except FileNotFoundError:
        return "is missing"
    except (OSError, zipfile.BadZipFile, ValueError, struct.error, zlib.error) as error:
        return str(error) or type(error).__name__


def read_metadata(snapshot: Path) -> dict[str, Any]:
    """The `metadata` of a snapshot: its tables, and its number of keys (-1: not counted)."""
    with zipfile.ZipFile(snapshot) as archive:
        _, text = archive.read("metadata").decode().split("\n", 1)
    found: dict[str, Any] = json.loads(text)
    return found


def create_content_check(jvm: Any) -> ContentCheck:
    """What RocksDB and LZ4 themselves find, in the JVM of Spark."""
    from py4j.protocol import Py4JJavaError

    def check_table(path: str) -> None:
        options = jvm.org.rocksdb.Options()
        reader = jvm.org.rocksdb.SstFileReader(options)
        try:
            reader.open(path)
            reader.verifyChecksum()
        finally:
            reader.close()
            options.close()

    def check_changelog(path: str) -> None:
        file = jvm.java.io.FileInputStream(path)
        try:
            jvm.org.apache.commons.io.IOUtils.consume(jvm.net.jpountz.lz4.LZ4BlockInputStream(file))
        finally:
            file.close()

    def check_content(path: Path) -> str | None:
        try:
            (check_table if path.suffix == ".sst" else check_changelog)(str(path))
        except Py4JJavaError as error:
            return str(error.java_exception.getMessage())
        return None

    jvm.org.rocksdb.RocksDB.loadLibrary()
    return check_content


def _check_crc(path: Path) -> str | None:
    beside = crc_path(path)
    if not beside.exists():
        return None if path.exists() else "is missing"
    sums = beside.read_bytes()
    size = int.from_bytes(sums[4:8], "big")
    if sums[:4] != b"crc\0" or not size:
        return "its checksums are damaged"
    data = memoryview(path.read_bytes())
    want = sums[8:]
    if len(want) != 4 * -(-len(data) // size):
        return f"has {len(data)} bytes, which is not what was written"
    for n, at in enumerate(range(0, len(data), size)):
        if zlib.crc32(data[at : at + size]).to_bytes(4, "big") != want[4 * n : 4 * n + 4]:
            return f"is damaged at byte {at} or after"
    return None


def _check_format(path: Path, check_content: ContentCheck | None) -> str | None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        return f"{bad} in it is damaged" if bad else None
    if path.suffix == ".changelog":
        return _check_changelog(path.read_bytes()) or (
            check_content(path) if check_content else None
        )
    if path.suffix == ".sst":
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - len(_TABLE_MAGIC), 0))
            if file.read() != _TABLE_MAGIC:
                return "is cut off"
        return check_content(path) if check_content else None
    return None


def _check_changelog(data: bytes) -> str | None:
    """Blocks up to an empty one, which ends it (twice: one of each stream around it)."""
    at, ended = 0, False
    while at < len(data):
        if at + _BLOCK_HEADER.size > len(data):
            return "is cut off"
        magic, _, packed, size, _ = _BLOCK_HEADER.unpack_from(data, at)
        if magic != b"LZ4Block":
            return f"has no block at byte {at}"
        at, ended = at + _BLOCK_HEADER.size + packed, size == 0
    return None if ended and at == len(data) else "is cut off"
