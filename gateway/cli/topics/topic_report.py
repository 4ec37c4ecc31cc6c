"""Ask brokers for their topics, or for the details of one with its newest record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from gateway.cli.kafka_connection import KafkaSource
from gateway.config.types.substitution import suggest
from gateway.core.log.record import Record, TopicPartition
from gateway.core.times import format_time
from gateway.errors import FormatError, KafkaError, RegistryUnavailable, UnknownTopic
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.offsets import EARLIEST, LATEST, OffsetAndTimestamp
from gateway.kafka.fetch.bounded_read import read_committed
from gateway.kafka.protocol.requests import TopicMetadata

if TYPE_CHECKING:
    from gateway.config import Model, SchemaRegistry, Topic


MAX_SHOWN_CHARS = 500
MAX_SHOWN_BYTES = 32


@dataclass(frozen=True)
class Sample:
    partition: int
    offset: int
    time: str
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class SampleDecoder:
    topic: Topic | None = None
    catalogs: Mapping[str, SchemaRegistry] = field(default_factory=dict)

    @classmethod
    def create(cls, source: KafkaSource, topic: str) -> Self:
        if source.file is None:
            return cls()
        from gateway.config import load

        settings = load(source.file)
        listed = (kafka.find_topic(topic) for kafka in settings.clusters.values())
        return cls(next((each for each in listed if each is not None), None), settings.catalogs)

    async def decode(self, record: Record) -> Sample:
        key, value = (self.topic.key, self.topic.value) if self.topic else (None, None)
        return Sample(
            record.tp.partition,
            record.offset,
            format_time(max(record.timestamp, 0)),
            await self._decode_part(record, record.key, key, is_key=True),
            await self._decode_part(record, record.value, value, is_key=False),
            tuple(
                (name, None if value is None else show_bytes(value))
                for name, value in record.headers
            ),
        )

    async def _decode_part(
        self, record: Record, data: bytes | None, model: Model | None, *, is_key: bool
    ) -> str | None:
        if data is None:
            return None
        if model is None or not model.is_decoded:
            return show_bytes(data)
        from gateway.formats.codec import Codecs
        from gateway.formats.model import Model as Decoder

        codecs = None if model.catalog is None else Codecs(self.catalogs[model.catalog])
        decoder = Decoder(model.model, codecs, is_key=is_key)
        record = decoder.frame_record(record)
        framed = (record.key if is_key else record.value) or b""
        try:
            missing = decoder.find_missing_id(framed)
            if missing is not None:
                await decoder.load_schema_ids([missing])
            return _cut(decoder.decode(framed).decode())
        except (FormatError, RegistryUnavailable) as exc:
            return f"{show_bytes(data)} (not {model.model}: {exc})"
        finally:
            if codecs is not None:
                await codecs.close()


def show_bytes(data: bytes) -> str:
    """Return bytes as text, or their length and beginning if they are not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() or "\0" not in text:
        return _cut(text)
    if data[:1] == b"\0" and len(data) > 5:
        schema_id = int.from_bytes(data[1:5], "big")
        hint = "to decode it, set model and catalog of the topic"
        return f"{len(data)} bytes, perhaps of schema {schema_id} of a registry; {hint}"
    shown = data[:MAX_SHOWN_BYTES].hex(" ")
    return f"{len(data)} bytes: {shown}{' ...' if len(data) > MAX_SHOWN_BYTES else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]} ..."


INTERNAL_PREFIX = "__"
RATE_SECONDS = 2.0  # how long arriving records are counted
SAMPLE_OFFSETS = 20  # how far before its end a partition is searched for a record


@dataclass(frozen=True)
class TopicSummary:
    """A topic in a list. `records` counts offsets, and is None if a leader does not answer."""

    name: str
    partitions: int
    replicas: int
    records: int | None


@dataclass(frozen=True)
class PartitionDetails:
    """A partition of a topic.

    Attributes:
        leader: The node id of its leader; -1 for none.
        start: Its log start offset; None if its leader does not answer.
        end: Its last stable offset; None likewise.
    """

    partition: int
    leader: int
    replicas: Sequence[int]
    in_sync: Sequence[int]
    start: int | None
    end: int | None


@dataclass(frozen=True)
class TopicDetails:
    """A topic that is described.

    Attributes:
        cleanup_policy: Its `cleanup.policy`; None if it may not be read.
        rate: The records that arrived in a second, counted for `seconds`.
    """

    name: str
    cleanup_policy: str | None
    partitions: Sequence[PartitionDetails]
    rate: float
    seconds: float
    sample: Sample | None

    @property
    def records(self) -> int | None:
        return _count_records([(each.start, each.end) for each in self.partitions])

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return {
            "name": self.name,
            "cleanupPolicy": self.cleanup_policy,
            "records": self.records,
            "rate": round(self.rate, 3),
            "partitions": [
                {("inSync" if key == "in_sync" else key): value for key, value in each.items()}
                for each in fields["partitions"]
            ],
            "newest": fields["sample"],
        }


async def list_topics(cluster: Cluster, *, include_internal: bool) -> list[TopicSummary]:
    names = sorted(
        name
        for name in await cluster.list_topics()
        if include_internal or not name.startswith(INTERNAL_PREFIX)
    )
    for name in names:
        cluster.metadata.watch(name)
    await cluster.metadata.refresh("topics are listed")
    described = {name: topic for name in names if (topic := cluster.get_topic(name)) is not None}
    bounds = await _fetch_bounds(cluster, described.values())
    return [
        TopicSummary(
            name,
            len(topic.partitions),
            max((len(each.replicas) for each in topic.partitions.values()), default=0),
            _count_records([bounds[TopicPartition(name, number)] for number in topic.partitions]),
        )
        for name, topic in described.items()
    ]


async def describe_topic(
    cluster: Cluster, name: str, decoder: SampleDecoder, *, rate_seconds: float = RATE_SECONDS
) -> TopicDetails:
    try:
        topic = await cluster.describe_topic(name)
    except UnknownTopic:
        known = [each for each in await cluster.list_topics() if each[:2] != INTERNAL_PREFIX]
        hint = suggest(name, known, "this Kafka has no topics yet")
        raise UnknownTopic(f"no broker knows the topic {name}; {hint}", topic=name) from None
    cluster.metadata.watch(name, topic)
    try:
        cleanup_policy = await cluster.fetch_cleanup_policy(name)
    except KafkaError:
        cleanup_policy = None  # not every broker says, such as the embedded one
    before, began = await _fetch_bounds(cluster, [topic]), time.monotonic()
    await asyncio.sleep(rate_seconds)
    after, seconds = await _fetch_bounds(cluster, [topic]), time.monotonic() - began
    arrived = sum(
        end - earlier
        for tp, (_, end) in after.items()
        if end is not None and (earlier := before[tp][1]) is not None
    )
    record = await _read_newest_record(cluster, after)
    return TopicDetails(
        name,
        cleanup_policy,
        [
            PartitionDetails(
                number, each.leader, each.replicas, each.isr, *after[TopicPartition(name, number)]
            )
            for number, each in sorted(topic.partitions.items())
        ],
        arrived / seconds,
        seconds,
        None if record is None else await decoder.decode(record),
    )


Bounds = tuple[int | None, int | None]


async def _fetch_bounds(
    cluster: Cluster, topics: Sequence[TopicMetadata] | Any
) -> dict[TopicPartition, Bounds]:
    """Return the start and end of each partition's log; None where no leader answers."""
    tps = [TopicPartition(topic.name, number) for topic in topics for number in topic.partitions]
    # Starts first: records that are deleted in between must not make a start exceed its end.
    starts = await cluster.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST))
    return {tp: (_get_offset(starts.get(tp)), _get_offset(ends.get(tp))) for tp in tps}


def _get_offset(answer: OffsetAndTimestamp | int | None) -> int | None:
    return answer.offset if isinstance(answer, OffsetAndTimestamp) else None


def _count_records(bounds: Sequence[Bounds]) -> int | None:
    total = 0
    for start, end in bounds:
        if start is None or end is None:
            return None
        total += end - start
    return total


async def _read_newest_record(
    cluster: Cluster, bounds: Mapping[TopicPartition, Bounds]
) -> Record | None:
    """Return the newest of the last records of all partitions.

    A partition whose last offsets hold only markers of transactions is left out.
    """
    newest: Record | None = None
    for tp, (start, end) in bounds.items():
        if start is None or end is None or start == end:
            continue
        try:
            record = await _read_last_record(cluster, tp, max(start, end - SAMPLE_OFFSETS), end)
        except KafkaError:
            continue  # the other partitions may have one
        if record is not None and (newest is None or record.timestamp > newest.timestamp):
            newest = record
    return newest


async def _read_last_record(
    cluster: Cluster, tp: TopicPartition, start: int, end: int
) -> Record | None:
    """Return the last record between two offsets, which may take several fetches."""
    last: Record | None = None
    while start < end:
        read = await read_committed(cluster, tp, start)
        if read.next_offset <= start:
            break
        last = read.records[-1] if read.records else last
        start = read.next_offset
    return last
