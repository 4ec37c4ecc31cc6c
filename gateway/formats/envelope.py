"""The format `envelope`: the whole record as one JSON object, exact to the byte.

`{"topic", "partition", "offset", "timestamp", "key", "value", "headers": [[name, value]]}`
with the timestamp in milliseconds (-1: none) and every key and value, of headers too, by
the rule of `formats.event`. A tombstone is the event `delete` with the same object, its
value null.
"""

from __future__ import annotations

import orjson

from gateway.core.log.record import Record

from .event import DELETE_EVENT, Payload, bytes_to_json


def encode_envelope(record: Record) -> Payload:
    (topic, partition), offset, _, timestamp, key, value, headers = record
    data = orjson.dumps(
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": timestamp,
            "key": bytes_to_json(key),
            "value": bytes_to_json(value),
            "headers": [(name, bytes_to_json(content)) for name, content in headers],
        }
    )
    return (DELETE_EVENT if value is None else None), data
