"""The latest progress of a job, in a file beside its checkpoints: what the doctor reads of it while
it runs, and afterwards.

A line is one batch: Spark's progress as JSON, with `tasks` and `notes` (see doctor/reading). Lines
are appended; at twice `KEPT` the file is written anew with the latest, under its name at once, so
that a reader always has whole lines, except for one that is being written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from gateway.pipeline.checkpoint.versions import local_path

MAX_BATCHES = 100
FILE_NAME = "progress.jsonl"


def get_progress_path(checkpoints: str, job: str) -> Path:
    """Where a job's file is. Of checkpoints on another file system: in the user's state directory
    of the machine where the driver runs."""
    directory = local_path(checkpoints)
    if directory is None:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        which = hashlib.sha256(checkpoints.rstrip("/").encode()).hexdigest()[:12]
        directory = state / "gateway" / "pipelines" / which
    return directory / job / FILE_NAME


class ProgressFile:
    """One job's file. What an earlier process left is kept; the doctor looks at the latest run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = deque(_read_whole_lines(path), MAX_BATCHES)
        self._rewrite()

    def append(self, record: Mapping[str, Any]) -> None:
        line = json.dumps(record, default=str)
        self._lines.append(line)
        self._line_count += 1
        if self._line_count > 2 * MAX_BATCHES:
            self._rewrite()
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _rewrite(self) -> None:
        beside = self.path.with_suffix(f".{os.getpid()}")
        beside.write_text("".join(f"{line}\n" for line in self._lines), encoding="utf-8")
        beside.replace(self.path)
        self._line_count = len(self._lines)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records, the oldest first; none if there is no file."""
    return [json.loads(line) for line in _read_whole_lines(path)]


def _read_whole_lines(path: Path) -> Sequence[str]:
    """Lines that are complete."""
    if not path.is_file():
        return ()
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.split("\n")[:-1] if line.endswith("}")]


_notes: dict[tuple[str, int], dict[str, float]] = {}
_lock = Lock()


def add_note(query: str, batch: int, **seconds: float) -> None:
    """What a part of a job took in a batch, for the doctor: `note(id, 7, sink=1.2)` is how long its
    writers waited for Kafka, on the clock. query: the id of the query, or its name."""
    with _lock:
        held = _notes.setdefault((query, batch), {})
        for name, value in seconds.items():
            held[name] = held.get(name, 0.0) + value
        while len(_notes) > 1000:  # nobody listens
            _notes.pop(next(iter(_notes)))


def pop_notes(query: str, name: str | None, batch: int) -> dict[str, float]:
    """Taken: it is told once."""
    with _lock:
        found = _notes.pop((query, batch), {})
        return found | _notes.pop((name or "", batch), {})
