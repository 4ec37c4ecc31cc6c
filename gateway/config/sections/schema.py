"""The JSON Schema of the configuration, for editors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.config.types.fields import DURATION_PATTERN, SIZE_PATTERN
from gateway.config.types.units import format_duration, format_size

from .kafka import KAFKA_OPTIONS
from .settings import Settings

_SUBSTITUTION = {"type": "string", "pattern": r"\$\{(env\.|file:)"}


_FORMATTERS: dict[str, Callable[[Any], str]] = {
    DURATION_PATTERN: format_duration,
    SIZE_PATTERN: format_size,
}


def build_json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. Where a value is no free text, `${env.NAME}` may stand for it."""
    made = Settings.model_json_schema(by_alias=True, mode="validation")
    for section in (made, *made.get("$defs", {}).values()):
        for name, option in section.get("properties", {}).items():
            option.pop("title", None)
            section["properties"][name] = _allow_substitution(option)
    made["properties"]["kafka"] = _discriminate_clusters(made["properties"]["kafka"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def _discriminate_clusters(option: dict[str, Any]) -> dict[str, Any]:
    """Told apart by the names, so that an editor tells what is wrong in its own place."""
    one, named = option["anyOf"][:2]
    names = {"propertyNames": {"not": {"enum": sorted(KAFKA_OPTIONS)}}, "minProperties": 1}
    about = {"description": option["description"]}
    return {**about, "if": {"type": "object", **names}, "then": named, "else": one}


def _allow_substitution(option: dict[str, Any]) -> dict[str, Any]:
    """An option that also takes a substitution; what describes it stays outside."""
    if option.get("type") in ("array", "object") or "$ref" in option:
        return option
    about: dict[str, Any] = {
        key: option[key] for key in ("description", "default") if key in option
    }
    rest = {key: value for key, value in option.items() if key not in about}
    if isinstance(about.get("default"), (int, float)) and rest.get("pattern") in _FORMATTERS:
        about["default"] = _FORMATTERS[rest["pattern"]](about["default"])
    if rest.get("type") == "string" and not rest.keys() & {"pattern", "enum", "const"}:
        return option
    return {**about, "anyOf": [*rest.get("anyOf", [rest]), _SUBSTITUTION]}
