"""Read what Spark has written into one checkpoint: the query's id and the offsets of each batch.

`offsets/N` has the offsets up to which batch N reads, and is written before the batch runs.
`commits/N` means that the batch is complete. A batch that has the first file without the second is
run again with the same offsets. Both are files of Spark's HDFSMetadataLog: a line with a version,
then a line of JSON with the watermark, then a line for each source. The first offsets of a source
are in `sources/<n>/0`, after a zero byte. Local files are read directly, others by Hadoop in
Spark's JVM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gateway.errors import PipelineError
from gateway.pipeline.state.files import refuse_damaged

from . import versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Offsets: TypeAlias = dict[tuple[str, int], int]
"""The next offset to be read, by topic and partition."""


class BatchOffsets(NamedTuple):
    """The offsets that a batch reads, by source; see `Sources` for their order.

    Attributes:
        watermark_ms: The watermark of the batch before, in ms of event time. Spark drops late
            events by this watermark, and ends windows by the batch's own one, since operators may
            follow each other. It begins at 0 (1970), and drops earlier events even in batch 0.
    """

    number: int
    start: tuple[Offsets, ...]
    end: tuple[Offsets, ...]
    watermark_ms: int


class Sources(NamedTuple):
    """The input of a job that each source of its query reads.

    The offsets of a batch are by source, and the topic does not identify a source: two clusters may
    have topics of the same name, and both sides of a join may read one topic.

    Attributes:
        lines: The name of the input of each line of `offsets/N`, without the first two lines.
        directories: The name of the input of each directory `sources/<n>`. A table that a query
            reads twice may have one directory but two lines.
    """

    lines: tuple[str, ...]
    directories: tuple[str, ...]

    def select(self, batch: BatchOffsets, input_name: str) -> BatchOffsets:
        start, end = (
            self._select_parts(batch.start, input_name),
            self._select_parts(batch.end, input_name),
        )
        return batch._replace(start=start, end=end)

    def _select_parts(self, parts: Sequence[Offsets], input_name: str) -> tuple[Offsets, ...]:
        # The starts of the first batch come from `sources/<n>`, so there is one per directory.
        names = self.lines if len(parts) == len(self.lines) else self.directories
        return tuple(part for name, part in zip(names, parts, strict=True) if name == input_name)


class Checkpoint:
    """One version of a job's checkpoint, as Spark writes it.

    Many parts of the pipeline create one. It keeps no state: every method reads the files.
    """

    def __init__(self, location: str, spark: SparkSession | None = None) -> None:
        self.location = location.rstrip("/")
        self._local_path = versions.local_path(location)
        self._spark = spark

    def read_query_id(self) -> str | None:
        """Return the query's id, which never changes, or None before the first run."""
        text = self._read_text("metadata")
        return str(json.loads(text)["id"]) if text else None

    def is_first(self) -> bool:
        """Return whether it was begun because there was none, and not by `--fresh` or `restore`."""
        return bool(json.loads(self._read_text("metadata") or "{}").get("first"))

    def read_last_committed(self) -> int | None:
        return max(self._list_numbers("commits"), default=None)

    def read_last_time_ms(self) -> int:
        """Return when the batch that was committed last began, in ms since 1970; 0 if none was."""
        number = self.read_last_committed()
        metadata = "{}" if number is None else self._read_lines(number)[0]
        return int(_parse_object(metadata).get("batchTimestampMs", 0))

    def read_batch(self, number: int) -> BatchOffsets:
        """Return the offsets that a batch reads; raise PipelineError if Spark has removed them."""
        ends = self._read_ends(number)
        if number == 0:
            return BatchOffsets(
                number, self._read_initial_offsets() or tuple({} for _ in ends), ends, 0
            )
        # A batch starts where the previous one ends, and is compared with its watermark.
        metadata, *source_lines = self._read_lines(number - 1)
        starts = tuple(parse_offsets(line) for line in source_lines)
        return BatchOffsets(
            number, starts, ends, int(_parse_object(metadata).get("batchWatermarkMs", 0))
        )

    def read_positions(self, sources: Sources, input_name: str) -> Offsets:
        """Return the offsets from which an input is read on."""
        number = self.read_last_committed()
        if number is None:
            names, parts = sources.directories, self._read_initial_offsets()
        else:
            names, parts = sources.lines, self._read_ends(number)
        return {
            place: offset
            for name, part in zip(names, parts, strict=False)
            if name == input_name
            for place, offset in part.items()
        }

    def compute_digest(self, number: int) -> str:
        """Return a digest of a batch's offsets, or "" if the checkpoint has none.

        The ledger stores these 16 hexadecimal digits to recognize a batch that has the same number
        and other offsets.
        """
        text = self._read_text(f"offsets/{number}")
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""

    def _read_ends(self, number: int) -> tuple[Offsets, ...]:
        """Return where a batch ends, by the lines of the sources."""
        return tuple(parse_offsets(line) for line in self._read_lines(number)[1:])

    def _read_lines(self, number: int) -> list[str]:
        """Return the lines of `offsets/N` after the version: the watermark, then the sources."""
        text = self._read_text(f"offsets/{number}")
        if text is None:
            raise PipelineError(f"{self.location} has no offsets of batch {number} any more")
        version, *lines = text.splitlines() or [""]
        if version != "v1" or not lines:
            problem = f"{self.location}/offsets/{number} is of version {version!r}, not v1"
            raise PipelineError(
                f"{problem}; run it with the version of Spark that this gateway pins"
            )
        with refuse_damaged(self.location, f"offsets/{number}"):
            for line in lines:
                _parse_object(line if line.startswith("{") else "{}")
        return lines

    def _read_initial_offsets(self) -> tuple[Offsets, ...]:
        """Return the start offsets of the first batch, by the directories of the sources."""
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
        return _read_hadoop_text(self._require_context(), f"{self.location}/{name}")

    def _list_numbers(self, name: str) -> list[int]:
        if self._local_path is not None:
            directory = Path(self._local_path / name)
            names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
        else:
            names = _list_hadoop_names(self._require_context(), f"{self.location}/{name}")
        return [int(name) for name in names if name.isdigit()]

    def _require_context(self) -> Any:
        if self._spark is None:
            problem = f"{self.location} is on another file system, which only a running job reads"
            raise PipelineError(f"{problem}; run the job, or give a directory of this machine")
        return self._spark.sparkContext


def parse_offsets(line: str) -> Offsets:
    """Return the offsets of a source's line: `{"topic": {"0": 12}}`, or `-` if it had none."""
    topics = _parse_object(line) if line.startswith("{") else {}
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        for partition, offset in partitions.items()
    }


def _parse_object(text: str) -> Mapping[str, Any]:
    content = json.loads(text)
    return content if isinstance(content, dict) else {}


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
        [status.getPath().getName() for status in files.listStatus(path)]
        if files.exists(path)
        else []
    )
