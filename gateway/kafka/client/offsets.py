"""Look up where logs begin and end, and where leader epochs end.

All leaders are asked concurrently and each partition gets an answer of its own: an offset, or one
of Kafka's error codes where its leader is missing or frozen. Failures of the connection get the
codes that Kafka's own clients use for them, such as LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION and
REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.core.error_code import ErrorCode, code_from_error
from gateway.core.log.record import TopicPartition
from gateway.errors import KafkaError
from gateway.kafka.protocol.offset_messages import (
    EpochQuery,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetQuery,
)

from .connections import ConnectionRole, Connections

# The timestamps of ListOffsets that stand for an end of the log.
LATEST = -1
EARLIEST = -2

# Isolation levels: with READ_COMMITTED a log ends at its last stable offset.
READ_UNCOMMITTED = 0
READ_COMMITTED = 1

T = TypeVar("T")  # the answer for one partition
A = TypeVar("A")  # the query of one partition


class OffsetAndTimestamp(NamedTuple):
    """An offset that was looked up.

    Attributes:
        offset: -1 if no record is as late as the requested time.
        timestamp: Of the record, in ms since 1970; -1 for LATEST and EARLIEST.
        epoch: The leader epoch of that record; -1 if it is not known.
    """

    offset: int
    timestamp: int
    epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the requested one, and its end; -1 if there is none."""

    epoch: int
    end_offset: int


class LeaderLookup(Protocol):
    """The part of `Cluster` that this module needs."""

    @property
    def connections(self) -> Connections: ...

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None: ...


async def list_offsets(
    cluster: LeaderLookup,
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

    async def send_queries(
        node: int, queries: dict[TopicPartition, OffsetQuery]
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]:
        request = ListOffsetsRequest(queries, isolation_level)
        response = await cluster.connections.send(node, role, request, timeout=timeout)
        return {
            tp: error or OffsetAndTimestamp(offset, timestamp, epoch)
            for tp, (error, timestamp, offset, epoch) in response.offsets.items()
        }

    by_time = any(timestamp >= 0 for timestamp in specs.values())
    role = ConnectionRole.LOOKUP if by_time else ConnectionRole.CONTROL
    return await _query_leaders(cluster, specs, OffsetQuery, send_queries)


async def fetch_epoch_ends(
    cluster: LeaderLookup,
    epochs: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, EpochEnd | int]:
    """Look up where leader epochs ended (KIP-320), as `list_offsets` does."""

    async def send_queries(
        node: int, queries: dict[TopicPartition, EpochQuery]
    ) -> dict[TopicPartition, EpochEnd | int]:
        request = OffsetForLeaderEpochRequest(queries)
        response = await cluster.connections.send(
            node, ConnectionRole.CONTROL, request, timeout=timeout
        )
        return {
            tp: error or EpochEnd(epoch, end)
            for tp, (error, epoch, end) in response.end_offsets.items()
        }

    return await _query_leaders(cluster, epochs, EpochQuery, send_queries)


async def _query_leaders(
    cluster: LeaderLookup,
    values: Mapping[TopicPartition, int],
    create_query: Callable[[int, int], A],
    send_queries: Callable[
        [int, dict[TopicPartition, A]], Coroutine[Any, Any, dict[TopicPartition, T | int]]
    ],
) -> dict[TopicPartition, T | int]:
    """Ask all leaders concurrently; an error code where one failed or left a partition out."""
    results: dict[TopicPartition, T | int] = {}
    queries_by_node: dict[int, dict[TopicPartition, A]] = {}
    for tp, value in values.items():
        leader = cluster.leader_for_partition(tp)
        if leader is None:
            results[tp] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            node, epoch = leader
            queries_by_node.setdefault(node, {})[tp] = create_query(value, epoch)

    async def query_leader(node: int, queries: dict[TopicPartition, A]) -> None:
        answers: dict[TopicPartition, T | int] = {}
        code: int = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            answers = await send_queries(node, queries)
        except KafkaError as exc:
            code = code_from_error(exc)
        # Also partitions that the broker left out of its answer get a result.
        for tp in queries:
            results[tp] = answers.get(tp, code)

    async with asyncio.TaskGroup() as group:
        for node, queries in queries_by_node.items():
            group.create_task(query_leader(node, queries))
    return results
