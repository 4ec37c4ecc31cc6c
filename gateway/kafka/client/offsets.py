"""Look up where logs begin and end, and where leader epochs end.

All leaders are asked concurrently and each partition gets an answer of its own: an offset, or one
of Kafka's error codes where its leader is missing or frozen. Failures of the connection get the
codes that Kafka's own clients use for them, such as LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION and
REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError
from gateway.kafka.protocol.requests import KafkaRequest
from gateway.kafka.protocol.topic_messages import EpochEnd as EpochEnd
from gateway.kafka.protocol.topic_messages import (
    LeaderQuery,
    ListOffsetsRequest,
    LookupResponse,
    OffsetForLeaderEpochRequest,
)
from gateway.kafka.protocol.topic_messages import OffsetAndTimestamp as OffsetAndTimestamp

from .connections import ConnectionRole, Connections

# The timestamps of ListOffsets that stand for an end of the log.
LATEST = -1
EARLIEST = -2

# Isolation levels: with READ_COMMITTED a log ends at its last stable offset.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

T = TypeVar("T")  # the answer for one partition

FindLeader: TypeAlias = Callable[[TopicPartition], tuple[int, int] | None]
"""Return node and leader epoch of a partition, as `Metadata.leader_for_partition` does."""


async def list_offsets(
    connections: Connections,
    find_leader: FindLeader,
    specs: Mapping[TopicPartition, int],
    isolation_level: int = READ_COMMITTED,
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp | int]:
    """Look up offsets; an error code where that fails. Never raises KafkaError.

    Args:
        specs: For each partition LATEST (with READ_COMMITTED this is the last stable offset),
            EARLIEST, or a record timestamp in ms since 1970, for the first offset that is as late.
        timeout: Seconds to wait for each leader, in place of the cluster's request timeout.
    """
    by_time = any(timestamp >= 0 for timestamp in specs.values())
    return await _query_leaders(
        connections,
        find_leader,
        specs,
        lambda queries: ListOffsetsRequest(queries, isolation_level),
        timeout,
        ConnectionRole.LOOKUP if by_time else ConnectionRole.CONTROL,
    )


async def fetch_epoch_ends(
    connections: Connections,
    find_leader: FindLeader,
    epochs: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, EpochEnd | int]:
    """Look up where leader epochs ended (KIP-320), as `list_offsets` does."""
    return await _query_leaders(
        connections, find_leader, epochs, OffsetForLeaderEpochRequest, timeout
    )


async def _query_leaders(
    connections: Connections,
    find_leader: FindLeader,
    values: Mapping[TopicPartition, int],
    create_request: Callable[[dict[TopicPartition, LeaderQuery]], KafkaRequest[LookupResponse[T]]],
    timeout: float | None,
    role: ConnectionRole = ConnectionRole.CONTROL,
) -> dict[TopicPartition, T | int]:
    """Ask all leaders concurrently; an error code where one failed or left a partition out."""
    results: dict[TopicPartition, T | int] = {}
    queries_by_node: dict[int, dict[TopicPartition, LeaderQuery]] = {}
    for tp, value in values.items():
        leader = find_leader(tp)
        if leader is None:
            results[tp] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            node, epoch = leader
            queries_by_node.setdefault(node, {})[tp] = LeaderQuery(value, epoch)

    async def query_leader(node: int, queries: dict[TopicPartition, LeaderQuery]) -> None:
        answers: dict[TopicPartition, T | int] = {}
        code: int = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            request = create_request(queries)
            response = await connections.send(node, role, request, timeout=timeout)
            answers = response.answers
        except KafkaError as exc:
            code = code_from_error(exc)
        # Also partitions that the broker left out of its answer get a result.
        for tp in queries:
            results[tp] = answers.get(tp, code)

    async with asyncio.TaskGroup() as group:
        for node, queries in queries_by_node.items():
            group.create_task(query_leader(node, queries))
    return results
