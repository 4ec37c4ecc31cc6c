"""What became of the records of a request: of each, and of all as one status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from gateway.errors import AccessDenied, BrokerUnavailable, KafkaError, PartitionFailed
from gateway.kafka.produce.pending_records import Item
from gateway.sidecar.http.status import RETRY_AFTER, answer, told

from .order import DENIED, DOUBTFUL, OTHERS, TOO_LARGE, UNKNOWN, UNWRITTEN, WRONG, Failure, Order

# Kafka's codes for a record that it refuses.
REFUSED = {2: WRONG, 32: WRONG, 87: WRONG, 10: TOO_LARGE, 18: TOO_LARGE, 3: UNKNOWN, 17: UNKNOWN}
WORDS = {
    WRONG: "INVALID_RECORDS",
    DENIED: "KAFKA_ACCESS_DENIED",
    UNKNOWN: "UNKNOWN_TOPIC",
    TOO_LARGE: "RECORDS_TOO_LARGE",
    UNWRITTEN: "KAFKA_UNAVAILABLE",
}


class NotWritten(KafkaError):
    """One of a batch that is not written because of another."""


def failure(exc: KafkaError) -> Failure:
    """Why a record was not written, or perhaps not."""
    match exc:
        case NotWritten():
            return Failure(OTHERS, str(exc))
        case AccessDenied():
            return Failure(DENIED, str(exc))
        case PartitionFailed():
            return Failure(REFUSED.get(exc.code, UNWRITTEN), str(exc))
        case BrokerUnavailable(timeout=True):
            return Failure(DOUBTFUL, str(exc))
    return Failure(UNWRITTEN, str(exc))


def one(item: Item, result: int | KafkaError) -> dict[str, Any]:
    """Of a record that was handed to Kafka."""
    if isinstance(result, int):
        return {"partition": item.tp.partition, "offset": result}
    code, error = failure(result)
    return {"partition": item.tp.partition, "errorCode": code, "error": error}


def each(order: Order, results: Sequence[int | KafkaError]) -> list[dict[str, Any]]:
    """Of all records, in the order of the request. results: of the items."""
    if not order.failures:
        return [one(*pair) for pair in zip(order.items, results, strict=True)]
    found: list[dict[str, Any]] = [{}] * order.count
    for place, item, result in zip(order.places, order.items, results, strict=True):
        found[place] = one(item, result)
    for place, (code, error) in order.failures.items():
        found[place] = {"errorCode": code, "error": error}
    return found


def status_of(offsets: Sequence[dict[str, Any]]) -> int:
    """Of the whole request: 207 where some are written, else what none of them was for."""
    codes = {record.get("errorCode", 0) for record in offsets}
    if not codes - {0}:
        return 200
    if 0 in codes:
        return 207
    if codes & {UNWRITTEN, DOUBTFUL}:
        return UNWRITTEN
    codes -= {OTHERS}
    return int(codes.pop()) if len(codes) == 1 else WRONG


def body_of(offsets: list[dict[str, Any]], schema_ids: Sequence[int | None]) -> dict[str, Any]:
    """Without those members that say that it failed."""
    status = status_of(offsets)
    key, value = schema_ids
    return {
        "offsets": offsets,
        "keySchemaId": key,
        "valueSchemaId": value,
        "key_schema_id": key,
        "value_schema_id": value,
        "requestStatus": {200: "OK", 207: "PARTIAL"}.get(status, "FAILED"),
    }


def respond(body: dict[str, Any]) -> Response:
    """The answer: with the members of a Status where no record was written."""
    offsets = body["offsets"]
    status = status_of(offsets)
    if status < 300:
        return answer(body, status)
    first = next(record for record in offsets if record.get("errorCode") != OTHERS)
    if len(offsets) == 1 or status != UNWRITTEN:
        what = str(first["error"])
    elif any(record["errorCode"] == DOUBTFUL for record in offsets):
        what = "Kafka did not answer in time, and some records may have been written"
        what = f"{what}; `offsets` says which; repeat them with their Idempotency-Key"
    else:
        what = "Kafka did not take the records; try again"
    headers = {"Retry-After": f"{RETRY_AFTER:g}"} if status == UNWRITTEN else {}
    return answer(told(status, WORDS.get(status, "FAILED"), what) | body, status, headers)
