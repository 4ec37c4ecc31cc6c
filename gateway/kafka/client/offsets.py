"""Look up where logs begin and end, and where leader epochs end.

All leaders are asked concurrently and each partition gets an answer of its own, so a partition
without a leader, or with a frozen one, gets an error code and the others get their offsets. The
codes are Kafka's. Failures of the connection get those that Kafka's own clients use for them, such
as LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION and REQUEST_TIMED_OUT.
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
        offset: The offset; -1 if no record is as late as the time that was asked for.
        timestamp: That of the record at the offset, in ms since 1970; -1 for LATEST and EARLIEST.
        epoch: The leader epoch of that record; -1 if it is not known.
    """

    offset: int
    timestamp: int
    epoch: int


class EpochEnd(NamedTuple):
    """The end of a leader epoch.

    Attributes:
        epoch: The largest epoch that is not above the one asked for; -1 if there is none.
        end_offset: The offset after the last record of that epoch; -1 if there is none.
    """

    epoch: int
    end_offset: int


class LeaderLookup(Protocol):
    """The part of `Cluster` that this module needs."""

    @property
    def connections(self) -> Connections:
        """Return the connections to the brokers."""
        ...

    def leader_for_partition(self, tp: TopicPartition) -> tuple[int, int] | None:
        """Return node and leader epoch of a partition; None while it has no leader."""
        ...


async def list_offsets(
    cluster: LeaderLookup,
    specs: Mapping[TopicPartition, int],
    isolation_level: int = READ_COMMITTED,
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp | int]:
    """Look up an end of logs, or the first offset at or after a time.

    Args:
        cluster: Where the leaders are.
        specs: For each partition LATEST (with READ_COMMITTED this is the last stable offset),
            EARLIEST, or a record timestamp in ms since 1970: the first offset that is at least as
            late.
        isolation_level: READ_COMMITTED or READ_UNCOMMITTED.
        timeout: Seconds to wait for each leader, in place of the cluster's request timeout.

    Returns:
        The offset of each partition, or Kafka's error code. It never raises KafkaError.
    """

    async def send_queries(
        node: int, queries: dict[TopicPartition, OffsetQuery]
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]:
        request = ListOffsetsRequest(queries, isolation_level)
        response = await cluster.connections.send(
            node, ConnectionRole.CONTROL, request, timeout=timeout
        )
        return {
            tp: error or OffsetAndTimestamp(offset, timestamp, epoch)
            for tp, (error, timestamp, offset, epoch) in response.offsets.items()
        }

    return await _query_leaders(cluster, specs, OffsetQuery, send_queries)


async def fetch_epoch_ends(
    cluster: LeaderLookup,
    epochs: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, EpochEnd | int]:
    """Look up where leader epochs ended (KIP-320).

    Args:
        timeout: Seconds to wait for each leader, in place of the cluster's request timeout.

    Returns:
        The end of each partition's epoch, or Kafka's error code. It never raises KafkaError.
    """

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
    """Ask all leaders concurrently.

    Args:
        cluster: Where the leaders are.
        values: What to look up, for each partition.
        create_query: Makes the query of a partition, of its value and its leader epoch.
        send_queries: Sends the queries of one node.

    Returns:
        The answer for each partition; an error code where the leader failed, did not mention the
        partition, or is not known.
    """
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
