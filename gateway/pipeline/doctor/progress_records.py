"""Load progress records from a file: saved JSON, or JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gateway.errors import PipelineError


def load_records(path: Path) -> list[dict[str, Any]]:
    """Return the progress of all queries in a file, the oldest first."""
    try:
        objects = [each for each in _parse_objects(path.read_text()) if isinstance(each, dict)]
    except (OSError, ValueError) as error:
        raise PipelineError(f"{path} cannot be read as JSON: {error}") from None
    # A saved event of a query listener has the progress as a field.
    progress = [each.get("progress", each) for each in objects]
    progress = [each for each in progress if "durationMs" in each and "batchId" in each]
    if not progress:
        advice = "save query.recentProgress, or give a job's progress.jsonl"
        raise PipelineError(f"{path} holds no progress of a query; {advice}")
    return progress


def group_by_query(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each query, by its name, or by its id if it has no name."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for each in records:
        groups.setdefault(str(each.get("name") or each.get("id") or "query"), []).append(each)
    return groups


def _parse_objects(text: str) -> Iterator[Any]:
    """Yield the values of JSON or JSON lines, of which the last may be cut off."""
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
