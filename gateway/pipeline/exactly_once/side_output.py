"""Late and undecodable records of a batch, into topics beside the input: each once.

Spark drops late rows without a word, and what is no row never becomes one. Both are found exactly
by reading offsets again that batches have read, several batches at a time: see `beside`. They go
out under a query name of their own (`<query>/late/<input>`, `<query>/dlq/<input>`) by the writer
that rows have, so the ledger knows up to which batch they were sent. An input is named by its
cluster, its topic and its name in the job: two of a job may read one topic, or topics of one name.

A record goes on as it was: key, value and headers; where it was, and why it is here, in headers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gateway.config import Kafka
from gateway.config.sections.job import Input, Output
from gateway.core.log.record import TopicPartition
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.checkpoint import BatchOffsets, Checkpoint, Offsets
from gateway.pipeline.inputs import source
from gateway.pipeline.spark.client_config import build_client_config

from .recreated_topics import ReadTopic
from .writer import ExactlyOnceWriter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

TOPIC_SUFFIXES: Mapping[str, str] = {"late": ".late", "dlq": ".dlq"}
ORIGIN_FIELDS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
)  # X-Origin-Topic, ...: as the sidecar's
INPUT_HEADER = "X-Origin-Input"
REASON_HEADER = "X-Reason"

SideOutputKind: TypeAlias = Literal["late", "dlq"]
LateFilter: TypeAlias = "Callable[[DataFrame, Column], DataFrame]"
"""(the input's typed rows, what each is held against) -> those of them that are late."""
WATERMARK_COLUMN = "_held"


def side_topic(topic: str, kind: SideOutputKind) -> str:
    return topic + TOPIC_SUFFIXES[kind]


def build_side_records(raw: DataFrame, reason: Column, input_name: str) -> DataFrame:
    """Kafka's columns as records to be written: `key`, `value`, `headers`. name: of the input."""
    from pyspark.sql import functions as F

    def build_header(name: str, value: Column) -> Column:
        return F.struct(
            F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    millis = {"timestamp": F.unix_millis("timestamp")}
    added = [
        build_header(f"X-Origin-{name.title()}", millis.get(name, F.col(name)))
        for name in ORIGIN_FIELDS
    ]
    known = F.array(
        *added, build_header(INPUT_HEADER, F.lit(input_name)), build_header(REASON_HEADER, reason)
    )
    given = F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))
    return raw.select("key", "value", F.concat(given, known).alias("headers"))


def build_late_records(raw: DataFrame, late_rows: DataFrame, input_name: str) -> DataFrame:
    """The records of `raw` that these typed rows were made of; they have what they were held
    against, `HELD`. name: of the input."""
    from pyspark.sql import functions as F

    names = ["topic", "partition", "offset"]
    places = late_rows.select(*(F.col(f"_{name}").alias(name) for name in names), WATERMARK_COLUMN)
    found = raw.join(F.broadcast(places.dropDuplicates(names)), names)
    time = F.date_format(WATERMARK_COLUMN, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    return build_side_records(
        found, F.concat(F.lit("it came later than the watermark, "), time), input_name
    )


def add_watermarks(rows: DataFrame, topic: str, batches: Iterable[BatchOffsets]) -> DataFrame:
    """Typed rows of several batches with what each was held against, in `HELD`; without those of
    batches that held them against nothing."""
    from pyspark.sql import functions as F

    known = [
        f"({place.partition}, {start}L, {end}L, {batch.watermark_ms}L)"
        for batch in batches
        if batch.watermark_ms
        for place, (start, end) in offset_ranges(topic, batch.start, batch.end).items()
    ]
    if not known:
        return rows.limit(0).withColumn(WATERMARK_COLUMN, F.lit(None).cast("timestamp"))
    columns = "_of, _from, _to, _ms"
    table = rows.sparkSession.sql(f"SELECT * FROM VALUES {', '.join(known)} AS t({columns})")
    inside = (F.col("_offset") >= F.col("_from")) & (F.col("_offset") < F.col("_to"))
    found = rows.join(F.broadcast(table), (F.col("_partition") == F.col("_of")) & inside)
    return found.withColumn(WATERMARK_COLUMN, F.timestamp_millis("_ms")).drop(
        "_of", "_from", "_to", "_ms"
    )


@dataclass(slots=True)
class SideOutput:
    """Of one input of one job.

    name: of the input. query, output, checkpoint: as of `Writer`. kafka: the input's cluster.
    into: the output's, where letters go as well. read: as of `Writer`.

    Batches are given in their order, all of them one after the other; their records are sent
    under the number of the last one.
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
    _writers: dict[SideOutputKind, ExactlyOnceWriter] = field(default_factory=dict)

    def write_invalid(self, batches: Sequence[BatchOffsets]) -> int:
        """Send those that are none of the model; how many were sent now."""
        raw = self._read_records(batches)
        if raw is None:
            return 0
        found = source.select_invalid_records(raw, self.input, self.catalogs)
        return self._write_rows(
            "dlq", build_side_records(found, found["_reason"], self.input_name), batches[-1].number
        )

    def write_late(self, batches: Sequence[BatchOffsets], select_late: LateFilter) -> int:
        """Send those that were late; how many were sent now."""
        raw = self._read_records(batches)
        if raw is None:
            return 0
        rows = add_watermarks(
            source.parse_records(raw, self.input, self.catalogs), self.input.topic, batches
        )
        found = build_late_records(raw, select_late(rows, rows[WATERMARK_COLUMN]), self.input_name)
        return self._write_rows("late", found, batches[-1].number)

    def read_last_batch(self, kind: SideOutputKind) -> int:
        """The last batch that any were sent of; -1 for none."""
        ledger, name = self._get_writer(kind).ledger, self._build_query_id(kind)
        return max((each.epoch for each in ledger.read_entries(name)), default=-1)

    def _read_records(self, batches: Sequence[BatchOffsets]) -> DataFrame | None:
        """The records of these batches; None where they have none of this topic."""
        if not batches:
            return None
        parts = [offset_ranges(self.input.topic, *each) for each in iter_contiguous_spans(batches)]
        tables = [
            source.read_raw_range(self.spark, self.input_cluster, each) for each in parts if each
        ]
        return reduce(lambda one, other: one.union(other), tables) if tables else None

    def _write_rows(self, kind: SideOutputKind, rows: DataFrame, epoch: int) -> int:
        topic = side_topic(self.input.topic, kind)
        known = topics.list_topics(self.output_cluster)
        if topic not in known:
            if rows.isEmpty():  # no topic is made for nothing
                return 0
            topics.ensure_topic(self.output_cluster, topic, None, known)
        return self._get_writer(kind)(rows, epoch)

    def _get_writer(self, kind: SideOutputKind) -> ExactlyOnceWriter:
        if kind not in self._writers:
            topic = side_topic(self.input.topic, kind)
            self._writers[kind] = ExactlyOnceWriter(
                self._build_query_id(kind),
                self.output.model_copy(update={"topic": topic, "writers": 1}),
                build_client_config(self.output_cluster),
                checkpoint=self.checkpoint,
                ledger_output=self.output.topic,
                read_topics=self.read_topics,
            )
        return self._writers[kind]

    def _build_query_id(self, kind: SideOutputKind) -> str:
        return (
            f"{self.query_id}/{kind}/{self.input.kafka or ''}/{self.input.topic}/{self.input_name}"
        )


def offset_ranges(
    topic: str, starts: Iterable[Offsets], ends: Iterable[Offsets]
) -> dict[TopicPartition, tuple[int, int]]:
    """Of each partition of a topic that has any. A partition that appeared begins at 0; a topic
    that two sources read is read from where the slower one was."""
    begun: dict[tuple[str, int], int] = {}
    for part in starts:
        for place, offset in part.items():
            begun[place] = min(offset, begun.get(place, offset))
    ended: dict[tuple[str, int], int] = {}
    for part in ends:
        for place, offset in part.items():
            ended[place] = max(offset, ended.get(place, offset))
    return {
        TopicPartition(*place): (begun.get(place, 0), end)
        for place, end in ended.items()
        if place[0] == topic and begun.get(place, 0) < end
    }


def iter_contiguous_spans(
    batches: Sequence[BatchOffsets],
) -> Iterator[tuple[tuple[Offsets, ...], tuple[Offsets, ...]]]:
    """Yield the starts and the ends of batches that follow each other, without what none has read.

    What Spark cannot read is between the end of one batch and the start of the next: see
    `unreadable`.
    """
    first = batches[0]
    for before, batch in pairwise(batches):
        if any(
            start.get(place, offset) != offset
            for end, start in zip(before.end, batch.start, strict=True)
            for place, offset in end.items()
        ):
            yield first.start, before.end
            first = batch
    yield first.start, batches[-1].end


def drop_rewound(batches: Sequence[BatchOffsets]) -> Sequence[BatchOffsets]:
    """Return the batches of an input whose records are of the topic that is there now.

    The last batch that read a topic which was recreated since ends before it starts: see
    `recreated`. Offsets of it and of those before are of other records by now.

    Args:
        batches: Of one input, in their order.
    """
    rewound = [at for at, each in enumerate(batches) if _is_rewound(each)]
    return batches[rewound[-1] + 1 :] if rewound else batches


def _is_rewound(batch: BatchOffsets) -> bool:
    return any(
        end.get(place, offset) < offset
        for start, end in zip(batch.start, batch.end, strict=False)
        for place, offset in start.items()
    )


def create_late_filter(module: Any, settings: Any, input_name: str) -> LateFilter:
    """The job's own predicate, as `Side.late` calls it. name: of the input, as `inputs` has it."""

    def select_late(rows: DataFrame, watermark: Column) -> DataFrame:
        more = {"side": input_name} if settings.type == "join" else {}
        found: DataFrame = module.select_late(settings, rows, watermark, **more)
        return found

    return select_late
