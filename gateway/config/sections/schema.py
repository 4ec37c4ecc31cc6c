"""Build the JSON Schema of the configuration, which editors complete and check YAML with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.config.types.fields import DURATION_PATTERN, SIZE_PATTERN, SUBSTITUTION_SCHEMA
from gateway.config.types.units import format_duration, format_share, format_size
from gateway.version import __version__

from .kafka import KAFKA_OPTIONS
from .settings import Settings
from .telemetry import SHARE_PATTERN

SCHEMA_ID = f"urn:gateway:configuration:{__version__}"

EXAMPLES: tuple[dict[str, Any], ...] = (
    {
        "kafka": {"servers": "localhost:9092", "topics": ["orders"]},
        "routes": [{"path": "/events/orders", "topic": "orders"}],
    },
    {
        "listen": {"port": 8080, "access-control": {"policy": "cross-origin"}},
        "kafka": {
            "servers": ["localhost:9092"],
            "topics": [{"name": "orders", "defaultOffset": "historical"}],
        },
        "guards": {
            "login": {"type": "jwt", "issuer": "https://login.example", "audience": "orders"}
        },
        "routes": [
            {
                "when": [{"path": "/events/{customer}"}],
                "guarded": ["login"],
                "with": {"topic": "orders", "filters": [{"key": "${params.customer}"}]},
            }
        ],
    },
)
"""Configurations for people who read the schema: the shortest one, and one with the long forms."""

# pydantic gives the defaults of these patterns as numbers; a file has them as text.
_FORMATTERS: dict[str, Callable[[Any], str]] = {
    DURATION_PATTERN: format_duration,
    SIZE_PATTERN: format_size,
    SHARE_PATTERN: format_share,
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
    _add_short_routes(schema["$defs"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "Configuration of the gateway",
        "version": __version__,
        "examples": list(EXAMPLES),
    }


def _add_short_routes(definitions: dict[str, Any]) -> None:
    """Let routes have the options of `when` and `with` themselves.

    A route without `with` is one of the short form. Its options depend on its capability.
    """
    route = definitions["Route"]
    own, path = route["properties"], definitions["When"]["properties"]
    names = [*own, *path]
    has_path = {"anyOf": [{"required": ["path"]}, {"required": ["when"]}]}
    has_topic = {"anyOf": [{"required": ["topic"]}, {"required": ["topics"]}]}
    choices = []
    for choice in own["with"]["allOf"]:
        name = choice["then"]["$ref"].rpartition("/")[2]
        options = definitions[name]["properties"]
        # The options of the route itself are checked by the route, not once more here.
        definitions[f"Short{name}"] = {
            "description": "A route in the short form.",
            "type": "object",
            "properties": options,
            "propertyNames": {"enum": [*names, *options]},
            "allOf": [has_path, has_topic],
        }
        choices.append({**choice, "then": {"$ref": f"#/$defs/Short{name}"}})
    definitions["Route"] = {
        "description": route["description"],
        "type": "object",
        "properties": {**own, **path},
        "if": {"required": ["with"]},
        "then": {"propertyNames": {"enum": names}, **has_path},
        "else": {"properties": {"capability": own["with"]["properties"]["capability"]}}
        | {"allOf": choices},
    }


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
    if option.get("type") == "array":
        return _allow_substituted_items(option)
    if option.get("type") == "object" or "$ref" in option or "if" in option:
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
    kinds = [_allow_substituted_items(kind) for kind in schema.get("anyOf", [schema])]
    return {**annotations, "anyOf": [*kinds, SUBSTITUTION_SCHEMA]}


def _allow_substituted_items(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a list whose items, if they are texts, may be substitutions."""
    items = schema.get("items")
    is_text = isinstance(items, dict) and items.get("type") == "string"
    if schema.get("type") != "array" or not is_text:
        return schema
    return {**schema, "items": {"anyOf": [items, SUBSTITUTION_SCHEMA]}}
