"""Extract keys and headers from records' values, before filters look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from gateway.config import Transform
from gateway.core.channel.exact_json import parse_json
from gateway.core.log.record import Entry, Record


def header_names(transforms: Sequence[Transform]) -> frozenset[str]:
    """Return the names of all headers that transforms set, in lower case."""
    return frozenset(name.lower() for transform in transforms for name in transform.extract_headers)


class Transformer:
    """Apply the `transforms` of a topic to its entries.

    A value that has no such field changes nothing, nor does one that is not JSON, of which
    `on_unreadable` is told.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        on_unreadable: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self._transforms = transforms
        self._on_unreadable = on_unreadable

    def __call__(self, entry: Entry) -> Entry:
        if type(entry) is not Record or entry.value is None:
            return entry
        try:
            value: Any = parse_json(entry.value)
        except orjson.JSONDecodeError:
            self._on_unreadable(entry)
            return entry
        return self._extract_fields(entry, value)

    def _extract_fields(self, record: Record, value: Any) -> Record:
        key, headers = record.key, list(record.headers)
        for transform in self._transforms:
            if transform.extract_key is not None:
                content = transform.extract_key.extract(record.key, value)
                key = key if content is None else content.encode()
            for name, template in transform.extract_headers.items():
                content = template.extract(record.key, value)
                if content is not None:
                    headers.append((name, content.encode()))
        return record._replace(key=key, headers=tuple(headers))
