"""Read the ledger, a compacted topic with the epoch that each writer has committed last.

The topic is `<output>.ledger`. All queries that write to an output share it. Its keys are `query`
for the plan of a query, `query|p` for its writer p, and `job|name` for the query that writes the
rows of a job. Its values are JSON. An entry is written in the transaction of its rows. Partition 0
has the plans. The writers are spread over the other partitions, because an open transaction on a
partition hides everything behind it from readers of committed records.

The ledger is read up to the end that the log has *after* the reader has fenced other producers, and
only once the last stable offset has reached that end. A read up to the current last stable offset
would miss a writer's own commit behind the open transaction of another writer, and its rows would
be written twice.

Without its entries, the rows of an interrupted batch would be written twice. So the checkpoint has
the id of the topic, in `ledger.json`, and a ledger that was deleted is refused (`verify_ledger`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from gateway.config.sections.job import Output
from gateway.errors import CheckpointRefused, PipelineError, PipelineUnavailable
from gateway.pipeline import clusters
from gateway.pipeline.checkpoint.checkpoint import Checkpoint, read_query_id
from gateway.pipeline.checkpoint.files import refuse_damaged
from gateway.pipeline.failures import explain_kafka_errors

from .writer_plan import LedgerEntry, WriterPlan

log = logging.getLogger(__name__)

LEDGER_FILE = "ledger.json"
"""A file of the checkpoint with the ids of the cluster and of the ledger's topic, and its name."""
# Kafka never compacts the segment that is being written. So the size of a segment limits how much
# a reader has to read.
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "uncompressed",
}
# Of a new topic, so that writers that are added later seldom share a partition. A topic never gets
# more: its writers' entries would be looked for in other partitions than they are in.
MIN_WRITER_PARTITIONS = 8
# How many offsets before the end of a partition are read first. A writer's last entry is among
# them, unless many other writers share the partition.
RECENT_OFFSETS = 64
# Also how much longer a reader waits for the last stable offset than a transaction may stay open.
REQUEST_TIMEOUT_S = 30.0
LOG_WAIT_AFTER_S = 5.0


def ledger_topic(output: str) -> str:
    return f"{output}.ledger"


def writer_key(query_id: str, writer: int | str) -> str:
    """Return the key of a writer's entry; with writer "", the prefix of all keys of a query."""
    return f"{query_id}|{writer}"


def owner_key(job: str) -> str:
    return f"job|{job}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """A ledger topic that exists, as the driver and the workers read it.

    `open_ledger` creates it in the driver. It is pickled into each `WriteTask`. It keeps no
    connection: every read opens its own consumers.

    Attributes:
        partitions: The number of partitions: one for plans, the others for writers.
        timeout_s: How long a read waits for open transactions of other producers.
    """

    topic: str
    client_config: Mapping[str, Any]
    partitions: int
    timeout_s: float

    def writer_partition(self, writer: int) -> int:
        return 1 + writer % (self.partitions - 1)

    def read_plan(self, query_id: str) -> WriterPlan | None:
        return _parse_plan(self._read_last({0: {query_id}}).get(query_id))

    def read_owner(self, job: str, query_id: str) -> tuple[str | None, WriterPlan | None]:
        key = owner_key(job)
        values = self._read_last({0: {key, query_id}})
        return values.get(key, {}).get("query"), _parse_plan(values.get(query_id))

    def read_plan_and_entry(
        self, query_id: str, writer: int
    ) -> tuple[WriterPlan | None, LedgerEntry | None]:
        key = writer_key(query_id, writer)
        values = self._read_last({0: {query_id}, self.writer_partition(writer): {key}})
        return _parse_plan(values.get(query_id)), _parse_entry(values.get(key))

    def read_entries(
        self, query_id: str, *, is_final: bool = True
    ) -> tuple[list[LedgerEntry], list[LedgerEntry]]:
        """Return the last entry of every writer that has one, and those of the side outputs.

        Entries of former plans are among them. Names of side outputs begin with that of the query.

        Args:
            is_final: Whether to wait for open transactions, after their producers were fenced.
        """
        with _LedgerReader(self) as reader:
            partitions = range(1, self.partitions)
            values = reader.read_by_prefix(partitions, query_id, is_final=is_final)
        own, of_side_outputs = (
            [
                entry
                for key, value in values.items()
                if key.startswith(prefix) and (entry := _parse_entry(value)) is not None
            ]
            for prefix in (writer_key(query_id, ""), f"{query_id}/")
        )
        return own, of_side_outputs

    def read_values(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the last committed values of keys of partition 0, without keys that have none."""
        return self._read_last({0: set(keys)})

    def _read_last(self, keys: Mapping[int, set[str]]) -> dict[str, Any]:
        with _LedgerReader(self) as reader:
            return reader.read_last(keys)


class _LedgerReader:
    """One read of the ledger, as a context manager.

    It has two consumers: one of uncommitted records for the end of the log, and one of committed
    records for the last stable offset and the records. Asking the admin client for the ends took
    3.0 s in every second new client (librdkafka 2.16); the consumers take 10 to 60 ms.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._committed_consumer = Consumer({**ledger.client_config, **_CONSUMER_CONFIG})
        self._uncommitted_consumer = Consumer(
            {**ledger.client_config, **_CONSUMER_CONFIG, "isolation.level": "read_uncommitted"}
        )

    def __enter__(self) -> _LedgerReader:
        return self

    def __exit__(self, *error: object) -> None:
        self._committed_consumer.close()
        self._uncommitted_consumer.close()

    def read_last(self, keys: Mapping[int, set[str]]) -> dict[str, Any]:
        """Return the last committed value of each key, from the newest records if they have it."""
        ranges = {partition: self._await_stable_range(partition) for partition in keys}
        recent_ranges = {
            partition: (max(start, end - RECENT_OFFSETS), end)
            for partition, (start, end) in ranges.items()
        }
        values = self._read_records(recent_ranges, lambda partition, key: key in keys[partition])
        incomplete = {
            partition: ranges[partition]
            for partition in ranges
            if recent_ranges[partition] != ranges[partition] and keys[partition] - values.keys()
        }
        values |= self._read_records(incomplete, lambda partition, key: key in keys[partition])
        return {key: value for key, value in values.items() if value is not None}

    def read_by_prefix(
        self, partitions: Iterable[int], prefix: str, *, is_final: bool
    ) -> dict[str, Any]:
        get_range = self._await_stable_range if is_final else self._fetch_committed_range
        ranges = {partition: get_range(partition) for partition in partitions}
        values = self._read_records(ranges, lambda _, key: key.startswith(prefix))
        return {key: value for key, value in values.items() if value is not None}

    def _fetch_committed_range(self, partition: int) -> tuple[int, int]:
        tp = TopicPartition(self._ledger.topic, partition)
        return fetch_log_range(self._committed_consumer, tp)

    def _await_stable_range(self, partition: int) -> tuple[int, int]:
        """Wait until no transaction before the end of a partition is open; return start and end."""
        topic, timeout_s = self._ledger.topic, self._ledger.timeout_s
        start, end = fetch_log_range(self._uncommitted_consumer, TopicPartition(topic, partition))
        problem = (
            f"a transaction stays open on {topic}, partition {partition}; "
            "see `kafka-transactions.sh list` for its owner"
        )
        began, is_logged = time.monotonic(), False
        while self._fetch_committed_range(partition)[1] < end:
            waited_s = time.monotonic() - began
            if waited_s > timeout_s:
                raise PipelineUnavailable(problem)
            if waited_s > LOG_WAIT_AFTER_S and not is_logged:
                log.warning("%s; this waits for it for up to %g s", problem, timeout_s)
                is_logged = True
            time.sleep(0.02)
        return start, end

    def _read_records(
        self, ranges: Mapping[int, tuple[int, int]], is_wanted: Callable[[int, str], bool]
    ) -> dict[str, Any]:
        """Return the last committed value of each key; None for a tombstone."""
        values: dict[str, Any] = {}
        unread = {partition: end for partition, (start, end) in ranges.items() if start < end}
        deadline = time.monotonic() + self._ledger.timeout_s
        topic = self._ledger.topic
        if unread:
            self._committed_consumer.assign(
                [TopicPartition(topic, partition, ranges[partition][0]) for partition in unread]
            )
        # A partition is read to its end and not just to the end of its range. The offsets before
        # the range's end may be control records, which a consumer never returns.
        while unread:
            message = _poll_record(self._committed_consumer, deadline)
            partition = message.partition()
            if message.error() is not None:
                unread.pop(partition, None)
                continue
            key = (message.key() or b"").decode("utf-8", "replace")
            if message.offset() < unread.get(partition, 0) and is_wanted(partition, key):
                values[key] = None if message.value() is None else json.loads(message.value())
        return values


_CONSUMER_CONFIG = {
    "group.id": "gateway-ledger",  # the library requires one; no offset is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # Spark gives a writer to another process in nearly every batch, and that process reads the
    # ledger. A read takes 40 ms with these two settings, and 0.3 s with 50 and 100 (librdkafka's
    # default), because a consumer only sees the end of a log when a fetch times out.
    "fetch.wait.max.ms": 5,
    "reconnect.backoff.ms": 10,
}


def _poll_record(consumer: Any, deadline: float) -> Any:
    """Return the next record, or the end of a partition as a message with an error.

    The last stable offset is already behind all wanted records, so the end of the partition means
    that they have been read.
    """
    while True:
        message = consumer.poll(0.5)
        if message is not None:
            error = message.error()
            if error is None or error.code() == KafkaError._PARTITION_EOF:
                return message
            if error.fatal() or not error.retriable():
                raise KafkaException(error)
        if time.monotonic() > deadline:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the ledger cannot be read"))


# These errors pass: the topic is new, or its leader has just changed. librdkafka sends a request
# only once, and refreshes the metadata meanwhile.
_RETRIABLE_ERRORS = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_CACHE,
    }
)


def fetch_log_range(consumer: Any, partition: TopicPartition) -> tuple[int, int]:
    """Return where a log begins, and where it ends for a consumer.

    The end is the last stable offset for a consumer of committed records, and the high watermark
    for one of uncommitted records.
    """
    start, end = _retry_request(lambda: consumer.get_watermark_offsets(partition, timeout=10))
    return int(start), int(end)


def fetch_log_starts(
    consumer: Any, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Return where logs begin. One request for fifty partitions takes 2 ms, fifty take 200 ms."""
    # The special offset goes where the API expects a time: ListOffsets has the same number, -2, for
    # the earliest offset.
    queries = [TopicPartition(*partition, OFFSET_BEGINNING) for partition in partitions]

    def request_offsets() -> Sequence[Any]:
        answers = consumer.offsets_for_times(queries, timeout=10) if queries else []
        for answer in answers:
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answers

    return {
        (answer.topic, answer.partition): int(answer.offset)
        for answer in _retry_request(request_offsets)
    }


def _retry_request(request: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return request()
        except KafkaException as error:
            if error.args[0].code() not in _RETRIABLE_ERRORS or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def verify_ledger(checkpoint: Checkpoint, output: Output, client_config: Mapping[str, Any]) -> None:
    """Raise CheckpointRefused if the ledger is not the topic with a checkpoint's entries.

    A ledger that does not exist is created for a checkpoint that has used no other one. If it has,
    its last batch must not be interrupted, as far as a ledger of the same cluster says.
    """
    files = checkpoint.files
    topic, known_id, current_id = ledger_topic(output.topic), None, None
    place = {"cluster": clusters.fetch_cluster_id(client_config), "topic": topic}
    stored: dict[str, str] = {}
    with suppress(FileNotFoundError), refuse_damaged(files.location, LEDGER_FILE):
        stored = json.loads(files.read(LEDGER_FILE))
        known_id = stored["id"] if place.items() <= stored.items() else None
    if known_id is None and stored.get("cluster") == place["cluster"]:
        _verify_left_ledger(checkpoint, stored["topic"], client_config, output.transaction_timeout)
    with suppress(clusters.TopicMissing):
        current_id = clusters.describe_topic(client_config, topic).id
    if (
        known_id is not None
        and (current_id is None or clusters.is_other_topic(known_id, current_id))
        and any(name.startswith("offsets/") for name in files.list_sizes())
    ):
        raise build_deleted_error(topic)
    if current_id is None:
        open_ledger(output.topic, output.writers, output.transaction_timeout, client_config)
        current_id = clusters.describe_topic(client_config, topic).id
    if current_id != known_id:
        files.write(LEDGER_FILE, json.dumps(place | {"id": current_id}).encode())


def _verify_left_ledger(
    checkpoint: Checkpoint, topic: str, client_config: Mapping[str, Any], timeout_s: float
) -> None:
    """Raise CheckpointRefused if a ledger has entries of a batch that is not committed yet."""
    try:
        partitions = clusters.describe_topic(client_config, topic).partitions
    except clusters.TopicMissing:
        return
    ledger = Ledger(topic, client_config, partitions, timeout_s + REQUEST_TIMEOUT_S)
    with explain_kafka_errors(f"the ledger {topic} cannot be read"):
        entries, _ = ledger.read_entries(read_query_id(checkpoint.files))
    committed = checkpoint.read_last_committed()
    if any(committed is None or entry.epoch > committed for entry in entries):
        raise CheckpointRefused(
            f"a batch was interrupted whose rows are in {topic.removesuffix('.ledger')}, and would "
            "be in another topic, too: take to.topic back until the batch is finished, then change "
            "it again"
        )


def build_deleted_error(topic: str) -> CheckpointRefused:
    return CheckpointRefused(
        f"topic {topic} was deleted, which said which rows of the last batch were written: start "
        f"again with --fresh, or remove {LEDGER_FILE} from the checkpoint to go on with it, and to "
        "write the last batch once more if it was interrupted"
    )


def open_ledger(
    output: str, writers: int, timeout_s: float, client_config: Mapping[str, Any]
) -> Ledger:
    """Return the ledger of an output topic, and create its topic if it is missing."""
    topic = ledger_topic(output)
    wanted_partitions = 1 + max(MIN_WRITER_PARTITIONS, writers)
    clusters.create_topic(client_config, topic, wanted_partitions, TOPIC_CONFIGS)
    with explain_kafka_errors(f"the ledger {topic} cannot be reached"):
        partitions = _await_partitions(clusters.create_admin_client(client_config), topic)
    policy = clusters.fetch_config(client_config, topic, "cleanup.policy")
    if partitions < 2 or policy not in ("compact", None):
        problem = f"the ledger {topic} has {partitions} partitions and cleanup.policy={policy}"
        raise PipelineError(
            f"{problem}; it needs two or more, better {wanted_partitions}, and compact alone: "
            "change it, or delete it if the output has no rows yet, and let the job create it"
        )
    return Ledger(topic, dict(client_config), partitions, timeout_s + REQUEST_TIMEOUT_S)


def _await_partitions(admin: Any, topic: str) -> int:
    """Wait until all partitions of a topic have a leader; return how many there are."""
    deadline = time.monotonic() + 30
    while True:
        metadata = admin.list_topics(topic, timeout=10).topics[topic]
        partitions = metadata.partitions
        if metadata.error is None and all(part.leader >= 0 for part in partitions.values()):
            return len(partitions)
        if time.monotonic() > deadline:
            problem = f"the ledger {topic} has had no leader for 30 s"
            raise PipelineUnavailable(f"{problem}; check its broker")
        time.sleep(0.05)


def _parse_plan(value: Mapping[str, Any] | None) -> WriterPlan | None:
    if value is None:
        return None
    return WriterPlan(value["generation"], value["writers"], value.get("driver", ""))


def _parse_entry(value: Mapping[str, Any] | None) -> LedgerEntry | None:
    if value is None:
        return None
    return LedgerEntry(
        value["epoch"], value["writers"], value.get("mark", ""), value.get("settings", {})
    )
