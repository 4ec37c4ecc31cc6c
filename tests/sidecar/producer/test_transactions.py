"""What is told of records that are written in one transaction."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.transaction_kafka import TransactionKafka, lose_answer

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import AuthenticationFailed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.kafka.protocol.topic_messages import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
)
from gateway.sidecar.producer.records import (
    ACCESS_DENIED,
    DOUBTFUL,
    UNWRITTEN,
    EncodedRecords,
    describe_results,
)
from gateway.sidecar.producer.transactions import TransactionPool

T = TopicPartition("t", 0)
DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def write_record(kafka: TransactionKafka, timeout_s: float = 60.0) -> dict[str, Any]:
    """Write one record in a transaction, and return what a client is told of it."""
    context: Any = SimpleNamespace(cluster=kafka.cluster)
    pool = TransactionPool(context, 30.0)
    encoded = EncodedRecords(1, [ProducerRecord(T, None, b"v", (), 1)], [0])
    (described,) = describe_results(encoded, await pool.write(encoded, timeout_s))
    await pool.close()
    return described


@pytest.mark.parametrize(
    "second",
    [
        lambda: AuthenticationFailed("broker 1 refuses the login"),
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        DENIED,
    ],
)
async def test_a_record_whose_transaction_may_be_committed_may_be_written(second):
    """It was told as not written (503, 403): the answer to the commit was lost, and the second
    attempt met another error."""
    assert (await write_record(TransactionKafka(lose_answer, second)))["errorCode"] == DOUBTFUL


async def test_a_record_whose_transaction_is_refused_is_not_written() -> None:
    assert (await write_record(TransactionKafka(DENIED)))["errorCode"] == ACCESS_DENIED


@pytest.mark.parametrize(
    ("silent", "code"),
    [
        (InitProducerIdRequest, UNWRITTEN),
        (AddPartitionsToTxnRequest, UNWRITTEN),
        (ProduceRequest, UNWRITTEN),
        (EndTxnRequest, DOUBTFUL),
    ],
)
async def test_a_record_may_be_written_only_if_the_end_of_its_transaction_was_sent(silent, code):
    """It was told as perhaps written (504), whatever had no answer in time: also where there was no
    transaction yet."""
    kafka = TransactionKafka()
    kafka.silent = silent
    described = await write_record(kafka, 0.1)
    assert described["errorCode"] == code
    assert ("it is not written" in described["error"]) == (code == UNWRITTEN)


async def test_a_record_whose_transaction_kafka_ended_before_its_commit_is_not_written() -> None:
    """It was told as perhaps written (504)."""
    kafka = TransactionKafka()
    kafka.append_codes = [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert (await write_record(kafka))["errorCode"] == UNWRITTEN


async def test_a_record_whose_transaction_is_committed_has_its_offset() -> None:
    assert await write_record(TransactionKafka()) == {"partition": 0, "offset": 40}
