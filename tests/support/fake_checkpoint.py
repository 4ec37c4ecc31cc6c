"""Checkpoints that only look like ones: the names and forms of Spark's files, without Spark."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

_TABLE_END = struct.pack("<Q", 0x88E241B785F4CFF7)


def write_checkpoint(
    directory: Path,
    *,
    batch_count: int = 6,
    partition_count: int = 2,
    snapshot_interval: int = 2,
    first_version: int = 0,
) -> Path:
    """Batches of one stateful operator, a snapshot of every second version. first: the oldest
    version that retention has left."""
    for batch in range(batch_count):
        write_offsets(directory, batch, partition_count)
        write_file(directory / f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    write_file(directory / "metadata", b'{"id":"11111111-2222-3333-4444-555555555555"}')
    write_file(directory / "sources/0/0", b"v1\n{}")
    write_file(directory / "state/0/_metadata/metadata", b"v1\n{}")
    for partition in range(partition_count):
        store = directory / f"state/0/{partition}"
        for version in range(max(first_version, 1), batch_count + 1):
            write_file(store / f"{version}.changelog", build_changelog(b"x" * version))
            if version % snapshot_interval == 0:
                write_snapshot(store, version)
    return directory


def write_offsets(directory: Path, batch: int, partition_count: int) -> None:
    conf = {"conf": {"spark.sql.shuffle.partitions": str(partition_count)}}
    text = f'v1\n{json.dumps(conf)}\n{{"clicks":{{"0":{10 * batch + 10}}}}}'
    write_file(directory / f"offsets/{batch}", text.encode())


def write_snapshot(store_directory: Path, version: int) -> None:
    """A table of its own, and one that all snapshots of the store share."""
    tables = []
    for name in ("000001-shared.sst", f"{version:06}-own.sst"):
        data = name.encode() + _TABLE_END
        write_file(store_directory / "SSTs" / name, data)
        tables.append({"localFileName": "x", "dfsSstFileName": name, "sizeBytes": len(data)})
    with zipfile.ZipFile(store_directory / f"{version}.zip", "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": tables, "numKeys": 7}))
        archive.writestr("MANIFEST-000005", b"manifest" * 20)


def build_changelog(data: bytes) -> bytes:
    def block(content: bytes) -> bytes:
        size = len(content)
        return struct.pack("<8sBIII", b"LZ4Block", 0x15, size, size, 0) + content

    return block(data) + block(b"")


def write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def truncate_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])
