"""Check whether a file of a checkpoint is undamaged.

On a local disk, Hadoop keeps the CRC-32 of every 512 bytes beside each file. On other file systems
the formats have checksums of their own: a snapshot is a ZIP file with CRCs, a changelog has LZ4
blocks with hashes, and a table has RocksDB's blocks with checksums. Without a JVM, only the
structure of changelogs and tables is checked.
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
"""Returns what is wrong inside of a table or a changelog, or None."""

_TABLE_MAGIC = struct.pack("<Q", 0x88E241B785F4CFF7)  # RocksDB, block_based_table_builder.cc
# lz4-java, LZ4BlockOutputStream: magic, token, compressed size, size, hash.
_BLOCK_HEADER = struct.Struct("<8sBIII")


def describe_damage(path: Path, check_content: ContentCheck | None = None) -> str | None:
    """Return the damage of a local file and its checksums, also errors of reading, or None."""
    try:
        return _check_crc(path) or _check_format(path, check_content)
    except FileNotFoundError:
        return "is missing"
    except (OSError, zipfile.BadZipFile, ValueError, struct.error, zlib.error) as error:
        return str(error) or type(error).__name__


def read_metadata(snapshot: Path) -> dict[str, Any]:
    """Return the `metadata` of a snapshot: its tables and its number of keys (-1: not counted)."""
    with zipfile.ZipFile(snapshot) as archive:
        _, text = archive.read("metadata").decode().split("\n", 1)  # the first line is a version
    metadata: dict[str, Any] = json.loads(text)
    return metadata


def create_content_check(jvm: Any) -> ContentCheck:
    """Return a check by RocksDB's and LZ4's own readers, in the JVM of Spark."""
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
    """Verify a file by Hadoop's checksums, if they are beside it.

    The format is that of Hadoop's ChecksumFileSystem: `crc`, a zero byte, the number of bytes per
    checksum, then the CRC-32 of each such piece, all big-endian.
    """
    checksum_path = crc_path(path)
    if not checksum_path.exists():
        return None if path.exists() else "is missing"
    checksum_file = checksum_path.read_bytes()
    size = int.from_bytes(checksum_file[4:8], "big")
    if checksum_file[:4] != b"crc\0" or not size:
        return "has damaged checksums"
    data = memoryview(path.read_bytes())
    checksums = checksum_file[8:]
    if len(checksums) != 4 * -(-len(data) // size):
        return f"has {len(data)} bytes, which is not what was written"
    for i, start in enumerate(range(0, len(data), size)):
        checksum = zlib.crc32(data[start : start + size]).to_bytes(4, "big")
        if checksum != checksums[4 * i : 4 * i + 4]:
            return f"is damaged at byte {start} or after"
    return None


def _check_format(path: Path, check_content: ContentCheck | None) -> str | None:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
        return f"has a damaged member {member}" if member else None
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
    """Verify that a changelog is a sequence of LZ4 blocks that ends with an empty block.

    Spark wraps two streams around the file, and each writes an empty block when it is closed. So a
    complete changelog may end with two of them.
    """
    position, is_complete = 0, False
    while position < len(data):
        if position + _BLOCK_HEADER.size > len(data):
            return "is cut off"
        magic, _, compressed_size, size, _ = _BLOCK_HEADER.unpack_from(data, position)
        if magic != b"LZ4Block":
            return f"has no block at byte {position}"
        position, is_complete = position + _BLOCK_HEADER.size + compressed_size, size == 0
    return None if is_complete and position == len(data) else "is cut off"
