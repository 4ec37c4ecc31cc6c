"""Judge a back end's answer to a batch of records.

There are three possibilities. The back end answered record by record. Or it is unavailable: busy,
restarting, unreachable or not set up, for which no record is to blame, so that only trying again
helps. Or the batch is suspect: something in it may be the cause of the failure.

Only statuses that speak about the request itself, or about the work on it (500), make a batch
suspect. Every other status counts as unavailable, including the 404 of a wrong path and the 401 of
a missing secret: a mistake in the set-up must not empty a topic into the dead letters. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from gateway.core.channel.exact_json import parse_json
from gateway.core.log.record import Record

SUSPECT_STATUSES = frozenset({400, 409, 413, 422, 500})
TOO_LARGE_STATUS = 413  # Content Too Large, RFC 9110 15.5.14
NO_CONTENT_STATUS = 204  # whose head is all of it, RFC 9112 6.3
UNEXPLAINED_REASON = "the back end did not process the record, and gave no stacktrace"


class RecordResult(NamedTuple):
    is_processed: bool
    reason: str = ""
    is_permanent: bool = False


class BatchResults(NamedTuple):
    results: Sequence[RecordResult]


class BackendUnavailable(NamedTuple):
    """The back end cannot process anything now, for which the batch is not to blame.

    Attributes:
        retry_after: The shortest delay before a retry that the back end asked for, in seconds.
        is_late: It took the batch and did not answer in time, or broke off a large one: a smaller
            one may do.
    """

    reason: str
    retry_after: float = 0.0
    is_late: bool = False


class SuspectBatch(NamedTuple):
    """Something in the batch may be the cause of the failure, such as its size."""

    reason: str
    is_too_large: bool = False


Verdict: TypeAlias = BatchResults | BackendUnavailable | SuspectBatch


def judge_response(
    status: int,
    body: bytes,
    sent: Sequence[Record],
    *,
    accept_empty: bool = False,
    retry_after: float = 0.0,
    may_be_cut: bool = False,
) -> Verdict:
    """Return the meaning of an HTTP response to a batch.

    Args:
        accept_empty: A success without a body means that all records are processed.
        may_be_cut: Nothing but the end of the connection says where the body ends.
    """
    if status in SUSPECT_STATUSES:
        return SuspectBatch(
            f"the back end says {status}: {_format_body(body)}", status == TOO_LARGE_STATUS
        )
    if not 200 <= status < 300:
        return BackendUnavailable(f"the back end says {status}: {_format_body(body)}", retry_after)
    if not body.strip() and (not may_be_cut or status == NO_CONTENT_STATUS):
        if accept_empty:
            return BatchResults([RecordResult(True)] * len(sent))
        return SuspectBatch(f"the back end says {status} and nothing of the records")
    try:
        return BatchResults(_parse_items(parse_json(body), sent))
    except orjson.JSONDecodeError:
        if may_be_cut:
            return BackendUnavailable(f"the back end's answer broke off: {_format_body(body)}")
        return SuspectBatch(f"the back end's answer is not JSON: {_format_body(body)}")
    except ValueError as exc:
        return SuspectBatch(str(exc))


def _parse_items(answer: Any, sent: Sequence[Record]) -> Sequence[RecordResult]:
    if not isinstance(answer, list):
        raise ValueError("the back end's answer is not an array; answer with an item per record")
    if len(answer) != len(sent):
        raise ValueError(
            f"the back end answered {len(answer)} items for {len(sent)} records; "
            "answer with an item for each record"
        )
    for number, item in enumerate(answer):
        if not isinstance(item, Mapping) or not isinstance(item.get("processed"), bool):
            raise ValueError(
                f"item {number} of the back end's answer has no 'processed' that is true or false"
            )
    return [_parse_item(item) for item in _order_items(answer, sent)]


def _order_items(
    answer: Sequence[Mapping[str, Any]], sent: Sequence[Record]
) -> Sequence[Mapping[str, Any]]:
    """Return the items in the order of the records, or raise ValueError.

    Items that name their records may be in any order. If none does, they are in order.
    """
    answered_ids = [_parse_record_id(number, item) for number, item in enumerate(answer)]
    if all(record_id is None for record_id in answered_ids):
        return answer
    if None in answered_ids:
        raise ValueError(
            "only some items of the back end's answer name their records; "
            "name topic, partition and offset in all of them, or in none"
        )
    sent_ids = [(record.tp.topic, record.tp.partition, record.offset) for record in sent]
    if answered_ids == sent_ids:
        return answer
    # Both have the same length, so an id that was answered twice leaves another one missing.
    by_id = dict(zip(answered_ids, answer, strict=True))
    try:
        return [by_id[record_id] for record_id in sent_ids]
    except KeyError:
        raise ValueError("the back end answered for records that it was not sent") from None


def _parse_record_id(number: int, item: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """Return the topic, partition and offset that an item names; None if it names none."""
    record = item.get("record")
    if record is None:
        return None
    if isinstance(record, Mapping):
        topic, partition, offset = (record.get(name) for name in ("topic", "partition", "offset"))
        if topic is None and partition is None and offset is None:
            return None
        partition, offset = _parse_integer(partition), _parse_integer(offset)
        if isinstance(topic, str) and partition is not None and offset is not None:
            return topic, partition, offset
    raise ValueError(
        f"the 'record' of item {number} of the back end's answer is not understood; "
        "give it topic, partition and offset, or leave it out"
    )


def _parse_integer(value: Any) -> int | None:
    """Return a whole number, also of text, as Protobuf's JSON writes 64-bit numbers."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    # An offset has at most 19 digits; int() of a long text takes quadratic time.
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return None


def _parse_item(item: Mapping[str, Any]) -> RecordResult:
    if item["processed"]:
        return RecordResult(True)
    trace = item.get("stacktrace") or item.get("stackTrace") or item.get("error")
    return RecordResult(False, trace if isinstance(trace, str) else UNEXPLAINED_REASON)


def _format_body(body: bytes) -> str:
    text = body[:2000].decode(errors="replace").strip()
    return text or "(nothing)"
