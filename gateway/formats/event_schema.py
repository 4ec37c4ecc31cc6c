"""Describe the data of events as JSON Schema, for documents.

Schemas are open: members that are not named here may be added, and clients must ignore them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]

TEXT_SCHEMA: Schema = {"type": "string"}
INTEGER_SCHEMA: Schema = {"type": "integer"}
COUNT_SCHEMA: Schema = {"type": "integer", "minimum": 0}
ANY_SCHEMA: Schema = {}


def build_object_schema(
    required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


def build_ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def make_nullable(schema: Schema) -> Schema:
    return {**schema, "type": [schema["type"], "null"]}


POSITION_SCHEMA: Schema = {
    "type": "string",
    "pattern": "^[A-Za-z0-9_-]+$",
    "description": "A resume token: give it back as Last-Event-ID or lastEventId.",
}
PARTITION_MEMBERS = {"topic": TEXT_SCHEMA, "partition": COUNT_SCHEMA}
