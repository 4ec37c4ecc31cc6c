"""Write the progress of jobs: to a file beside the checkpoints, and to a topic for browsers.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from gateway.pipeline.job_settings import local_path

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


_MAX_QUEUED_RECORDS = 5_000  # of about 4 KB each
_DELIVERY_TIMEOUT_MS = 120_000


class ProgressProducer:
    """A producer of progress records, which never waits for Kafka.

    The key of a record is the name of its job, the value is JSON. `ProgressReporter` owns it.
    """

    def __init__(
        self, topic: str, client_config: Mapping[str, Any], on_lost: Callable[[str], None]
    ) -> None:
        """Create the client; it connects in the background."""
        self.topic = topic
        self._on_lost = on_lost
        self._producer = Producer(
            {
                **client_config,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": _MAX_QUEUED_RECORDS,
            }
        )

    def send_record(self, job: str, record: Mapping[str, Any]) -> None:
        value = json.dumps({"job": job, **record}, default=str, separators=(",", ":"))
        try:
            self._producer.produce(self.topic, value, job, on_delivery=self._on_delivery)
        except (BufferError, KafkaException):
            self._on_lost(job)
        self._producer.poll(0)  # calls `_on_delivery` for earlier records

    def close(self, timeout_s: float) -> None:
        self._producer.flush(timeout_s)

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self._on_lost(message.key().decode())
