"""Build the JSON Schema of the configuration, which editors complete and check YAML with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.config.types.fields import DURATION_PATTERN, SIZE_PATTERN, SUBSTITUTION_SCHEMA
from gateway.config.types.units import format_duration, format_size

from .kafka import KAFKA_OPTIONS
from .settings import Settings

# pydantic gives the defaults of these patterns as numbers; a file has them as text.
_FORMATTERS: dict[str, Callable[[Any], str]] = {
    DURATION_PATTERN: format_duration,
    SIZE_PATTERN: format_size,
}


def build_json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration file.

    Options that are a single value also accept a substitution such as `${env.NAME}`.
    """
    schema = Settings.model_json_schema(by_alias=True, mode="validation")
    for section in (schema, *schema.get("$defs", {}).values()):
        for name, option in section.get("properties", {}).items():
            option.pop("title", None)  # pydantic's title only repeats the name
            section["properties"][name] = _allow_substitution(option)
    schema["properties"]["kafka"] = _discriminate_clusters(schema["properties"]["kafka"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _discriminate_clusters(option: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of `kafka` that decides by its keys between one cluster and several.

    With `anyOf`, an editor would report every problem at `kafka`, not at the option that has it.
    """
    single, named = option["anyOf"][:2]
    has_names = {"propertyNames": {"not": {"enum": sorted(KAFKA_OPTIONS)}}, "minProperties": 1}
    annotations = {"description": option["description"]}
    return {**annotations, "if": {"type": "object", **has_names}, "then": named, "else": single}


def _allow_substitution(option: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an option that also accepts a substitution.

    `description` and `default` stay outside of `anyOf`, where editors find them.
    """
    if option.get("type") in ("array", "object") or "$ref" in option:
        return option
    annotations: dict[str, Any] = {
        key: option[key] for key in ("description", "default") if key in option
    }
    schema = {key: value for key, value in option.items() if key not in annotations}
    if (
        isinstance(annotations.get("default"), (int, float))
        and schema.get("pattern") in _FORMATTERS
    ):
        annotations["default"] = _FORMATTERS[schema["pattern"]](annotations["default"])
    if schema.get("type") == "string" and not schema.keys() & {
        "pattern",
        "enum",
        "const",
    }:
        return option
    return {**annotations, "anyOf": [*schema.get("anyOf", [schema]), SUBSTITUTION_SCHEMA]}
