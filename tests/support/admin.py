"""What an operator does to topics, for tests. Synchronous: librdkafka has its own threads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    ElectionType,
    IsolationLevel,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from support.waiting import block_until

REQUEST_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.02  # seconds between two questions to Kafka
# The leader has changed since the client last asked who it is.
MOVED_ERRORS = ("FENCED_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE")


class KafkaAdmin:
    """options: librdkafka properties over the defaults (security)."""

    def __init__(self, bootstrap: Sequence[str], **options: Any) -> None:
        servers = {"bootstrap.servers": ",".join(bootstrap)}
        # Its own log lines about killed brokers are of no use in a test's output; a frozen
        # broker is given up after 2 s, not 60.
        own = {"log_level": 0, "socket.timeout.ms": 2000}
        self.client = AdminClient(servers | own | options)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        assignment: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Returns when every partition has a leader. assignment: node ids of each partition."""
        if assignment is not None:
            placed: dict[str, Any] = {"replica_assignment": [list(ids) for ids in assignment]}
            partitions = len(assignment)
        else:
            placed = {"replication_factor": replication}
        new = NewTopic(name, num_partitions=partitions, config=dict(configs or {}), **placed)
        _wait_for_futures(self.client.create_topics([new], request_timeout=REQUEST_TIMEOUT_S))
        block_until(
            lambda: len(self.get_leaders(name)) == partitions,
            f"leaders of {name}",
            REQUEST_TIMEOUT_S,
            POLL_INTERVAL_S,
        )

    def set_password(self, user: str, password: str) -> None:
        """For SCRAM-SHA-512, also of a user who is new."""
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(user, scram, password.encode())
        _wait_for_futures(
            self.client.alter_user_scram_credentials([change], request_timeout=REQUEST_TIMEOUT_S)
        )

    def add_partitions(self, name: str, partitions: int) -> None:
        """Returns when the topic has `partitions` of them, all with a leader."""
        new = NewPartitions(name, partitions)
        _wait_for_futures(self.client.create_partitions([new], request_timeout=REQUEST_TIMEOUT_S))
        block_until(
            lambda: len(self.get_leaders(name)) == partitions,
            f"new partitions of {name}",
            REQUEST_TIMEOUT_S,
            POLL_INTERVAL_S,
        )

    def delete_topic(self, name: str) -> None:
        """Returns when no broker asked knows it any more; unknown topics are no error."""
        try:
            _wait_for_futures(self.client.delete_topics([name], request_timeout=REQUEST_TIMEOUT_S))
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise
        block_until(
            lambda: not self.topic_exists(name),
            f"the end of {name}",
            REQUEST_TIMEOUT_S,
            POLL_INTERVAL_S,
        )

    def topic_exists(self, name: str) -> bool:
        return name in self._list_topics()

    def get_topic_id(self, name: str) -> str:
        """The topic's UUID, as Kafka prints it."""
        described = self.client.describe_topics(TopicCollection([name]))
        return str(described[name].result(REQUEST_TIMEOUT_S).topic_id)

    def get_leaders(self, name: str) -> dict[int, int]:
        """Node id of the leader of every partition that has one."""
        topics = self._list_topics()
        partitions = topics[name].partitions.values() if name in topics else ()
        return {each.id: each.leader for each in partitions if each.leader >= 0}

    def delete_records(self, name: str, before_offsets: Mapping[int, int]) -> None:
        """Move the log start of each partition to its offset in `before`."""
        wanted = [
            TopicPartition(name, partition, offset) for partition, offset in before_offsets.items()
        ]
        _wait_for_futures(self.client.delete_records(wanted, request_timeout=REQUEST_TIMEOUT_S))

    def alter_configs(self, name: str, configs: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in configs.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        _wait_for_futures(self.client.incremental_alter_configs([resource]))

    def elect_leaders(
        self, name: str, partitions: Sequence[int], *, is_unclean: bool = False
    ) -> None:
        """Give partitions back to their preferred leader, or any leader at all (unclean)."""
        kind = ElectionType.UNCLEAN if is_unclean else ElectionType.PREFERRED
        wanted = [TopicPartition(name, partition) for partition in partitions]
        # confluent-kafka 2.16 raises SystemError for a request_timeout here.
        self.client.elect_leaders(kind, wanted).result(REQUEST_TIMEOUT_S)

    def get_log_start_offset(self, name: str, partition: int = 0) -> int:
        return self._list_offset(name, partition, OffsetSpec.earliest())

    def get_high_watermark(self, name: str, partition: int = 0) -> int:
        """The high watermark."""
        return self._list_offset(name, partition, OffsetSpec.latest())

    def get_last_stable_offset(self, name: str, partition: int = 0) -> int:
        """The end for readers of committed records."""
        isolation = IsolationLevel.READ_COMMITTED
        return self._list_offset(name, partition, OffsetSpec.latest(), isolation_level=isolation)

    def wait_in_sync(self, timeout: float = 60.0) -> None:
        """Until every partition has a leader and all its replicas are in sync."""
        block_until(self._is_in_sync, "all replicas in sync", timeout, POLL_INTERVAL_S)

    def _is_in_sync(self) -> bool:
        partitions = [
            each for topic in self._list_topics().values() for each in topic.partitions.values()
        ]
        return all(each.leader >= 0 and len(each.isrs) == len(each.replicas) for each in partitions)

    def _list_topics(self) -> dict[str, Any]:
        """Asked again while the broker that was asked is dead or frozen."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            try:
                return self.client.list_topics(timeout=3).topics
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def _list_offset(self, name: str, partition: int, spec: OffsetSpec, **options: Any) -> int:
        wanted = {TopicPartition(name, partition): spec}
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            (future,) = self.client.list_offsets(
                wanted, request_timeout=REQUEST_TIMEOUT_S, **options
            ).values()
            try:
                offset = int(future.result(REQUEST_TIMEOUT_S).offset)
            except KafkaException as error:
                if error.args[0].name() not in MOVED_ERRORS or time.monotonic() > deadline:
                    raise
            else:
                # While a broker fails, librdkafka now and then has no error and no offset: -1001.
                if offset >= 0:
                    return offset
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{name}-{partition}: no offset, and no error")
            self._list_topics()  # asks for the leaders


def _wait_for_futures(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(REQUEST_TIMEOUT_S)
