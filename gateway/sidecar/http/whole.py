"""Integers that are written as 1.0.

To JSON Schema a number without a fraction is an integer, to Python it is a float, which is no index
and does not go into Kafka's bytes. What is valid is put right in place, where its schema wants an
integer, and nowhere else: what is in keys and values of records is none of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

MOST = 2.0**63

Fix: TypeAlias = Callable[[Any], Any]
"""Of a valid value; changes dicts and lists in place, and gives back what the value is now."""


def whole(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Fix | None:
    """None where a schema has no integer. It must not hold itself."""
    schema = resolved(document, schema)
    named = {}
    for name, member in schema.get("properties", {}).items():
        fix = whole(document, member)
        if fix is not None:
            named[name] = fix
    items = whole(document, schema["items"]) if "items" in schema else None
    fixes = [each for each in (_number(schema), _members(named), _items(items)) if each]
    for kind in ("allOf", "anyOf", "oneOf"):
        found = (whole(document, each) for each in schema.get(kind, ()))
        fixes += [fix for fix in found if fix is not None]
    return _all(fixes)


def resolved(document: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a reference leads to."""
    found: Any = given
    while isinstance(found, Mapping) and "$ref" in found:
        steps = str(found["$ref"]).removeprefix("#/").split("/")
        found = document
        for step in steps:
            found = found[step.replace("~1", "/").replace("~0", "~")]
    assert isinstance(found, Mapping)
    return found


def _number(schema: Mapping[str, Any]) -> Fix | None:
    kinds = schema.get("type", ())
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    wanted = "integer" in kinds and "number" not in kinds
    return _integer if wanted or schema.get("multipleOf") == 1 else None


def _integer(value: Any) -> Any:
    """Within 64 bits, that is: orjson writes no others, and reads them as floats."""
    if isinstance(value, float) and value.is_integer() and abs(value) < MOST:
        return int(value)
    return value


def _members(named: Mapping[str, Fix]) -> Fix | None:
    def fix(value: Any) -> Any:
        if isinstance(value, dict):
            for name, each in pairs:
                if name in value:
                    value[name] = each(value[name])
        return value

    pairs = tuple(named.items())
    return fix if pairs else None


def _items(item: Fix | None) -> Fix | None:
    if item is None:
        return None

    def fix(value: Any) -> Any:
        if isinstance(value, list):
            for index, each in enumerate(value):
                value[index] = item(each)
        return value

    return fix


def _all(fixes: list[Fix]) -> Fix | None:
    def fix(value: Any) -> Any:
        for each in fixes:
            value = each(value)
        return value

    return fixes[0] if len(fixes) == 1 else fix if fixes else None
