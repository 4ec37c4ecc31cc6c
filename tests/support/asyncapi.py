"""AsyncAPI documents held against the standard's own schema.

asyncapi-3.0.0.schema.json is `schemas/3.0.0-without-$id.json` of npm's
@asyncapi/specs 6.11.1 (Apache-2.0), without its descriptions and examples. What a schema cannot
say is looked at here: references, and which message is of which channel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator, Draft201909Validator

_SCHEMA_PATH = Path(__file__).parent / "asyncapi-3.0.0.schema.json"


def find_faults(document: Any) -> list[str]:
    """What is wrong with it; nothing, if all is well."""
    standard = Draft7Validator(json.loads(_SCHEMA_PATH.read_text()))
    found = [f"{list(e.path)}: {e.message[:200]}" for e in standard.iter_errors(document)]
    for ref in {node["$ref"] for node in _iter_nodes(document) if "$ref" in node}:
        if resolve_reference(document, ref) is None:
            found.append(f"{ref} is nowhere")
    for name, channel in document["channels"].items():
        named = set(re.findall(r"\{(\w+)\}", channel["address"]))
        if named != set(channel.get("parameters", ())):
            found.append(f"{name}: parameters are not those of {channel['address']}")
    for name, operation in document["operations"].items():
        for each in (operation, operation.get("reply", {})):
            start = each.get("channel", {}).get("$ref", "") + "/messages/"
            if any(not one["$ref"].startswith(start) for one in each.get("messages", ())):
                found.append(f"{name}: a message of another channel")
    return found


def resolve_reference(document: Any, reference: str) -> Any:
    """What a reference within the document is about; None if it is about nothing."""
    found = document
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def get_messages(document: Any, operation: str) -> dict[str, Any]:
    """The messages of an operation, by their names; the names must tell them apart."""
    told: dict[str, Any] = {}
    for one in document["operations"][operation]["messages"]:
        message = resolve_reference(document, resolve_reference(document, one["$ref"])["$ref"])
        assert message["name"] not in told, f"{operation} has two messages {message['name']}"
        told[message["name"]] = message
    return told


def check_payload(document: Any, message: Any, payload: Any) -> None:
    """AssertionError unless the payload is as published, without a member that is not."""
    strict = {
        "allOf": [message["payload"]],
        "components": document["components"],
        **(
            {"unevaluatedProperties": False}
            if _is_closed_schema(document, message["payload"])
            else {}
        ),
    }
    errors = [each.message for each in Draft201909Validator(strict).iter_errors(payload)]
    assert not errors, (message["name"], payload, errors)


def _is_closed_schema(document: Any, schema: Any) -> bool:
    """It names members; `value` is whatever it is."""
    if "$ref" in schema:
        return _is_closed_schema(document, resolve_reference(document, schema["$ref"]))
    return "properties" in schema or any(
        _is_closed_schema(document, s) for s in schema.get("allOf", ())
    )


def _iter_nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for each in node.values():
            yield from _iter_nodes(each)
    elif isinstance(node, list):
        for each in node:
            yield from _iter_nodes(each)
