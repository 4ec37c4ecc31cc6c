"""Records of progress from a file: saved JSON, JSON lines, or Spark's event log.

A log that Spark still writes is read as far as it goes: of zstd those frames that are complete, one
is with each of Spark's flushes (the end of a job).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.errors import PipelineError

from .event_log import read_events as of_events

log = logging.getLogger(__name__)

_ZSTD = b"\x28\xb5\x2f\xfd"


def load_records(path: Path) -> list[dict[str, Any]]:
    """The oldest first, of all queries in it. Raises PipelineError for what holds no progress."""
    try:
        found = [each for text in _read_texts(path) for each in _parse_objects(text)]
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} cannot be read as JSON: {error}") from None
    if any("Event" in each for each in found):
        found = of_events(found)
    progress = [
        each.get("progress", each) for each in found
    ]  # an event of a listener has it within
    progress = [each for each in progress if "durationMs" in each and "batchId" in each]
    if not progress:
        what = "save query.recentProgress, or give an event log or a job's progress.jsonl"
        raise PipelineError(f"{path} holds no progress of a query; {what}")
    return progress


def group_by_query(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By name, or by id where they have none; in the order they begin."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in records:
        found.setdefault(str(each.get("name") or each.get("id") or "query"), []).append(each)
    return found


def _read_texts(path: Path) -> Iterator[str]:
    """Of a rolled log its files, in the order of their numbers."""
    if not path.is_dir():
        yield _read_text(path, is_latest=True)
        return
    files = [each for each in path.iterdir() if each.name.startswith("events_")]
    files.sort(key=lambda file: int(file.name.split("_")[1]))
    for each in files:
        yield _read_text(each, is_latest=each is files[-1])


def _read_text(path: Path, is_latest: bool) -> str:
    """latest: it may be written at this moment."""
    data = path.read_bytes()
    return (_decompress(path, data, is_latest) if data.startswith(_ZSTD) else data).decode()


def _decompress(path: Path, data: bytes, is_latest: bool) -> bytes:
    import cramjam

    into = cramjam.Buffer()
    try:
        cramjam.zstd.decompress_into(data, into)
    except cramjam.DecompressionError as error:
        found = bytes(into)
        found = found[: found.rfind(b"\n") + 1]
        if not is_latest or "incomplete" not in str(error):
            raise PipelineError(f"{path} is damaged: {error}") from None
        if not found:
            what = "it is still being written; try again after the job's next batches"
            raise PipelineError(f"{path} holds nothing complete: {what}") from None
        log.warning("%s is still being written, or cut off: read as far as it goes", path)
        return found
    return bytes(into)


def _parse_objects(text: str) -> Iterator[dict[str, Any]]:
    """One, a list of them, or one a line; a last line that is cut off is passed over."""
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if whole is not None:
        yield from whole if isinstance(whole, list) else [whole]
        return
    lines = [line for line in text.splitlines() if line.strip()]
    for at, line in enumerate(lines):
        try:
            yield json.loads(line)
        except ValueError:
            if at < len(lines) - 1:
                raise
