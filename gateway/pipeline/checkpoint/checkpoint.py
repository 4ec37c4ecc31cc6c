"""What Spark wrote into one checkpoint: the query's id, and the range of offsets of each batch.

`offsets/N` is what batch N may read up to, written before it runs; `commits/N` says that it is
complete. A batch that has the first without the second is run again, with the same range.
Spark's HDFSMetadataLog: a line with a version, then JSON; a source's first offsets are in
`sources/<n>/0`, behind a zero byte. Local files are read as such, others by Hadoop through Spark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gateway.errors import PipelineError

from . import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets: TypeAlias = dict[tuple[str, int], int]
"""(topic, partition) -> the next offset to be read."""


RECREATED_DIRECTORY = "recreated"
"""Offsets of batches as they were, before an input was sent back to its topic's begin, or moved
behind records that Spark cannot read."""
UNREADABLE_DIRECTORY = "unreadable"
"""Where batches really ended whose offsets were moved behind such records: see `unreadable`."""


class BatchOffsets(NamedTuple):
    """start, end: its range of offsets, by source; see `Sources`.

    held: what its events are held against: the watermark of the batch before, in ms of event time;
    0 for none. (Since operators may follow each other, Spark ends windows by a batch's own
    watermark and drops events by the one before.)
    """

    number: int
    start: tuple[Offsets, ...]
    end: tuple[Offsets, ...]
    watermark_ms: int


class Sources(NamedTuple):
    """Say which input of a job each source of its query is.

    A batch's offsets are by source, and neither the topic nor the cluster tells sources apart:
    two clusters have topics of the same name, and both sides of a join may read one topic.

    Attributes:
        lines: The input of each line of `offsets/N`, from the second on.
        numbers: The input of each directory `sources/<n>`. A table that a query reads twice may
            have one directory, but two lines.
    """

    lines: tuple[str, ...]
    directories: tuple[str, ...]

    def select(self, batch: BatchOffsets, input_name: str) -> BatchOffsets:
        """Return the batch with the offsets of one input alone."""
        start, end = (
            self._select_parts(batch.start, input_name),
            self._select_parts(batch.end, input_name),
        )
        return batch._replace(start=start, end=end)

    def find_directory(self, line: int) -> int:
        """Return the number of the directory `sources/<n>` of a line."""
        return self.directories.index(self.lines[line])

    def _select_parts(self, parts: Sequence[Offsets], input_name: str) -> tuple[Offsets, ...]:
        names = self.lines if len(parts) == len(self.lines) else self.directories
        return tuple(part for each, part in zip(names, parts, strict=True) if each == input_name)


class Checkpoint:
    """location: as Spark is told. spark: needed where it is on another file system."""

    def __init__(self, location: str, spark: SparkSession | None = None) -> None:
        self._location = location.rstrip("/")
        self._local_path = versions.local_path(location)
        self._spark = spark

    def read_query_id(self) -> str | None:
        """The id that the query has for as long as this checkpoint; None before the first run."""
        text = self._read_text("metadata")
        return str(json.loads(text)["id"]) if text else None

    def read_last_planned(self) -> int | None:
        """The last batch that has a range; it may be under way."""
        return max(self._list_numbers("offsets"), default=None)

    def read_last_committed(self) -> int | None:
        """The last batch that is complete."""
        return max(self._list_numbers("commits"), default=None)

    def read_batch(self, number: int) -> BatchOffsets:
        """The ranges of a batch. Raises PipelineError where Spark forgot it."""
        ends = self._read_ends(number)
        if number == 0:
            return BatchOffsets(
                number, self.read_initial_offsets() or tuple({} for _ in ends), ends, 0
            )
        head, *before = self._read_lines(number - 1)
        starts = tuple(parse_offsets(line) for line in before)
        return BatchOffsets(
            number, starts, ends, int(_parse_object(head).get("batchWatermarkMs", 0))
        )

    def read_next_starts(self, number: int) -> tuple[Offsets, ...]:
        """Return where the batch behind one starts, by the lines of the sources.

        Raises:
            PipelineError: Spark forgot it.
        """
        return tuple(parse_offsets(line) for line in self._read_lines(number)[1:])

    def compute_digest(self, number: int) -> str:
        """Sixteen digits that differ for two ranges under one number; "" where there is none."""
        text = self._read_text(f"{RECREATED_DIRECTORY}/{number}") or self._read_text(
            f"offsets/{number}"
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""

    def _read_ends(self, number: int) -> tuple[Offsets, ...]:
        ends = tuple(parse_offsets(line) for line in self._read_lines(number)[1:])
        text = self._read_text(f"{UNREADABLE_DIRECTORY}/{number}")
        real = json.loads(text)["ends"] if text else [{}] * len(ends)
        return tuple({**end, **flatten_offsets(part)} for end, part in zip(ends, real, strict=True))

    def _read_lines(self, number: int) -> list[str]:
        text = self._read_text(f"offsets/{number}")
        if text is None:
            raise PipelineError(f"{self._location} has no offsets of batch {number} any more")
        version, *lines = text.splitlines()
        if version != "v1" or not lines:
            what = f"{self._location}/offsets/{number} is of version {version!r}, not v1"
            raise PipelineError(f"{what}; run it with the version of Spark that this gateway pins")
        return lines

    def read_initial_offsets(self) -> tuple[Offsets, ...]:
        """Return where the first batch started, by the directories of the sources."""
        texts: list[str] = []
        while (text := self._read_text(f"sources/{len(texts)}/0")) is not None:
            texts.append(text)
        return tuple(parse_offsets(text[max(0, text.find("{")) :]) for text in texts)

    def _read_text(self, name: str) -> str | None:
        if self._local_path is not None:
            try:
                return (self._local_path / name).read_text("utf-8")
            except (FileNotFoundError, NotADirectoryError):
                return None
        return _read_hadoop_text(self._require_context(), f"{self._location}/{name}")

    def _list_numbers(self, name: str) -> list[int]:
        if self._local_path is not None:
            directory = Path(self._local_path / name)
            names = [each.name for each in directory.iterdir()] if directory.is_dir() else []
        else:
            names = _list_hadoop_names(self._require_context(), f"{self._location}/{name}")
        return [int(each) for each in names if each.isdigit()]

    def _require_context(self) -> Any:
        if self._spark is None:
            what = f"{self._location} is on another file system, which only a running job reads"
            raise PipelineError(f"{what}; run the job, or give a directory of this machine")
        return self._spark.sparkContext


def parse_offsets(line: str) -> Offsets:
    """Return the offsets of a source: of `{"topic": {"0": 12}}`, or of `-` where it had none."""
    return flatten_offsets(_parse_object(line) if line.startswith("{") else {})


def format_offsets(offsets: Offsets) -> str:
    """Return the line of a source, as `parse_offsets` reads it."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


def flatten_offsets(topics: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return the offsets of a source by topic and partition, as of its JSON."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def _parse_object(text: str) -> Mapping[str, Any]:
    found = json.loads(text)
    return found if isinstance(found, dict) else {}


def _open_hadoop_path(context: Any, location: str) -> tuple[Any, Any]:
    path = context._jvm.org.apache.hadoop.fs.Path(location)
    return path, path.getFileSystem(context._jsc.hadoopConfiguration())


def _read_hadoop_text(context: Any, location: str) -> str | None:
    path, files = _open_hadoop_path(context, location)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        charset = context._jvm.java.nio.charset.StandardCharsets.UTF_8
        return str(context._jvm.org.apache.commons.io.IOUtils.toString(stream, charset))
    finally:
        stream.close()


def _list_hadoop_names(context: Any, location: str) -> list[str]:
    path, files = _open_hadoop_path(context, location)
    return (
        [each.getPath().getName() for each in files.listStatus(path)] if files.exists(path) else []
    )
