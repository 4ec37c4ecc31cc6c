"""Late and undecodable records of a batch, into topics beside the input: each once.

Spark drops late rows without a word, and what is no row never becomes one. Both are found exactly
by reading the batch's range of offsets again, which is done only where progress said that there are
any, or said nothing because the process is a new one. They go out under a query name of their own
(`<query>/late`, `<query>/dlq`) by the writer that has the same epochs as the rows, so a batch that
is run again does not send them twice.

A record goes on as it was: key, value and headers; where it was, and why it is here, in headers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gateway.config import Kafka
from gateway.config.pipeline import Input, Output
from gateway.core.record import TopicPartition

from .. import source, topics
from ..checkpoint import Checkpoint, Offsets
from ..connect import client
from .writer import Writer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

log = logging.getLogger(__name__)

SUFFIXES: Mapping[str, str] = {"late": ".late", "dlq": ".dlq"}
PLACE = ("topic", "partition", "offset", "timestamp")  # X-Origin-Topic, ...: as the sidecar's
REASON = "X-Reason"

Kind: TypeAlias = Literal["late", "dlq"]
Late: TypeAlias = "Callable[[DataFrame, int], DataFrame]"
"""(the input's typed rows, watermark in ms) -> those of them that are late."""


def topic_of(topic: str, kind: Kind) -> str:
    return topic + SUFFIXES[kind]


def letters(raw: DataFrame, reason: Column) -> DataFrame:
    """Kafka's columns as records to be written: `key`, `value`, `headers`."""
    from pyspark.sql import functions as F

    def header(name: str, value: Column) -> Column:
        return F.struct(
            F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    millis = {"timestamp": F.unix_millis("timestamp")}
    added = [header(f"X-Origin-{name.title()}", millis.get(name, F.col(name))) for name in PLACE]
    known = F.array(*added, header(REASON, reason))
    given = F.coalesce("headers", F.array().cast("array<struct<key:string,value:binary>>"))
    return raw.select("key", "value", F.concat(given, known).alias("headers"))


def late_letters(raw: DataFrame, late: DataFrame, watermark: int) -> DataFrame:
    """The records of `raw` that these typed rows were made of."""
    from pyspark.sql import functions as F

    names = ("topic", "partition", "offset")
    places = late.select(*(F.col(f"_{name}").alias(name) for name in names)).distinct()
    said = F.concat(F.lit("it came later than the watermark, "), _time(watermark))
    return letters(raw.join(F.broadcast(places), list(names), "left_semi"), said)


def _time(millis: int) -> Column:
    from pyspark.sql import functions as F

    return F.date_format(F.timestamp_millis(F.lit(millis)), "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")


@dataclass(frozen=True, slots=True)
class Side:
    """Of one input of one job. query, output, checkpoint: as of `Writer`; kafka: the input's
    cluster; into: the output's, where letters go as well."""

    spark: SparkSession
    query: str
    input: Input
    kafka: Kafka
    output: Output
    into: Kafka
    checkpoint: Checkpoint
    catalogs: source.Catalogs

    def invalid(self, epoch: int) -> int:
        """Send those of a batch that are none of the model; how many were sent now."""
        raw = self._raw(epoch)
        if raw is None:
            return 0
        found = source.invalid(raw, self.input, self.catalogs)
        return self._write("dlq", letters(found, found["_reason"]), epoch)

    def late(self, epoch: int, late: Late) -> int:
        """Send those of a batch that were late; how many were sent now."""
        raw = self._raw(epoch)
        watermark = self.checkpoint.late_watermark(epoch)
        if raw is None or not watermark:
            return 0
        typed = source.typed(raw, self.input, self.catalogs)
        found = late_letters(raw, late(typed, watermark), watermark)
        return self._write("late", found, epoch)

    def _raw(self, epoch: int) -> DataFrame | None:
        """The records of the batch; None where it has none of this topic."""
        batch = self.checkpoint.batch(epoch)
        found = ranges(self.input.topic, batch.start, batch.end)
        return source.raw_range(self.spark, self.kafka, found) if found else None

    def _write(self, kind: Kind, rows: DataFrame, epoch: int) -> int:
        if rows.isEmpty():  # no topic is made for nothing
            return 0
        topic = topic_of(self.input.topic, kind)
        topics.ensure(self.into, topic, None, topics.present(self.into))
        output = self.output.model_copy(update={"topic": topic, "writers": 1})
        writer = Writer(
            f"{self.query}/{kind}/{self.input.topic}",
            output,
            client(self.into),
            checkpoint=self.checkpoint,
            ledger=self.output.topic,
        )
        return writer(rows, epoch)


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


def of_job(module: Any, settings: Any, name: str) -> Late:
    """The job's own predicate, as `Side.late` calls it. name: of the input, as `inputs` has it."""

    def late(rows: DataFrame, watermark: int) -> DataFrame:
        from pyspark.sql import functions as F

        passed = F.timestamp_millis(F.lit(watermark))
        more = {"side": name} if settings.type == "join" else {}
        found: DataFrame = module.late(settings, rows, passed, **more)
        return found

    return late
