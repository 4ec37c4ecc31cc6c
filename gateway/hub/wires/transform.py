"""Keys and headers taken from a record's value, before filters look at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.config import Transform
from gateway.core.log.record import Entry, Record


def header_names(transforms: Sequence[Transform]) -> frozenset[str]:
    """Return the names of all headers that transforms set, in lower case."""
    return frozenset(name.lower() for each in transforms for name in each.extract_headers)


class Transformer:
    """The `transforms` of a topic. A value that is not JSON, or lacks a field, changes nothing."""

    def __init__(self, transforms: Sequence[Transform]) -> None:
        self._transforms = transforms

    def __call__(self, entry: Entry) -> Entry:
        if type(entry) is not Record or entry.value is None:
            return entry
        try:
            value: Any = orjson.loads(entry.value)
        except orjson.JSONDecodeError:
            return entry
        return self._extract_fields(entry, value)

    def _extract_fields(self, record: Record, value: Any) -> Record:
        key, headers = record.key, list(record.headers)
        for transform in self._transforms:
            if transform.extract_key is not None:
                found = transform.extract_key.extract(record.key, value)
                key = key if found is None else found.encode()
            for name, template in transform.extract_headers.items():
                found = template.extract(record.key, value)
                if found is not None:
                    headers.append((name, found.encode()))
        return record._replace(key=key, headers=tuple(headers))
