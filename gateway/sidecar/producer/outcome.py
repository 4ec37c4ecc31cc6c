"""What became of the records of a request: of each, and of all as one status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import ProducerRecord
from gateway.sidecar.http.status import DEFAULT_RETRY_AFTER_S, build_json_response, build_status

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

# Kafka's codes for a record that it refuses.
CODES_BY_KAFKA_ERROR = {
    2: INVALID,
    32: INVALID,
    87: INVALID,
    10: TOO_LARGE,
    18: TOO_LARGE,
    3: UNKNOWN_TOPIC,
    17: UNKNOWN_TOPIC,
}
WORDS_BY_STATUS = {
    INVALID: "INVALID_RECORDS",
    ACCESS_DENIED: "KAFKA_ACCESS_DENIED",
    UNKNOWN_TOPIC: "UNKNOWN_TOPIC",
    TOO_LARGE: "RECORDS_TOO_LARGE",
    UNWRITTEN: "KAFKA_UNAVAILABLE",
}


class NotWritten(KafkaError):
    """One of a batch that is not written because of another."""


def classify_failure(exc: KafkaError) -> RecordFailure:
    """Why a record was not written, or perhaps not."""
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
    """Of a record that was handed to Kafka."""
    if isinstance(result, int):
        return {"partition": item.tp.partition, "offset": result}
    code, error = classify_failure(result)
    return {"partition": item.tp.partition, "errorCode": code, "error": error}


def describe_results(
    order: EncodedRecords, results: Sequence[int | KafkaError]
) -> list[dict[str, Any]]:
    """Of all records, in the order of the request. results: of the items."""
    if not order.failures:
        return [describe_result(*pair) for pair in zip(order.items, results, strict=True)]
    found: list[dict[str, Any]] = [{}] * order.count
    for place, item, result in zip(order.indexes, order.items, results, strict=True):
        found[place] = describe_result(item, result)
    for place, (code, error) in order.failures.items():
        found[place] = {"errorCode": code, "error": error}
    return found


def combine_status(offsets: Sequence[dict[str, Any]]) -> int:
    """Of the whole request: 207 where some are written, else what none of them was for."""
    codes = {record.get("errorCode", 0) for record in offsets}
    if not codes - {0}:
        return 200
    if 0 in codes:
        return 207
    if codes & {UNWRITTEN, DOUBTFUL}:
        return UNWRITTEN
    codes -= {FAILED_DEPENDENCY}
    return int(codes.pop()) if len(codes) == 1 else INVALID


def build_body(offsets: list[dict[str, Any]], schema_ids: Sequence[int | None]) -> dict[str, Any]:
    """Without those members that say that it failed."""
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
    """The answer: with the members of a Status where no record was written."""
    offsets = body["offsets"]
    status = combine_status(offsets)
    if status < 300:
        return build_json_response(body, status)
    first = next(record for record in offsets if record.get("errorCode") != FAILED_DEPENDENCY)
    if len(offsets) == 1 or status != UNWRITTEN:
        what = str(first["error"])
    elif any(record["errorCode"] == DOUBTFUL for record in offsets):
        what = "Kafka did not answer in time, and some records may have been written"
        what = f"{what}; `offsets` says which; repeat them with their Idempotency-Key"
    else:
        what = "Kafka did not take the records; try again"
    headers = {"Retry-After": f"{DEFAULT_RETRY_AFTER_S:g}"} if status == UNWRITTEN else {}
    return build_json_response(
        build_status(status, WORDS_BY_STATUS.get(status, "FAILED"), what) | body, status, headers
    )
