"""Describe the outcome of the records of a request: of each, and of all as one status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.responses import Response

from gateway.core.error_code import ErrorCode
from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.sidecar.http.status import (
    DEFAULT_RETRY_AFTER_S,
    StatusError,
    build_json_response,
    build_status,
)

from .encoding import (
    ACCESS_DENIED,
    DOUBTFUL,
    FAILED_DEPENDENCY,
    INVALID,
    TOO_LARGE,
    UNKNOWN_TOPIC,
    UNWRITTEN,
    EncodedRecords,
    RecordFailure,
)

# What a broker takes in one record with the default `max.message.bytes`, with some reserve.
MAX_ANSWER_BYTES = 1_000_000
MAX_OFFSET = 10**15
UNCHECKED_RECORDS = 1000  # whose answer fits, whatever becomes of them

# Kafka's error codes for a record that it refuses.
CODES_BY_KAFKA_ERROR: dict[int, int] = {
    ErrorCode.CORRUPT_MESSAGE: INVALID,
    ErrorCode.INVALID_TIMESTAMP: INVALID,
    ErrorCode.INVALID_RECORD: INVALID,
    ErrorCode.MESSAGE_TOO_LARGE: TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: TOO_LARGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_TOPIC,
    ErrorCode.INVALID_TOPIC_EXCEPTION: UNKNOWN_TOPIC,
}
WORDS_BY_STATUS = {
    INVALID: "INVALID_RECORDS",
    ACCESS_DENIED: "KAFKA_ACCESS_DENIED",
    UNKNOWN_TOPIC: "UNKNOWN_TOPIC",
    TOO_LARGE: "RECORDS_TOO_LARGE",
    UNWRITTEN: "KAFKA_UNAVAILABLE",
}


class NotWritten(KafkaError):
    """Report that a record is not written because of another one of its batch."""


def classify_failure(exc: KafkaError) -> RecordFailure:
    match exc:
        case NotWritten():
            return RecordFailure(FAILED_DEPENDENCY, str(exc))
        case AccessDenied():
            return RecordFailure(ACCESS_DENIED, str(exc))
        case PartitionFailed():
            return RecordFailure(CODES_BY_KAFKA_ERROR.get(exc.code, UNWRITTEN), str(exc))
        case BrokerUnavailable(timeout=True):
            return RecordFailure(DOUBTFUL, str(exc))
    return RecordFailure(UNWRITTEN, str(exc))


def describe_result(item: ProducerRecord, result: int | KafkaError) -> dict[str, Any]:
    if isinstance(result, int):
        return {"partition": item.tp.partition, "offset": result}
    code, error = classify_failure(result)
    return {"partition": item.tp.partition, "errorCode": code, "error": error}


def describe_results(
    encoded: EncodedRecords, results: Sequence[int | KafkaError]
) -> list[dict[str, Any]]:
    if not encoded.failures:
        return [describe_result(*pair) for pair in zip(encoded.items, results, strict=True)]
    described: list[dict[str, Any]] = [{}] * encoded.count
    for index, item, result in zip(encoded.indexes, encoded.items, results, strict=True):
        described[index] = describe_result(item, result)
    for index, (code, error) in encoded.failures.items():
        described[index] = {"errorCode": code, "error": error}
    return described


def check_answer_size(encoded: EncodedRecords) -> None:
    """Raise StatusError 413 if the answer may not fit into the record that remembers it."""
    if encoded.count <= UNCHECKED_RECORDS:
        return
    longest = describe_results(encoded, [MAX_OFFSET] * len(encoded.items))
    if len(orjson.dumps(longest)) > MAX_ANSWER_BYTES:
        raise StatusError(
            413,
            f"the answer to {encoded.count} records is too large to be remembered with an "
            "Idempotency-Key; send fewer records with a key each",
            code="RECORDS_TOO_LARGE",
        )


def combine_status(offsets: Sequence[dict[str, Any]]) -> int:
    """Return the HTTP status of a whole request.

    It is 200 if all records are written and 207 if some are. Otherwise it is 503 if Kafka did not
    take one of them, or did not say; else the code that all failures have in common; else 400.
    """
    codes = {record.get("errorCode", 0) for record in offsets}
    if not codes - {0}:
        return 200
    if 0 in codes:
        return 207
    if codes & {UNWRITTEN, DOUBTFUL}:
        return UNWRITTEN
    # Those failed because of the others, which say why.
    codes -= {FAILED_DEPENDENCY}
    return int(codes.pop()) if len(codes) == 1 else INVALID


def build_body(offsets: list[dict[str, Any]], schema_ids: Sequence[int | None]) -> dict[str, Any]:
    status = combine_status(offsets)
    key, value = schema_ids
    return {
        "offsets": offsets,
        "keySchemaId": key,
        "valueSchemaId": value,
        "key_schema_id": key,
        "value_schema_id": value,
        "requestStatus": {200: "OK", 207: "PARTIAL"}.get(status, "FAILED"),
    }


def build_response(body: dict[str, Any]) -> Response:
    offsets = body["offsets"]
    status = combine_status(offsets)
    if status < 300:
        return build_json_response(body, status)
    causes = (record for record in offsets if record.get("errorCode") != FAILED_DEPENDENCY)
    first = next(causes, offsets[0])
    if len(offsets) == 1 or status != UNWRITTEN:
        detail = str(first["error"])
    elif any(record["errorCode"] == DOUBTFUL for record in offsets):
        detail = "Kafka did not answer in time, and some records may have been written"
        detail = f"{detail}; `offsets` says which, and what to do"
    else:
        detail = "Kafka did not take the records; try again"
    headers = {"Retry-After": f"{DEFAULT_RETRY_AFTER_S:g}"} if status == UNWRITTEN else {}
    return build_json_response(
        build_status(status, WORDS_BY_STATUS.get(status, "FAILED"), detail) | body, status, headers
    )
