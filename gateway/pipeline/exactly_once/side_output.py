"""Write late and undecodable records to topics beside their input, each exactly once.

Spark drops late rows silently, and an undecodable record never becomes a row. Both are found
exactly by reading the offsets again that batches have read, several batches at once (see
`side_outputs`). An `ExactlyOnceOutput` writes them under a query id of their own
(`<query>/late/<input>`, `<query>/dlq/<input>`), so the ledger has the last batch of which they were
written. There, an input is named by its cluster, its topic and its name in the job, because two
inputs of a job may read one topic, or topics of the same name.

A record keeps its key, value and headers. Additional headers have its origin and the reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from gateway.config import Kafka
from gateway.config.sections.job import Input, Output
from gateway.core.log.record import TopicPartition
from gateway.pipeline import clusters
from gateway.pipeline.checkpoint.checkpoint import BatchOffsets, Checkpoint, Offsets
from gateway.pipeline.clusters import build_client_config
from gateway.pipeline.inputs import source
from gateway.pipeline.inputs.source import RAW_COLUMN
from gateway.pipeline.spark import F

from .driver import ExactlyOnceOutput
from .gaps import InputGap, PartitionOffsets, find_deleted
from .input_topics import ReadTopic
from .writer_plan import verify_entries

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

# The columns that become headers such as X-Origin-Topic, which the sidecar has, too.
ORIGIN_FIELDS = ("topic", "partition", "offset", "timestamp")
INPUT_HEADER = "X-Origin-Input"
REASON_HEADER = "X-Reason"

LateFilter: TypeAlias = "Callable[[DataFrame, Column], DataFrame]"
"""Takes the input's typed rows and the column of the watermark of each; returns the late rows."""
WATERMARK_COLUMN = "_held"


def build_side_records(raw: DataFrame, reason: Column, input_name: str) -> DataFrame:
    """Return records of an input, as of Spark's Kafka source, as `key`, `value` and `headers`."""

    def build_header(name: str, value: Column) -> Column:
        return F.struct(
            F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    # The header has the timestamp as Kafka does, in ms since 1970.
    millis = {"timestamp": F.unix_millis("timestamp")}
    origin = [
        build_header(f"X-Origin-{name.title()}", millis.get(name, F.col(name)))
        for name in ORIGIN_FIELDS
    ]
    additional = F.array(
        *origin, build_header(INPUT_HEADER, F.lit(input_name)), build_header(REASON_HEADER, reason)
    )
    own = F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))
    return raw.select("key", "value", F.concat(own, additional).alias("headers"))


def add_raw_records(raw: DataFrame) -> DataFrame:
    """Add each record as a column, so that typed rows have its headers and its exact bytes.

    A join of late rows with their records would have to hold the places of all rows in memory.
    """
    return raw.withColumn(RAW_COLUMN, F.struct(*raw.columns))


def build_late_records(late_rows: DataFrame, input_name: str) -> DataFrame:
    """Return the records that late rows were made of, ready to be written."""
    late = late_rows.select(f"{RAW_COLUMN}.*", WATERMARK_COLUMN)
    watermark = F.date_format(WATERMARK_COLUMN, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    return build_side_records(
        late, F.concat(F.lit("it came later than the watermark, "), watermark), input_name
    )


def add_watermarks(rows: DataFrame, topic: str, batches: Sequence[BatchOffsets]) -> DataFrame:
    """Add the watermark that each row was compared with, as `WATERMARK_COLUMN`.

    If two sources read a record in two batches, that is the later one, which is not lower.
    """
    # One row of this table is a range of offsets with the watermark of its batch.
    ranges: list[str] = []
    later_starts: dict[TopicPartition, int] = {}
    for batch in reversed(batches):
        for place, (start, end) in offset_ranges(topic, batch.start, batch.end).items():
            end = min(end, later_starts.get(place, end))
            later_starts[place] = min(start, end)
            ranges.append(f"({place.partition}, {start}L, {end}L, {batch.watermark_ms}L)")
    columns = "_of, _from, _to, _ms"
    table = rows.sparkSession.sql(f"SELECT * FROM VALUES {', '.join(ranges)} AS t({columns})")
    in_range = (F.col("_offset") >= F.col("_from")) & (F.col("_offset") < F.col("_to"))
    joined = rows.join(F.broadcast(table), (F.col("_partition") == F.col("_of")) & in_range)
    return joined.withColumn(WATERMARK_COLUMN, F.timestamp_millis("_ms")).drop(
        "_of", "_from", "_to", "_ms"
    )


@dataclass(slots=True)
class SideOutput:
    """The late or the undecodable records of one input of one job.

    `SideOutputs` creates them. Batches must be given in their order. The records of several batches
    are written as one epoch, which has the number of the last batch.

    Attributes:
        select_late: Selects the late rows; None for the output of undecodable records.
        ensure_main: As of `ExactlyOnceOutput`.
    """

    spark: SparkSession
    query_id: str
    input_name: str
    input: Input
    input_cluster: Kafka
    output: Output
    output_cluster: Kafka
    checkpoint: Checkpoint
    catalogs: source.Catalogs
    read_topics: tuple[ReadTopic, ...] = ()
    select_late: LateFilter | None = None
    ensure_main: Callable[[], None] = lambda: None
    _writer: ExactlyOnceOutput = field(init=False)

    def __post_init__(self) -> None:
        kafka, topic = self.input.kafka or "", self.input.topic
        self._writer = ExactlyOnceOutput(
            f"{self.query_id}/{self.kind}/{kafka}/{topic}/{self.input_name}",
            self.output.model_copy(update={"topic": self.topic, "writers": 1}),
            build_client_config(self.output_cluster),
            checkpoint=self.checkpoint,
            ledger_output=self.output.topic,
            read_topics=self.read_topics,
            ensure_main=self.ensure_main,
        )

    @property
    def kind(self) -> Literal["late", "dlq"]:
        return "dlq" if self.select_late is None else "late"

    @property
    def topic(self) -> str:
        return f"{self.input.topic}.{self.kind}"

    def write(self, batches: Sequence[BatchOffsets]) -> int:
        """Write the records of batches that are late or cannot be decoded; return their number."""
        input, topic, catalogs = self.input, self.topic, self.catalogs
        ranges = offset_ranges(input.topic, batches[0].start, batches[-1].end) if batches else {}
        if not ranges:
            return 0
        raw = source.read_raw_range(self.spark, self.input_cluster, ranges)
        if self.select_late is None:
            invalid = source.select_invalid_records(raw, input, catalogs)
            records = build_side_records(invalid, invalid["_reason"], self.input_name)
        else:
            typed = source.parse_records(add_raw_records(raw), input, catalogs)
            rows = add_watermarks(typed, input.topic, batches)
            late_rows = self.select_late(rows, rows[WATERMARK_COLUMN])
            records = build_late_records(late_rows, self.input_name)
        if topic not in clusters.list_topics(self.output_cluster):
            if records.isEmpty():  # the topic is only created when there is a record for it
                return 0
            input_config = build_client_config(self.input_cluster)
            max_bytes = clusters.fetch_max_message_bytes(input_config, input.topic)
            clusters.create_topic(
                build_client_config(self.output_cluster),
                topic,
                config={
                    "max.message.bytes": str(max(max_bytes, clusters.DEFAULT_MAX_MESSAGE_BYTES))
                },
            )
        return self._writer(records, batches[-1].number)

    def find_deleted(self, batches: Sequence[BatchOffsets]) -> list[InputGap]:
        """Return the records of batches that are gone, which `write` may have left out."""
        if not batches:
            return []
        ranges = offset_ranges(self.input.topic, batches[0].start, batches[-1].end)
        starts: PartitionOffsets = {place: start for place, (start, _) in ranges.items()}
        return find_deleted(starts, build_client_config(self.input_cluster)) if starts else []

    def read_last_batch(self, epoch: int) -> int:
        """Return the last batch whose records were written, or -1; let no other process write more.

        An earlier process that still runs may write the same batches, up to another last one. So
        unless all were written, it is fenced, and the ledger is read again.

        Args:
            epoch: The last batch of the checkpoint that is committed.

        Raises:
            CheckpointRefused: Records of other batches were written.
        """
        last_batch = self._read_last_entry(epoch)
        if last_batch < epoch:
            self._writer.prepare(epoch)
            last_batch = self._read_last_entry(epoch)
        return last_batch

    def _read_last_entry(self, epoch: int) -> int:
        entries, _ = self._writer.ledger.read_entries(self._writer.query_id)
        verify_entries(entries, epoch, self.checkpoint.compute_digest)
        return max((entry.epoch for entry in entries), default=-1)


def offset_ranges(
    topic: str, starts: Iterable[Offsets], ends: Iterable[Offsets]
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the start and the end offset of each partition of a topic that was read.

    A partition without a start is new and begins at 0. If two sources read the topic, the range
    begins at the lesser start and ends at the greater end.
    """
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    known, reached = list(starts), list(ends)
    for place in {place for offsets in reached for place in offsets if place[0] == topic}:
        start = min((offsets[place] for offsets in known if place in offsets), default=0)
        end = max(offsets[place] for offsets in reached if place in offsets)
        if start < end:
            ranges[TopicPartition(*place)] = start, end
    return ranges
