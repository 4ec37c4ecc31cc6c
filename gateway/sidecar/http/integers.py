"""Turn integers that are written as 1.0 into integers.

To JSON Schema a number without a fraction is an integer. To Python it is a float, which is no index
and no integer of Kafka's protocol. Valid values are changed in place where their schema wants an
integer, and nowhere else: keys and values of records stay untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

INT64_BOUND = 2.0**63

# Takes a valid value, changes dicts and lists in place, and returns what the value is now.
Normalizer: TypeAlias = Callable[[Any], Any]


def build_normalizer(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Normalizer | None:
    """Return the normalizer of a schema, or None if the schema has no integer.

    The schema must not refer to itself: references are followed while it is built.
    """
    schema = resolve_reference(document, schema)
    member_normalizers = {}
    for name, member_schema in schema.get("properties", {}).items():
        normalizer = build_normalizer(document, member_schema)
        if normalizer is not None:
            member_normalizers[name] = normalizer
    items = build_normalizer(document, schema["items"]) if "items" in schema else None
    normalizers = [
        normalizer
        for normalizer in (
            _build_number_normalizer(schema),
            _build_members_normalizer(member_normalizers),
            _build_items_normalizer(items),
        )
        if normalizer
    ]
    # All branches of anyOf and oneOf are applied, also those that do not hold for the value: which
    # one holds is not known here, and a whole number is the same number in each of them.
    for keyword in ("allOf", "anyOf", "oneOf"):
        nested = (build_normalizer(document, branch) for branch in schema.get(keyword, ()))
        normalizers += [normalizer for normalizer in nested if normalizer is not None]
    return _chain_normalizers(normalizers)


def resolve_reference(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a local reference (`#/components/...`); any other schema is returned itself."""
    target: Any = schema
    while isinstance(target, Mapping) and "$ref" in target:
        steps = str(target["$ref"]).removeprefix("#/").split("/")
        target = document
        for step in steps:
            target = target[step.replace("~1", "/").replace("~0", "~")]  # RFC 6901 section 4
    assert isinstance(target, Mapping)
    return target


def _build_number_normalizer(schema: Mapping[str, Any]) -> Normalizer | None:
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    is_integer = "integer" in kinds and "number" not in kinds
    return _to_integer if is_integer or schema.get("multipleOf") == 1 else None


def _to_integer(value: Any) -> Any:
    """Convert a whole float to an integer within 64 bits; orjson writes no larger ones."""
    if isinstance(value, float) and value.is_integer() and abs(value) < INT64_BOUND:
        return int(value)
    return value


def _build_members_normalizer(normalizers: Mapping[str, Normalizer]) -> Normalizer | None:
    def normalize(value: Any) -> Any:
        if isinstance(value, dict):
            for name, normalizer in pairs:
                if name in value:
                    value[name] = normalizer(value[name])
        return value

    pairs = tuple(normalizers.items())
    return normalize if pairs else None


def _build_items_normalizer(item: Normalizer | None) -> Normalizer | None:
    if item is None:
        return None

    def normalize(value: Any) -> Any:
        if isinstance(value, list):
            for index, element in enumerate(value):
                value[index] = item(element)
        return value

    return normalize


def _chain_normalizers(normalizers: list[Normalizer]) -> Normalizer | None:
    def normalize(value: Any) -> Any:
        for step in normalizers:
            value = step(value)
        return value

    return normalizers[0] if len(normalizers) == 1 else normalize if normalizers else None
