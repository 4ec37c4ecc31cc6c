"""A Kafka of one broker, as far as a transactional producer sees it.

A mock, because a real coordinator cannot be told how to answer a request to commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.core.produce.outbox import ProducerIdAndEpoch
from gateway.errors import BrokerUnavailable, KafkaError
from gateway.kafka.protocol.requests import ErrorResponse, PartitionErrors
from gateway.kafka.protocol.topic_messages import (
    AddPartitionsToTxnRequest,
    AppendResult,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

NODE = 1


def lose_answer() -> KafkaError:
    """What a request raises that was done and has no answer."""
    return BrokerUnavailable("broker 1 gave no answer in time", timeout=True, retry_after=0.0)


class TransactionKafka:
    """Answers the requests to commit as it is told, and all others with success.

    answers: to the requests to commit, one after the other: a code, or what makes the error that is
    raised in place of an answer. The code 0 once there are none left.
    append_codes: The codes of the next answers to Produce; 0 once there are none left.
    cluster: What a producer needs of a `Cluster`. commits: How many requests to commit came.
    keeps_connection: Whether its connections are open after an answer.
    failure: What every request raises; None for none.
    timeouts_ms: Of transactions, by transactional id.
    silent: The type of requests that have no answer at all; None for none.
    watched: The topics that are watched by `watching`, as often as they are.
    """

    def __init__(
        self, *answers: int | Callable[[], KafkaError], keeps_connection: bool = True
    ) -> None:
        self.append_codes: list[int] = []
        self.commits = 0
        self.failure: KafkaError | None = None
        self.silent: type | None = None
        self.timeouts_ms: dict[str | None, int] = {}
        self.watched: list[str] = []
        self._answers = list(answers)
        self._connection = SimpleNamespace(is_open=keeps_connection)
        self.cluster: Any = SimpleNamespace(
            connections=self,
            metadata=SimpleNamespace(
                brokers={NODE: None},
                last_responder=NODE,
                refresh=self._refresh,
                watching=self._watch,
            ),
            settings=SimpleNamespace(request_timeout=5.0, client_id="gateway"),
            leader_for_partition=lambda tp: (NODE, 0),
        )

    async def connect(self, node: int, role: object) -> Any:
        return self._connection

    async def send(self, node: int, role: object, request: Any) -> Any:
        return await self.send_on(self._connection, request)

    async def send_on(self, connection: object, request: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        if self.silent is not None and isinstance(request, self.silent):
            await asyncio.get_running_loop().create_future()
        match request:
            case InitProducerIdRequest():
                self.timeouts_ms[request.transactional_id] = request.timeout_ms
                return InitProducerIdResponse(0, 0, ProducerIdAndEpoch(7, 0))
            case AddPartitionsToTxnRequest():
                return PartitionErrors(0, dict.fromkeys(request.tps, 0))
            case ProduceRequest():
                return self._append(request)
            case EndTxnRequest(commit=True):
                return ErrorResponse(0, self._answer_commit())
            case EndTxnRequest():  # nothing is open any more
                return ErrorResponse(0, ErrorCode.INVALID_TXN_STATE)
        return SimpleNamespace(error=0, node=NODE, host="localhost", port=9092, message="")

    def update_addresses(self, addresses: object) -> None:
        """Take the address of the coordinator, which is the only broker."""

    @contextmanager
    def _watch(self, topics: Iterable[str]) -> Iterator[None]:
        names = list(topics)
        self.watched += names
        try:
            yield
        finally:
            for name in names:
                self.watched.remove(name)

    async def _refresh(self, reason: str) -> None:
        return None

    def _append(self, request: ProduceRequest) -> ProduceResponse:
        code = self.append_codes.pop(0) if self.append_codes else 0
        results: dict[TopicPartition, AppendResult] = dict.fromkeys(
            request.batches, AppendResult(code, -1 if code else 40)
        )
        return ProduceResponse(0, results)

    def _answer_commit(self) -> int:
        self.commits += 1
        answer = self._answers.pop(0) if self._answers else 0
        if isinstance(answer, int):
            return answer
        raise answer()
