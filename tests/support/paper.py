"""Checkpoints that only look like ones: the names and forms of Spark's files, without Spark."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

_TABLE_END = struct.pack("<Q", 0x88E241B785F4CFF7)


def checkpoint(
    directory: Path, *, batches: int = 6, partitions: int = 2, every: int = 2, first: int = 0
) -> Path:
    """Batches of one stateful operator, a snapshot of every second version. first: the oldest
    version that retention has left."""
    for batch in range(batches):
        offsets(directory, batch, partitions)
        write(directory / f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
    write(directory / "metadata", b'{"id":"11111111-2222-3333-4444-555555555555"}')
    write(directory / "sources/0/0", b"v1\n{}")
    write(directory / "state/0/_metadata/metadata", b"v1\n{}")
    for partition in range(partitions):
        store = directory / f"state/0/{partition}"
        for version in range(max(first, 1), batches + 1):
            write(store / f"{version}.changelog", changelog(b"x" * version))
            if version % every == 0:
                snapshot(store, version)
    return directory


def offsets(directory: Path, batch: int, partitions: int) -> None:
    conf = {"conf": {"spark.sql.shuffle.partitions": str(partitions)}}
    text = f'v1\n{json.dumps(conf)}\n{{"clicks":{{"0":{10 * batch + 10}}}}}'
    write(directory / f"offsets/{batch}", text.encode())


def snapshot(store: Path, version: int) -> None:
    """A table of its own, and one that all snapshots of the store share."""
    tables = []
    for name in ("000001-shared.sst", f"{version:06}-own.sst"):
        data = name.encode() + _TABLE_END
        write(store / "SSTs" / name, data)
        tables.append({"localFileName": "x", "dfsSstFileName": name, "sizeBytes": len(data)})
    with zipfile.ZipFile(store / f"{version}.zip", "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": tables, "numKeys": 7}))
        archive.writestr("MANIFEST-000005", b"manifest" * 20)


def changelog(data: bytes) -> bytes:
    def block(content: bytes) -> bytes:
        size = len(content)
        return struct.pack("<8sBIII", b"LZ4Block", 0x15, size, size, 0) + content

    return block(data) + block(b"")


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])
