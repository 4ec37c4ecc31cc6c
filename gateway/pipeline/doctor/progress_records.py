"""Load progress records from a file: saved JSON, JSON lines, or Spark's event log.

A log to which Spark still writes is read as far as it is complete. Compressed with zstd, it is
complete up to the last flush, which is the end of a Spark job.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.errors import PipelineError

from .event_log import read_events

log = logging.getLogger(__name__)

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"  # RFC 8878 3.1.1


def load_records(path: Path) -> list[dict[str, Any]]:
    """Return the progress of all queries in a file, the oldest first.

    Args:
        path: A file, or the directory of a rolled event log.

    Raises:
        PipelineError: The file cannot be read, is damaged, or contains no progress.
    """
    try:
        objects = [each for text in _read_texts(path) for each in _parse_objects(text)]
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} cannot be read as JSON: {error}") from None
    if any("Event" in each for each in objects):
        objects = read_events(objects)
    # A saved event of a query listener has the progress as a field.
    progress = [each.get("progress", each) for each in objects]
    progress = [each for each in progress if "durationMs" in each and "batchId" in each]
    if not progress:
        advice = "save query.recentProgress, or give an event log or a job's progress.jsonl"
        raise PipelineError(f"{path} holds no progress of a query; {advice}")
    return progress


def group_by_query(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each query, by its name, or by its id if it has no name.

    Args:
        records: The records of several queries. The result has the queries in the order of their
            first record.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in records:
        groups.setdefault(str(each.get("name") or each.get("id") or "query"), []).append(each)
    return groups


def _read_texts(path: Path) -> Iterator[str]:
    """Yield the text of a file, or of each file of a rolled log in the order of their numbers."""
    if not path.is_dir():
        yield _read_text(path, is_latest=True)
        return
    files = [each for each in path.iterdir() if each.name.startswith("events_")]
    files.sort(key=lambda file: int(file.name.split("_")[1]))
    for each in files:
        yield _read_text(each, is_latest=each is files[-1])


def _read_text(path: Path, is_latest: bool) -> str:
    """Return the text of a file, decompressed.

    Args:
        path: The file.
        is_latest: Whether Spark may still write to the file.

    Raises:
        PipelineError: The compressed data is damaged, or nothing of it is complete.
    """
    data = path.read_bytes()
    return (_decompress(path, data, is_latest) if data.startswith(_ZSTD_MAGIC) else data).decode()


def _decompress(path: Path, data: bytes, is_latest: bool) -> bytes:
    """Return the whole lines of data that is compressed with zstd; see `_read_text`."""
    import cramjam

    output = cramjam.Buffer()
    try:
        cramjam.zstd.decompress_into(data, output)
    except cramjam.DecompressionError as error:
        # The buffer has what was decompressed before the error.
        lines = bytes(output)
        lines = lines[: lines.rfind(b"\n") + 1]
        if not is_latest or "incomplete" not in str(error):
            raise PipelineError(f"{path} is damaged: {error}") from None
        if not lines:
            advice = "it is still being written; try again after the job's next batches"
            raise PipelineError(f"{path} holds nothing complete: {advice}") from None
        log.warning("%s is still being written, or cut off; only its whole lines are read", path)
        return lines
    return bytes(output)


def _parse_objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON text: one object, a list of objects, or one object per line.

    A last line that is cut off is ignored.

    Raises:
        ValueError: Another line is not JSON.
    """
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if document is not None:
        yield from document if isinstance(document, list) else [document]
        return
    lines = [line for line in text.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if index < len(lines) - 1:
                raise
