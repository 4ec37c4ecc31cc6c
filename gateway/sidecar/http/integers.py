"""Integers that are written as 1.0.

To JSON Schema a number without a fraction is an integer, to Python it is a float, which is no index
and does not go into Kafka's bytes. What is valid is put right in place, where its schema wants an
integer, and nowhere else: what is in keys and values of records is none of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

INT64_BOUND = 2.0**63

Normalizer: TypeAlias = Callable[[Any], Any]
"""Of a valid value; changes dicts and lists in place, and gives back what the value is now."""


def build_normalizer(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Normalizer | None:
    """None where a schema has no integer. It must not hold itself."""
    schema = resolve_reference(document, schema)
    named = {}
    for name, member in schema.get("properties", {}).items():
        fix = build_normalizer(document, member)
        if fix is not None:
            named[name] = fix
    items = build_normalizer(document, schema["items"]) if "items" in schema else None
    fixes = [
        each
        for each in (
            _build_number_normalizer(schema),
            _build_members_normalizer(named),
            _build_items_normalizer(items),
        )
        if each
    ]
    for kind in ("allOf", "anyOf", "oneOf"):
        found = (build_normalizer(document, each) for each in schema.get(kind, ()))
        fixes += [fix for fix in found if fix is not None]
    return _chain_normalizers(fixes)


def resolve_reference(document: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference leads to."""
    found: Any = given
    while isinstance(found, Mapping) and "$ref" in found:
        steps = str(found["$ref"]).removeprefix("#/").split("/")
        found = document
        for step in steps:
            found = found[step.replace("~1", "/").replace("~0", "~")]
    assert isinstance(found, Mapping)
    return found


def _build_number_normalizer(schema: Mapping[str, Any]) -> Normalizer | None:
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    wanted = "integer" in kinds and "number" not in kinds
    return _to_integer if wanted or schema.get("multipleOf") == 1 else None


def _to_integer(value: Any) -> Any:
    """Within 64 bits, that is: orjson writes no others, and reads them as floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < INT64_BOUND:
        return int(value)
    return value


def _build_members_normalizer(named: Mapping[str, Normalizer]) -> Normalizer | None:
    def normalize(value: Any) -> Any:
        if isinstance(value, dict):
            for name, each in pairs:
                if name in value:
                    value[name] = each(value[name])
        return value

    pairs = tuple(named.items())
    return normalize if pairs else None


def _build_items_normalizer(item: Normalizer | None) -> Normalizer | None:
    if item is None:
        return None

    def normalize(value: Any) -> Any:
        if isinstance(value, list):
            for index, each in enumerate(value):
                value[index] = item(each)
        return value

    return normalize


def _chain_normalizers(fixes: list[Normalizer]) -> Normalizer | None:
    def normalize(value: Any) -> Any:
        for each in fixes:
            value = each(value)
        return value

    return fixes[0] if len(fixes) == 1 else normalize if fixes else None
