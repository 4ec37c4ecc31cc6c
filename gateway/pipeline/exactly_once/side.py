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
from gateway.config.sections.pipeline import Input, Output
from gateway.core.log.record import TopicPartition
from gateway.pipeline import topics
from gateway.pipeline.checkpoint.checkpoint import Batch, Checkpoint, Offsets
from gateway.pipeline.inputs import source
from gateway.pipeline.spark.connect import client

from .recreated import ReadTopic
from .writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

SUFFIXES: Mapping[str, str] = {"late": ".late", "dlq": ".dlq"}
PLACE = ("topic", "partition", "offset", "timestamp")  # X-Origin-Topic, ...: as the sidecar's
INPUT = "X-Origin-Input"
REASON = "X-Reason"

Kind: TypeAlias = Literal["late", "dlq"]
Late: TypeAlias = "Callable[[DataFrame, Column], DataFrame]"
"""(the input's typed rows, what each is held against) -> those of them that are late."""
HELD = "_held"


def topic_of(topic: str, kind: Kind) -> str:
    return topic + SUFFIXES[kind]


def letters(raw: DataFrame, reason: Column, name: str) -> DataFrame:
    """Kafka's columns as records to be written: `key`, `value`, `headers`. name: of the input."""
    from pyspark.sql import functions as F

    def header(name: str, value: Column) -> Column:
        return F.struct(
            F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    millis = {"timestamp": F.unix_millis("timestamp")}
    added = [header(f"X-Origin-{name.title()}", millis.get(name, F.col(name))) for name in PLACE]
    known = F.array(*added, header(INPUT, F.lit(name)), header(REASON, reason))
    given = F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))
    return raw.select("key", "value", F.concat(given, known).alias("headers"))


def late_letters(raw: DataFrame, late: DataFrame, name: str) -> DataFrame:
    """The records of `raw` that these typed rows were made of; they have what they were held
    against, `HELD`. name: of the input."""
    from pyspark.sql import functions as F

    names = ["topic", "partition", "offset"]
    places = late.select(*(F.col(f"_{name}").alias(name) for name in names), HELD)
    found = raw.join(F.broadcast(places.dropDuplicates(names)), names)
    time = F.date_format(HELD, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    return letters(found, F.concat(F.lit("it came later than the watermark, "), time), name)


def held(rows: DataFrame, topic: str, batches: Iterable[Batch]) -> DataFrame:
    """Typed rows of several batches with what each was held against, in `HELD`; without those of
    batches that held them against nothing."""
    from pyspark.sql import functions as F

    known = [
        f"({place.partition}, {start}L, {end}L, {batch.held}L)"
        for batch in batches
        if batch.held
        for place, (start, end) in ranges(topic, batch.start, batch.end).items()
    ]
    if not known:
        return rows.limit(0).withColumn(HELD, F.lit(None).cast("timestamp"))
    columns = "_of, _from, _to, _ms"
    table = rows.sparkSession.sql(f"SELECT * FROM VALUES {', '.join(known)} AS t({columns})")
    inside = (F.col("_offset") >= F.col("_from")) & (F.col("_offset") < F.col("_to"))
    found = rows.join(F.broadcast(table), (F.col("_partition") == F.col("_of")) & inside)
    return found.withColumn(HELD, F.timestamp_millis("_ms")).drop("_of", "_from", "_to", "_ms")


@dataclass(slots=True)
class Side:
    """Of one input of one job.

    name: of the input. query, output, checkpoint: as of `Writer`. kafka: the input's cluster.
    into: the output's, where letters go as well. read: as of `Writer`.

    Batches are given in their order, all of them one after the other; their records are sent
    under the number of the last one.
    """

    spark: SparkSession
    query: str
    name: str
    input: Input
    kafka: Kafka
    output: Output
    into: Kafka
    checkpoint: Checkpoint
    catalogs: source.Catalogs
    read: tuple[ReadTopic, ...] = ()
    _writers: dict[Kind, Writer] = field(default_factory=dict)

    def invalid(self, batches: Sequence[Batch]) -> int:
        """Send those that are none of the model; how many were sent now."""
        raw = self._raw(batches)
        if raw is None:
            return 0
        found = source.invalid(raw, self.input, self.catalogs)
        return self._write("dlq", letters(found, found["_reason"], self.name), batches[-1].number)

    def late(self, batches: Sequence[Batch], late: Late) -> int:
        """Send those that were late; how many were sent now."""
        raw = self._raw(batches)
        if raw is None:
            return 0
        rows = held(source.typed(raw, self.input, self.catalogs), self.input.topic, batches)
        found = late_letters(raw, late(rows, rows[HELD]), self.name)
        return self._write("late", found, batches[-1].number)

    def written(self, kind: Kind) -> int:
        """The last batch that any were sent of; -1 for none."""
        ledger, name = self._writer(kind).ledger, self._name(kind)
        return max((each.epoch for each in ledger.entries(name)), default=-1)

    def _raw(self, batches: Sequence[Batch]) -> DataFrame | None:
        """The records of these batches; None where they have none of this topic."""
        if not batches:
            return None
        parts = [ranges(self.input.topic, *each) for each in spans(batches)]
        tables = [source.raw_range(self.spark, self.kafka, each) for each in parts if each]
        return reduce(lambda one, other: one.union(other), tables) if tables else None

    def _write(self, kind: Kind, rows: DataFrame, epoch: int) -> int:
        topic = topic_of(self.input.topic, kind)
        known = topics.present(self.into)
        if topic not in known:
            if rows.isEmpty():  # no topic is made for nothing
                return 0
            topics.ensure(self.into, topic, None, known)
        return self._writer(kind)(rows, epoch)

    def _writer(self, kind: Kind) -> Writer:
        if kind not in self._writers:
            topic = topic_of(self.input.topic, kind)
            self._writers[kind] = Writer(
                self._name(kind),
                self.output.model_copy(update={"topic": topic, "writers": 1}),
                client(self.into),
                checkpoint=self.checkpoint,
                ledger=self.output.topic,
                read=self.read,
            )
        return self._writers[kind]

    def _name(self, kind: Kind) -> str:
        return f"{self.query}/{kind}/{self.input.kafka or ''}/{self.input.topic}/{self.name}"


def ranges(
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


def spans(
    batches: Sequence[Batch],
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


def since_rewound(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Return the batches of an input whose records are of the topic that is there now.

    The last batch that read a topic which was recreated since ends before it starts: see
    `recreated`. Offsets of it and of those before are of other records by now.

    Args:
        batches: Of one input, in their order.
    """
    rewound = [at for at, each in enumerate(batches) if _is_rewound(each)]
    return batches[rewound[-1] + 1 :] if rewound else batches


def _is_rewound(batch: Batch) -> bool:
    return any(
        end.get(place, offset) < offset
        for start, end in zip(batch.start, batch.end, strict=False)
        for place, offset in start.items()
    )


def of_job(module: Any, settings: Any, name: str) -> Late:
    """The job's own predicate, as `Side.late` calls it. name: of the input, as `inputs` has it."""

    def late(rows: DataFrame, held: Column) -> DataFrame:
        more = {"side": name} if settings.type == "join" else {}
        found: DataFrame = module.late(settings, rows, held, **more)
        return found

    return late
