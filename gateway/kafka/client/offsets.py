"""Where logs begin and end: asked of every leader at once, answered per partition.

One leaderless or frozen broker costs its own partitions an error code, never the others
their answer. Codes are Kafka's; what happened on the way is told by its words for it:
LEADER_NOT_AVAILABLE, NETWORK_EXCEPTION, REQUEST_TIMED_OUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    KafkaError,
    UnknownTopic,
)
from gateway.kafka.protocol.offset_messages import (
    EpochQuery,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetQuery,
)

from .connections import ConnectionRole, Connections

LATEST = -1
EARLIEST = -2

UNKNOWN_SERVER_ERROR = -1  # UNKNOWN_SERVER_ERROR
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
REQUEST_TIMED_OUT = 7
NETWORK_EXCEPTION = 13
TOPIC_AUTHORIZATION_FAILED = 29
SASL_AUTHENTICATION_FAILED = 58

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

T = TypeVar("T")
A = TypeVar("A")


class OffsetAndTimestamp(NamedTuple):
    """offset -1: no record is that late. timestamp in ms, -1 for LATEST and EARLIEST."""

    offset: int
    timestamp: int
    epoch: int


class EpochEnd(NamedTuple):
    """The largest epoch not above the one asked for, and its end offset; -1, -1: unknown."""

    epoch: int
    end_offset: int


class LeaderLookup(Protocol):
    """What is needed of a cluster."""

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
    """The offset of each spec, or an error code.

    specs: LATEST (with READ_COMMITTED the last stable offset), EARLIEST, or ms of a record
           timestamp: the first offset that is at least as late.
    """

    async def ask(
        node: int, part: dict[TopicPartition, OffsetQuery]
    ) -> dict[TopicPartition, OffsetAndTimestamp | int]:
        request = ListOffsetsRequest(part, isolation_level)
        answer = await cluster.connections.send(
            node, ConnectionRole.CONTROL, request, timeout=timeout
        )
        return {
            tp: error or OffsetAndTimestamp(offset, timestamp, epoch)
            for tp, (error, timestamp, offset, epoch) in answer.offsets.items()
        }

    return await _query_leaders(cluster, specs, OffsetQuery, ask)


async def fetch_epoch_ends(
    cluster: LeaderLookup,
    epochs: Mapping[TopicPartition, int],
    *,
    timeout: float | None = None,
) -> dict[TopicPartition, EpochEnd | int]:
    """Where each leader epoch ended (KIP-320), or an error code."""

    async def ask(
        node: int, part: dict[TopicPartition, EpochQuery]
    ) -> dict[TopicPartition, EpochEnd | int]:
        request = OffsetForLeaderEpochRequest(part)
        answer = await cluster.connections.send(
            node, ConnectionRole.CONTROL, request, timeout=timeout
        )
        return {
            tp: error or EpochEnd(epoch, end)
            for tp, (error, epoch, end) in answer.end_offsets.items()
        }

    return await _query_leaders(cluster, epochs, EpochQuery, ask)


async def _query_leaders(
    cluster: LeaderLookup,
    values: Mapping[TopicPartition, int],
    create_query: Callable[[int, int], A],
    send_queries: Callable[
        [int, dict[TopicPartition, A]], Coroutine[Any, Any, dict[TopicPartition, T | int]]
    ],
) -> dict[TopicPartition, T | int]:
    """Ask every leader concurrently; one that fails answers with a code for its partitions."""
    answers: dict[TopicPartition, T | int] = {}
    parts: dict[int, dict[TopicPartition, A]] = {}
    for tp, value in values.items():
        leader = cluster.leader_for_partition(tp)
        if leader is None:
            answers[tp] = LEADER_NOT_AVAILABLE
        else:
            node, epoch = leader
            parts.setdefault(node, {})[tp] = create_query(value, epoch)

    async def one(node: int, part: dict[TopicPartition, A]) -> None:
        answered: dict[TopicPartition, T | int] = {}
        code = UNKNOWN_SERVER_ERROR
        try:
            answered = await send_queries(node, part)
        except KafkaError as exc:
            code = code_from_error(exc)
        for tp in part:
            answers[tp] = answered.get(tp, code)

    async with asyncio.TaskGroup() as group:
        for node, part in parts.items():
            group.create_task(one(node, part))
    return answers


def code_from_error(error: KafkaError) -> int:
    """Kafka's code for what kept a request from being answered."""
    match error:
        case BrokerUnavailable(timeout=True):
            return REQUEST_TIMED_OUT
        case BrokerUnavailable():
            return NETWORK_EXCEPTION
        case AuthenticationFailed():
            return SASL_AUTHENTICATION_FAILED
        case AccessDenied():
            return TOPIC_AUTHORIZATION_FAILED
        case UnknownTopic():
            return UNKNOWN_TOPIC_OR_PARTITION
        case _:
            return UNKNOWN_SERVER_ERROR
