"""Keep the latest progress of a job in a file beside its checkpoints.

The doctor reads the file while the job runs, and afterwards. A line is the progress of one batch as
JSON, with `tasks` and `notes` (see `gateway.pipeline.doctor.query_run`), and `alerts`, the messages
of the active ones by their names. When the file has twice `MAX_BATCHES` lines, it is replaced by a
file with the latest ones, by one rename. A reader therefore sees whole lines only, except for a
last line that is being written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from gateway.pipeline.checkpoint.versions import local_path

MAX_BATCHES = 100
FILE_NAME = "progress.jsonl"


def get_progress_path(checkpoints: str, job: str) -> Path:
    """Return the path of the file of a job.

    If the checkpoints are not on a local disk, the file is in the user's state directory on the
    machine of the driver (XDG Base Directory Specification).
    """
    directory = local_path(checkpoints)
    if directory is None:
        state_home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        digest = hashlib.sha256(checkpoints.rstrip("/").encode()).hexdigest()[:12]
        directory = state_home / "gateway" / "pipelines" / digest
    return directory / job / FILE_NAME


class ProgressFile:
    """The progress file of one job, which keeps the lines of earlier processes."""

    def __init__(self, path: Path) -> None:
        """Open the file, and drop the part of a line that a killed process has left."""
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
        temporary = self.path.with_suffix(f".{os.getpid()}")
        temporary.write_text("".join(f"{line}\n" for line in self._lines), encoding="utf-8")
        temporary.replace(self.path)
        self._line_count = len(self._lines)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, without lines that a crash of the machine has damaged."""
    records = []
    for line in _read_whole_lines(path):
        with suppress(ValueError):
            records.append(json.loads(line))
    return [record for record in records if isinstance(record, dict)]


def _read_whole_lines(path: Path) -> Sequence[str]:
    """Return the lines of a file, except for one that is not completely written."""
    if not path.is_file():
        return ()
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.split("\n")[:-1] if line.endswith("}")]


# By the id or the name of the query, and the batch. They are added in the thread of the query, and
# taken in that of `ProgressReporter`.
_notes: dict[tuple[str, int], dict[str, float]] = {}
_lock = Lock()


def add_note(query: str, batch: int, **seconds: float) -> None:
    """Add the time that a part of a job took in a batch, for the doctor.

    Args:
        **seconds: The elapsed time of each part. `sink` is how long writers waited for Kafka.
    """
    with _lock:
        notes = _notes.setdefault((query, batch), {})
        for name, value in seconds.items():
            notes[name] = notes.get(name, 0.0) + value
        while len(_notes) > 1000:  # nobody takes them, as in a process without a reporter
            _notes.pop(next(iter(_notes)))


def pop_notes(query: str, name: str | None, batch: int) -> dict[str, float]:
    with _lock:
        notes = _notes.pop((query, batch), {})
        return notes | _notes.pop((name or "", batch), {})
