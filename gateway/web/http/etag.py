"""The entity tags of documents: where a record is, and how it is shown.

Offsets are not used twice in a topic, so equal tags are equal bytes: strong ones (RFC 9110 8.8.1).
What a route shows of a record, by fields or format, is a representation of its own; for
`If-Match` it is the same record all the same.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from gateway.core.log.record import Record
from gateway.hub.fanout.view import View


def build_record_id(record: Record, topic_id: str) -> str:
    """Also by epoch, as an unclean election may give an offset away again."""
    return f"{record.tp.partition}.{record.offset}.{record.epoch}.{topic_id}"


def build_etag(record: Record, topic_id: str, view: View) -> str:
    place = build_record_id(record, topic_id)
    if view.fields or view.format != "value":
        return f'"{place}/{_hash_representation(view.format, view.binary, view.fields)}"'
    return f'"{place}"'


@lru_cache(256)  # of what routes and clients choose, most choose alike
def _hash_representation(format: str, binary: str, fields: tuple[str, ...]) -> str:
    """128 bits: that two of them are one is not to be had by chance, nor by choice of fields."""
    return sha256(repr((format, binary, fields)).encode()).hexdigest()[:32]


def matches_if_match(condition: str, record_id: str | None) -> bool:
    """Whether `If-Match` has the record at that place, None for no record; a weak tag never does
    (RFC 9110 13.1.1)."""
    if condition.strip() == "*":
        return record_id is not None
    tags = [each.strip() for each in condition.split(",")]
    return record_id is not None and any(
        tag[:1] == tag[-1:] == '"' and tag[1:-1].partition("/")[0] == record_id for tag in tags
    )
