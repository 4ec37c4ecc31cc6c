"""Read what Spark has written into one checkpoint: the query's id and the offsets of each batch.

`offsets/N` has the offsets up to which batch N reads, and is written before the batch runs.
`commits/N` means that the batch is complete. A batch that has the first file without the second is
run again with the same offsets. Both are files of Spark's HDFSMetadataLog: a line with a version,
then a line of JSON with the watermark, then a line for each source. The first offsets of a source
are in `sources/<n>/0`, after a zero byte.

Batch N makes version N + 1 in every store (`state/<operator>/<partition>[/<store>]`). A version is
made of a snapshot, which is `V.zip` with the tables in `SSTs/` that it names, and of the changelogs
of all versions after the snapshot.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gateway.errors import PipelineError

from .files import Files, open_files, refuse_damaged

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
        self.files = open_files(location, spark)

    def is_first(self) -> bool:
        """Return whether it was begun because there was none, and not by `--fresh` or `restore`."""
        return bool(json.loads(self._read_text("metadata") or "{}").get("first"))

    def read_last_committed(self) -> int | None:
        names = self.files.list_names("commits")
        return max((int(name) for name in names if name.isdigit()), default=None)

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
        try:
            return self.files.read(name).decode()
        except (FileNotFoundError, NotADirectoryError):
            return None


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


_STATE_PATTERN = re.compile(r"state/(\d+)/(\d+)(?:/([^/]+))?/(\d+)(_[0-9a-f-]+)?\.(zip|changelog)")
_LOG_PATTERN = re.compile(r"(offsets|commits)/(\d+)")

DAMAGED_DIRECTORY = "damaged"  # a repair moves damaged files here
LEASE_FILE = "lease"  # says which process runs the job
SCANNED_FILE = "scanned.json"  # has the last batch whose side outputs are written, as `batch`

# An older snapshot is kept with a store's newest one, because Spark uses the older one if the
# newest one is damaged.
RETAINED_SNAPSHOTS = 2


class StoreId(NamedTuple):
    """A state store; `name` is `default`, or that of one of a join's stores."""

    operator: int
    partition: int
    name: str

    @property
    def directory(self) -> str:
        tail = "" if self.name == "default" else f"/{self.name}"
        return f"state/{self.operator}/{self.partition}{tail}"


@dataclass(slots=True)
class Store:
    """The names of the files of a store, by version.

    A version has several snapshots (`.zip`) or changelogs if its task ran more than once.
    """

    id: StoreId
    snapshots: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    changelogs: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))

    def iter_chains(self, version: int) -> Iterable[list[str]]:
        """Yield the chains of files that lead to a version, the shortest first.

        A chain is a snapshot, without its tables, and the changelogs after it.
        """
        logs: list[str] = []
        for snapshot in range(version, -1, -1):
            if snapshot == 0 or snapshot in self.snapshots:
                yield [*self.snapshots.get(snapshot, ()), *reversed(logs)]
            # An older snapshot only leads to the version if all changelogs in between exist.
            if snapshot not in self.changelogs:
                return
            logs.extend(self.changelogs[snapshot])


def parse_stores(names: Iterable[str]) -> Mapping[StoreId, Store]:
    stores: dict[StoreId, Store] = {}
    for name in names:
        if (match := _STATE_PATTERN.fullmatch(name)) is None:
            continue
        operator, partition, store_name, version, _, kind = match.groups()
        store_id = StoreId(int(operator), int(partition), store_name or "default")
        store = stores.setdefault(store_id, Store(store_id))
        (store.snapshots if kind == "zip" else store.changelogs)[int(version)].append(name)
    return dict(sorted(stores.items()))


def parse_batches(names: Iterable[str], log: str) -> list[int]:
    """Return the numbers of the batches that a log (`offsets` or `commits`) has, ascending."""
    matches = (match for name in names if (match := _LOG_PATTERN.fullmatch(name)))
    return sorted(int(match[2]) for match in matches if match[1] == log)


def read_query_id(files: Files) -> str:
    with refuse_damaged(files.location, "metadata"):
        return str(json.loads(files.read("metadata"))["id"])


def is_always_needed(name: str) -> bool:
    """Return whether a file is needed for every batch: identity, definition, sources, schemas."""
    top = name.split("/", 1)[0]
    return (
        top not in ("offsets", "commits", "state", DAMAGED_DIRECTORY, LEASE_FILE)
        or "/_metadata/" in name
    )


def parse_partition_count(offsets: bytes) -> int:
    """Return the number of partitions, from Spark's settings in a file of `offsets`."""
    conf = json.loads(offsets.split(b"\n")[1])["conf"]
    return int(conf["spark.sql.shuffle.partitions"])


def parse_tables(metadata: Mapping[str, object], store_id: StoreId) -> dict[str, int]:
    """Return the tables and write-ahead logs of a snapshot, with their sizes in bytes."""
    files: dict[str, int] = {}
    for key, directory, name in (
        ("sstFiles", "SSTs", "dfsSstFileName"),
        ("logFiles", "logs", "dfsLogFileName"),
    ):
        for entry in metadata.get(key) or ():  # type: ignore[attr-defined]
            files[f"{store_id.directory}/{directory}/{entry[name]}"] = int(entry["sizeBytes"])
    return files
