"""The ledger: a compacted topic that says which epoch each writer has committed.

`<output>.ledger`, one for all queries that write to a topic. Keys are `query` for the plan,
`query|p` for writer p, and `job|name` for the query that writes the rows of a job; values are JSON.
An entry is written in the transaction of the rows it stands for. Partition 0 has plans; writers are
spread over the others, because a transaction that is open on a partition hides everything behind it
from readers of committed records.

Reading: up to the end that the log has *after* the reader fenced whom it must, and only once the
last stable offset has got there. Reading to the last stable offset at hand would miss a writer's
own commit behind a sibling's open transaction, and write its rows twice.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from gateway.errors import PipelineUnavailable
from gateway.pipeline.run.failures import build_kafka_error

from .plan import LedgerEntry, WriterPlan

# A segment that is written to is never compacted: its size bounds what readers go through.
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
    "compression.type": "uncompressed",
}
MIN_WRITER_PARTITIONS = 8  # partitions for writers, at least
RECENT_OFFSETS = 64  # offsets; where a writer's last entry is, unless others write to its partition
REQUEST_TIMEOUT_S = 30.0  # s, over what a transaction may stay open


def ledger_topic(output: str) -> str:
    """The ledger's name, by that of the topic that is written."""
    return f"{output}.ledger"


def writer_key(query_id: str, writer: int | str) -> str:
    return f"{query_id}|{writer}"


def owner_key(job: str) -> str:
    """Return the key under which the ledger names the query that writes the rows of a job.

    Args:
        job: What tells the jobs of an output apart.
    """
    return f"job|{job}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """topic: its name. client: librdkafka's properties of the cluster. patience: s, how long an
    open transaction of somebody else may hide what is behind it."""

    topic: str
    client_config: Mapping[str, Any]
    partitions: int
    timeout_s: float

    def writer_partition(self, writer: int) -> int:
        """The partition of a writer's entries."""
        return 1 + writer % (self.partitions - 1)

    def read_plan(self, query_id: str) -> WriterPlan | None:
        """The last that was written."""
        return _parse_plan(self._read_last({0: {query_id}}).get(query_id))

    def read_owner(self, job: str, query_id: str) -> tuple[str | None, WriterPlan | None]:
        """Return the query that writes the rows of a job, and the plan of another query.

        Args:
            job: As of `owner_key`.
            query: The query whose plan is asked for.
        """
        key = owner_key(job)
        found = self._read_last({0: {key, query_id}})
        return found.get(key, {}).get("query"), _parse_plan(found.get(query_id))

    def read_plan_and_entry(
        self, query_id: str, writer: int
    ) -> tuple[WriterPlan | None, LedgerEntry | None]:
        """The plan, and what a writer committed last."""
        key = writer_key(query_id, writer)
        found = self._read_last({0: {query_id}, self.writer_partition(writer): {key}})
        return _parse_plan(found.get(query_id)), _parse_entry(found.get(key))

    def read_entries(self, query_id: str) -> list[LedgerEntry]:
        """Return the last entry of every writer that has one, whatever plan it was of."""
        with _LedgerReader(self) as reader:
            found = reader.read_by_prefix(range(1, self.partitions), writer_key(query_id, ""))
        return [entry for value in found.values() if (entry := _parse_entry(value)) is not None]

    def read_values(self, keys: Iterable[str]) -> dict[str, Any]:
        """The last committed values of other keys of partition 0."""
        return self._read_last({0: set(keys)})

    def _read_last(self, keys: Mapping[int, set[str]]) -> dict[str, Any]:
        with _LedgerReader(self) as reader:
            return reader.read_last(keys)


class _LedgerReader:
    """Two consumers, of which only one is kept from open transactions. Asking the admin client
    for ends took 3.0 s in every second new client (librdkafka 2.16); these take 10 to 60 ms."""

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
        """The last committed value of each key. wanted: keys by their partition; the tails alone
        are read where they suffice."""
        logs = {partition: self._await_stable_range(partition) for partition in keys}
        tails = {
            each: (max(start, end - RECENT_OFFSETS), end) for each, (start, end) in logs.items()
        }
        found = self._read_records(tails, lambda partition, key: key in keys[partition])
        lacking = {
            each: logs[each]
            for each in logs
            if tails[each] != logs[each] and keys[each] - found.keys()
        }
        found |= self._read_records(lacking, lambda partition, key: key in keys[partition])
        return {key: value for key, value in found.items() if value is not None}

    def read_by_prefix(self, partitions: Iterable[int], prefix: str) -> dict[str, Any]:
        """Return the last committed value of each key that begins so."""
        logs = {partition: self._await_stable_range(partition) for partition in partitions}
        found = self._read_records(logs, lambda _, key: key.startswith(prefix))
        return {key: value for key, value in found.items() if value is not None}

    def _await_stable_range(self, partition: int) -> tuple[int, int]:
        """The log's start, and its end now, once no transaction before that is open."""
        where = TopicPartition(self._ledger.topic, partition)
        start, end = fetch_log_range(self._uncommitted_consumer, where)
        deadline = time.monotonic() + self._ledger.timeout_s
        while fetch_log_range(self._committed_consumer, where)[1] < end:
            if time.monotonic() > deadline:
                what = f"a transaction stays open on {where.topic}, partition {where.partition}"
                raise PipelineUnavailable(f"{what}; see `kafka-transactions.sh list` for its owner")
            time.sleep(0.02)
        return start, end

    def _read_records(
        self, ranges: Mapping[int, tuple[int, int]], is_wanted: Callable[[int, str], bool]
    ) -> dict[str, Any]:
        """Values by key of committed records between these offsets; the last of each.

        wanted: Is a key of a partition looked for?
        """
        found: dict[str, Any] = {}
        left = {each: end for each, (start, end) in ranges.items() if start < end}
        deadline = time.monotonic() + self._ledger.timeout_s
        topic = self._ledger.topic
        if left:
            self._committed_consumer.assign(
                [TopicPartition(topic, each, ranges[each][0]) for each in left]
            )
        while left:
            message = _poll_record(self._committed_consumer, deadline)
            partition = message.partition()
            if message.error() is not None:
                left.pop(partition, None)
                continue
            key = (message.key() or b"").decode("utf-8", "replace")
            if message.offset() < left.get(partition, 0) and is_wanted(partition, key):
                found[key] = None if message.value() is None else json.loads(message.value())
        return found


_CONSUMER_CONFIG = {
    "group.id": "gateway-ledger",  # asked for by the library; nothing is committed
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "isolation.level": "read_committed",
    "auto.offset.reset": "earliest",
    # Spark gives a writer to another process in nearly every batch, and that one reads here: 40 ms
    # in all, for 0.3 s with 50 and 100, librdkafka's own, because the end of a log is seen by a
    # fetch that waits in vain.
    "fetch.wait.max.ms": 5,
    "reconnect.backoff.ms": 10,
}


def _poll_record(consumer: Any, deadline: float) -> Any:
    """The next record, or the end of a partition as an error. The stable end was awaited: it is
    behind all we want."""
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


# Of a moment: a new topic, or a leader that has just been replaced. librdkafka asks once, and looks
# for the leader anew meanwhile.
_RETRIABLE_ERRORS = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_CACHE,
    }
)


def fetch_log_range(consumer: Any, partition: TopicPartition) -> tuple[int, int]:
    """Where a log begins, and where it ends for this consumer: for one of committed records that
    is the last stable offset. Raises KafkaException: no leader says so within 30 s."""
    start, end = _retry_request(lambda: consumer.get_watermark_offsets(partition, timeout=10))
    return int(start), int(end)


def fetch_log_starts(
    consumer: Any, partitions: Iterable[tuple[str, int]]
) -> dict[tuple[str, int], int]:
    """Where the logs of these topics' partitions begin. Raises KafkaException as above. Of fifty
    partitions: 2 ms, for 200 ms one by one."""
    asked = [TopicPartition(*place, OFFSET_BEGINNING) for place in partitions]

    def request_offsets() -> Sequence[Any]:
        found = consumer.offsets_for_times(asked, timeout=10) if asked else []
        for each in found:
            if each.error is not None:
                raise KafkaException(each.error)
        return found

    return {
        (each.topic, each.partition): int(each.offset) for each in _retry_request(request_offsets)
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


def open_ledger(
    output: str, writers: int, timeout_s: float, client_config: Mapping[str, Any]
) -> Ledger:
    """The ledger beside a topic, made if it is missing. writers: wanted. timeout: s, of
    transactions. Raises PipelineError where it can be neither found nor made."""
    topic = ledger_topic(output)
    admin = AdminClient(dict(client_config))
    try:
        known = admin.list_topics(timeout=30).topics
        if topic not in known or known[topic].error is not None:
            _create_topic(admin, topic, 1 + max(MIN_WRITER_PARTITIONS, writers))
        count = _await_partitions(admin, topic)
    except KafkaException as error:
        raise build_kafka_error(f"the ledger {topic} is out of reach", error) from error
    return Ledger(topic, dict(client_config), count, timeout_s + REQUEST_TIMEOUT_S)


def _create_topic(admin: Any, topic: str, partitions: int) -> None:
    new = NewTopic(topic, num_partitions=partitions, replication_factor=-1, config=TOPIC_CONFIGS)
    try:
        admin.create_topics([new], request_timeout=30)[topic].result(35)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def _await_partitions(admin: Any, topic: str) -> int:
    """All of them have a leader when this returns."""
    deadline = time.monotonic() + 30
    while True:
        found = admin.list_topics(topic, timeout=10).topics[topic]
        if found.error is None and all(each.leader >= 0 for each in found.partitions.values()):
            return len(found.partitions)
        if time.monotonic() > deadline:
            what = f"the ledger {topic} has no leader for 30 s"
            raise PipelineUnavailable(f"{what}; look after its broker")
        time.sleep(0.05)


def _parse_plan(value: Mapping[str, Any] | None) -> WriterPlan | None:
    if value is None:
        return None
    return WriterPlan(value["generation"], value["writers"], value.get("driver", ""))


def _parse_entry(value: Mapping[str, Any] | None) -> LedgerEntry | None:
    if value is None:
        return None
    return LedgerEntry(value["epoch"], value["writers"], value.get("mark", ""))
