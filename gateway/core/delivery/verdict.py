"""What a back end's answer to a batch of records means.

Three things may have happened. It answered, record by record. It is away: busy, restarting, not
there, or not set up, which is nobody's fault in the batch, so nothing but trying again helps.
Or the batch is suspect: something in it may be what the back end stumbles over. Only statuses
that speak of the request itself, or of the work on it (500), count as that; every other one,
404 and 401 of a wrong path or a lacking secret included, is a back end that is away: a slip in
its set-up must not empty a topic into the dead letters. Sans-I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import orjson

from gateway.core.log.record import Record

SUSPECT_STATUSES = frozenset({400, 409, 413, 422, 500})
TOO_LARGE_STATUS = 413
UNEXPLAINED_REASON = "the back end did not process the record, and gave no stacktrace"


class RecordResult(NamedTuple):
    """What became of one record. hopeless: trying again cannot help, as with bytes that are not
    what the topic's format says."""

    is_processed: bool
    reason: str = ""
    is_permanent: bool = False


class BatchResults(NamedTuple):
    """An item for each record, in the order they were sent in."""

    results: Sequence[RecordResult]


class BackendUnavailable(NamedTuple):
    """retry_after: seconds, as the back end asked. late: it took the batch, and was not through
    with it in time."""

    reason: str
    retry_after: float = 0.0
    is_late: bool = False


class SuspectBatch(NamedTuple):
    """too_large: the same batch again is of no use, a smaller one may be."""

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
) -> Verdict:
    """Of an HTTP answer. accept_empty: success without a body means that all are processed."""
    if status in SUSPECT_STATUSES:
        return SuspectBatch(
            f"the back end says {status}: {_format_body(body)}", status == TOO_LARGE_STATUS
        )
    if not 200 <= status < 300:
        return BackendUnavailable(f"the back end says {status}: {_format_body(body)}", retry_after)
    if not body.strip():
        if accept_empty:
            return BatchResults([RecordResult(True)] * len(sent))
        return SuspectBatch(f"the back end says {status} and nothing of the records")
    try:
        return BatchResults(_parse_items(orjson.loads(body), sent))
    except orjson.JSONDecodeError:
        return SuspectBatch(f"the back end's answer is not JSON: {_format_body(body)}")
    except ValueError as wrong:
        return SuspectBatch(str(wrong))


def _parse_items(answer: Any, sent: Sequence[Record]) -> Sequence[RecordResult]:
    """Raises ValueError saying what is wrong with it."""
    if not isinstance(answer, list):
        raise ValueError("the back end's answer is no array; answer with an item for each record")
    if len(answer) != len(sent):
        what = f"the back end answered {len(answer)} items for {len(sent)} records"
        raise ValueError(f"{what}; answer with an item for each record")
    for number, item in enumerate(answer):
        if not isinstance(item, Mapping) or not isinstance(item.get("processed"), bool):
            what = "has no 'processed' that is true or false"
            raise ValueError(f"item {number} of the back end's answer {what}")
    return [_parse_item(item) for item in _order_items(answer, sent)]


def _order_items(
    answer: Sequence[Mapping[str, Any]], sent: Sequence[Record]
) -> Sequence[Mapping[str, Any]]:
    """Return the items in the order of the records that they are about.

    Items that name their records may come in any order; where none does, they are taken by their
    place. Raises ValueError where some do and others do not, or name records that were not sent.
    """
    named = [_parse_record_id(number, item) for number, item in enumerate(answer)]
    if all(place is None for place in named):
        return answer
    if None in named:
        what = "only some items of the back end's answer name their records"
        raise ValueError(f"{what}; name topic, partition and offset in all of them, or in none")
    asked = [(record.tp.topic, record.tp.partition, record.offset) for record in sent]
    if named == asked:
        return answer
    by_place = dict(zip(named, answer, strict=True))
    try:
        return [by_place[place] for place in asked]
    except KeyError:
        raise ValueError("the back end answered for records that it was not sent") from None


def _parse_record_id(number: int, item: Mapping[str, Any]) -> tuple[str, int, int] | None:
    """Return which record an item names, None for none. Raises ValueError where it cannot be
    told."""
    record = item.get("record")
    if record is None:
        return None
    if isinstance(record, Mapping):
        topic, partition, offset = (record.get(name) for name in ("topic", "partition", "offset"))
        if topic is None and partition is None and offset is None:
            return None
        whole = _parse_integer(partition), _parse_integer(offset)
        if isinstance(topic, str) and whole[0] is not None and whole[1] is not None:
            return topic, whole[0], whole[1]
    what = f"the 'record' of item {number} of the back end's answer"
    raise ValueError(f"{what} is not understood; give it topic, partition and offset, or none")


def _parse_integer(value: Any) -> int | None:
    """Return a whole number, also one written as text, as Protobuf's JSON does of 64 bits."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
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
