"""The entity tags of documents: where a record is, and how it is shown.

Offsets are not used twice in a topic, so equal tags are equal bytes: strong ones (RFC 9110 8.8.1).
What a route shows of a record, by fields or format, is a representation of its own; for
`If-Match` it is the same record all the same.
"""

from __future__ import annotations

from ..core.record import Record
from ..core.token import digest
from ..hub.view import View


def place_of(record: Record, topic_id: str) -> str:
    """Also by epoch, as an unclean election may give an offset away again."""
    return f"{record.tp.partition}.{record.offset}.{record.epoch}.{digest(topic_id).decode()}"


def tag_of(record: Record, topic_id: str, view: View) -> str:
    place = place_of(record, topic_id)
    if view.fields or view.format != "value":
        return f'"{place}/{view.digest.decode()}"'
    return f'"{place}"'


def matches(condition: str, place: str | None) -> bool:
    """Whether `If-Match` has the record at that place, None for no record; a weak tag never does
    (RFC 9110 13.1.1)."""
    if condition.strip() == "*":
        return place is not None
    tags = [each.strip() for each in condition.split(",")]
    return place is not None and any(
        tag[:1] == tag[-1:] == '"' and tag[1:-1].partition("/")[0] == place for tag in tags
    )
