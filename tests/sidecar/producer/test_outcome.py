"""What is told of requests that are too large to be remembered."""

from __future__ import annotations

import pytest

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.errors import PartitionFailed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.producer.encoding import EncodedRecords
from gateway.sidecar.producer.outcome import (
    build_body,
    build_response,
    check_answer_size,
    describe_results,
)
from gateway.sidecar.producer.transactions import build_failures


def encode_records(count: int) -> EncodedRecords:
    record = ProducerRecord(TopicPartition("orders", 0), None, b"v", (), 1)
    return EncodedRecords(count, [record] * count, list(range(count)))


def test_an_answer_that_is_too_large_to_be_remembered_is_refused_before_the_records_are_written():
    """Its record was refused by Kafka, at each attempt, after the records were in their topic."""
    check_answer_size(encode_records(20_000))
    with pytest.raises(StatusError, match="40000 records") as refused:
        check_answer_size(encode_records(40_000))
    assert refused.value.status == 413


def test_records_are_refused_like_the_answer_that_shares_their_transaction():
    """No record was to blame, and looking for the one that was ended in a 500."""
    refused = PartitionFailed(
        "too large", topic="remembered", partition=1, code=ErrorCode.MESSAGE_TOO_LARGE
    )
    encoded = encode_records(2)
    results = describe_results(encoded, build_failures(encoded.items, refused))
    assert build_response(build_body(results, encoded.schema_ids)).status_code == 413
