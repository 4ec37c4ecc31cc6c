"""Create the topics that the gateway itself needs, and delete records of topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from gateway.core.error_code import AUTHORIZATION_ERRORS, ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.client.cluster import Cluster
from gateway.kafka.client.connections import ConnectionRole
from gateway.kafka.protocol.codec import FieldReader, FieldWriter, write_partitions
from gateway.kafka.protocol.requests import KafkaRequest, VersionRange
from gateway.kafka.protocol.topic_messages import BROKER_DEFAULT, CreateTopicsRequest

RETRIABLE_ERRORS = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_CONTROLLER})


async def create_topic(
    cluster: Cluster,
    topic: str,
    *,
    partitions: int = BROKER_DEFAULT,
    replicas: int = BROKER_DEFAULT,
    configs: Mapping[str, str] | None = None,
) -> bool:
    """Create a topic, and return False if it exists. Brokers may take a moment to know of it.

    Raises:
        AccessDenied: The gateway may not create it.
        BrokerUnavailable: No broker created it now, or a broker did not answer.
        KafkaError: The broker refused; the message has its text.
    """
    nodes = [cluster.metadata.last_responder, *cluster.metadata.brokers]
    request = CreateTopicsRequest(topic, partitions, replicas, configs or {})
    # A dict keeps the order and drops the repeated node.
    for node in dict.fromkeys(node for node in nodes if node is not None):
        response = await cluster.connections.send(node, ConnectionRole.CONTROL, request)
        if not response.error:
            return True
        if response.error == ErrorCode.TOPIC_ALREADY_EXISTS:
            return False
        if response.error in AUTHORIZATION_ERRORS:
            message = f"the gateway may not create the topic {topic}; create it, or allow CREATE"
            raise AccessDenied(message, topic=topic)
        if response.error not in RETRIABLE_ERRORS:
            raise KafkaError(
                f"the topic {topic} was not created: {response.message or response.error}"
            )
    # Before KRaft only the controller creates topics, and it may be changing now.
    raise BrokerUnavailable(f"no broker creates the topic {topic} now; try again", retry_after=1.0)


TIMEOUT_MS = 10_000  # until the replicas have deleted the records


class DeleteRecordsResponse(NamedTuple):
    throttle_ms: int
    errors: dict[TopicPartition, int]


@dataclass(slots=True)
class DeleteRecordsRequest(KafkaRequest[DeleteRecordsResponse]):
    """Ask a leader to delete the records of its partitions before the given offsets."""

    API_KEY = 21
    NAME = "DeleteRecords"
    VERSIONS = VersionRange(0, 1, 2)

    before_offsets: Mapping[TopicPartition, int]

    def encode(self, version: int) -> bytes:
        out = FieldWriter(flexible=False)
        for offset in write_partitions(out, self.before_offsets):
            out.i64(offset)
        out.i32(TIMEOUT_MS)
        return bytes(out.data)

    def decode(self, version: int, data: bytes, pos: int) -> DeleteRecordsResponse:
        read = FieldReader(data, pos, flexible=False)
        throttle, errors = read.i32(), dict[TopicPartition, int]()
        for _ in range(read.array()):
            topic = read.string() or ""
            for _ in range(read.array()):
                tp = TopicPartition(topic, read.i32())
                read.i64()  # the new log start offset
                errors[tp] = read.i16()
        return DeleteRecordsResponse(throttle, errors)


async def delete_records(cluster: Cluster, before_offsets: Mapping[TopicPartition, int]) -> None:
    """Delete the records before an offset in each partition of watched topics.

    The leaders are asked one after the other, so when this raises, some records may be deleted.

    Raises:
        AccessDenied: The gateway may not delete records of a topic.
        PartitionFailed: A leader answered with another error code.
        BrokerUnavailable: A partition has no leader now, or it did not answer.
    """
    offsets_by_node: dict[int, dict[TopicPartition, int]] = {}
    for tp, offset in before_offsets.items():
        leader = cluster.leader_for_partition(tp)
        if leader is None:
            raise BrokerUnavailable(f"{tp} has no leader; try again", retry_after=1.0)
        offsets_by_node.setdefault(leader[0], {})[tp] = offset
    for node, offsets in offsets_by_node.items():
        request = DeleteRecordsRequest(offsets)
        # The broker may take all of its timeout before it answers.
        response = await cluster.connections.send(
            node, ConnectionRole.CONTROL, request, timeout=TIMEOUT_MS / 1000 + 5
        )
        for tp, code in response.errors.items():
            if code in AUTHORIZATION_ERRORS:
                message = f"the gateway may not delete records of {tp.topic}; allow it DELETE"
                raise AccessDenied(message, topic=tp.topic)
            if code:
                raise PartitionFailed(
                    f"records of {tp} are not deleted (code {code})",
                    topic=tp.topic, partition=tp.partition, code=code,
                )  # fmt: skip
