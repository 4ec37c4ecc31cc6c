"""The value with only some of its fields, before any format sees it.

What is not asked for is not there: a value that is not a JSON object becomes null, a
tombstone stays one, key and headers are not touched. Fields stay where they are, so that a
pointer finds in the projection what it finds in the value: what stands before an element of
an array is null. Numbers stay as they are written.

Measured, 3 of 6 fields of a value of 200 bytes, once for all who want the same: 3 us; 7 us where
one of them has a fraction, since orjson does not keep its digits (`core.exact`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import orjson

from gateway.core.channel.exact_json import parse_exact
from gateway.core.channel.filters import MISSING, get_child, parse_pointer
from gateway.core.log.record import Record

from .event import Format, Payload

FieldTree: TypeAlias = Mapping[str, "FieldTree"]
"""The steps of pointers; one without steps below it is taken whole."""


def project_format(format: Format, fields: Iterable[str]) -> Format:
    """That format of the value with only these fields: JSON pointers (RFC 6901).

    Raises ValueError for a malformed pointer.
    """
    tree = _build_tree(fields)

    def of(record: Record) -> Payload:
        if record.value is None:
            return format(record)
        return format(record._replace(value=_project_value(record.value, tree)))

    return of


def _build_tree(fields: Iterable[str]) -> FieldTree:
    root: dict[str, Any] = {}
    for path in sorted(
        map(parse_pointer, fields)
    ):  # what is taken whole stands before what is below it
        at = root
        for step in path[:-1]:
            if at.get(step) == {}:
                break
            at = at.setdefault(step, {})
        else:
            at.setdefault(path[-1], {})
    return root


def _project_value(value: bytes, tree: FieldTree) -> bytes:
    try:
        parsed = orjson.loads(value)
        if not isinstance(parsed, dict):
            return b"null"
        kept = _select_fields(parsed, tree)
        if not _is_as_written(kept, value):
            kept = _select_fields(parse_exact(value, orjson.Fragment), tree)
        return b"{}" if kept is MISSING else orjson.dumps(kept)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError):
        return b"null"  # no JSON, or nested deeper (254 levels) than is written


def _select_fields(value: Any, tree: FieldTree) -> Any:
    """Of an object or array, what the tree leads to; `MISSING` if it leads nowhere."""
    if not tree:
        return value
    if not isinstance(value, (dict, list)):
        return MISSING
    found = {step: _select_fields(get_child(value, step), below) for step, below in tree.items()}
    found = {step: child for step, child in found.items() if child is not MISSING}
    if not found or isinstance(value, dict):
        return found or MISSING
    by_index = {int(step): child for step, child in found.items()}
    return [by_index.get(index) for index in range(max(by_index) + 1)]


def _is_as_written(kept: Any, data: bytes) -> bool:
    """No number in it is one that orjson may have changed: a double, or a zero that was -0."""
    left = [kept]
    for each in left:
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list):
            left += each
        elif type(each) is float or (type(each) is int and each == 0 and b"-0" in data):
            return False
    return True
