"""Entity tags of documents: which record is shown, and how.

Offsets are not used twice in a topic, so equal tags mean equal bytes: they are strong tags
(RFC 9110 8.8.1). The same record shown with other fields or in another format is another
representation and has another tag. Conditions of writes compare the record alone.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

from gateway.core.log.record import Record
from gateway.hub.fanout.view import View


def build_record_id(record: Record, topic_id: str) -> str:
    """Return a text that identifies a record among all records of its topic's name.

    It includes the leader epoch, as an unclean leader election may assign an offset again, and the
    topic id, as the topic may be deleted and created again.
    """
    return f"{record.tp.partition}.{record.offset}.{record.epoch}.{topic_id}"


def build_etag(record: Record, topic_id: str, view: View) -> str:
    """Return the strong entity tag of a record as a view shows it."""
    record_id = build_record_id(record, topic_id)
    if view.fields or view.format != "value":
        return f'"{record_id}/{_hash_representation(view.format, view.binary, view.fields)}"'
    return f'"{record_id}"'


@lru_cache(256)  # routes and clients choose among few representations
def _hash_representation(format: str, binary: str, fields: tuple[str, ...]) -> str:
    """Return 128 bits of a hash, in hexadecimal.

    They do not collide, neither by chance nor by a client's choice of fields.
    """
    return sha256(repr((format, binary, fields)).encode()).hexdigest()[:32]


def lists_record(condition: str, record_id: str | None, *, weakly: bool = False) -> bool:
    """Return whether `If-Match` or `If-None-Match` lists a record, in any representation.

    Weak tags match only if `weakly`, as in `If-None-Match` (RFC 9110 13.1.2).
    """
    if condition.strip() == "*":
        return record_id is not None
    tags = [tag.strip() for tag in condition.split(",")]
    if weakly:
        tags = [tag.removeprefix("W/") for tag in tags]
    return record_id is not None and any(
        tag[:1] == tag[-1:] == '"' and tag[1:-1].partition("/")[0] == record_id for tag in tags
    )
