"""Convert catalogs, and the models of keys and values that use them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.config.types.section import Loc

_REGISTRY_TYPES = {
    "schema-registry": "", "karapace": "", "karapace-schema-registry": "",
    # Apicurio has Confluent's API there, too.
    "apicurio": "/apis/ccompat/v7", "apicurio-registry": "/apis/ccompat/v7",
}  # fmt: skip
_PLAIN_MODELS = {
    "int32": "int", "int64": "long", "float": "float", "double": "double", "boolean": "boolean",
    "string": "string", "bytes": "bytes", "json": "json",
}  # fmt: skip
_SCHEMA_MODELS = {"avro": "avro", "protobuf": "protobuf", "json": "jsonschema"}
_SCHEMA_ID = (
    "the schema of a value is the one whose id the value begins with, as serializers of a registry "
    "write it"
)


def convert_catalogs(source: SourceValue, draft: Draft) -> Mapping[str, str]:
    types = {name: catalog.get("type").text for name, catalog in source.items()}
    for name, catalog in source.items():
        if types[name] in _REGISTRY_TYPES:
            _convert_registry(name, catalog, _REGISTRY_TYPES[types[name]], draft)
        elif types[name] in ("inline", "filesystem"):
            catalog.omit(
                "schemas come from a registry here; register these there, and add it to catalogs"
            )
        else:
            catalog.omit(f"there is no catalog of type {types[name]}; use schema-registry")
    return types


def _convert_registry(name: str, catalog: SourceValue, path: str, draft: Draft) -> None:
    section = ("catalogs", name)
    options = catalog.get("options")
    draft.comment(section, f"from catalog {name}")
    draft.carry(catalog.get("type"), *section, "type", value="schema-registry")
    url = options.get("url")
    if path:
        draft.comment((*section, "url"), "Apicurio's API for clients of Confluent's registry")
    draft.carry(url, *section, "url", value=url.text.rstrip("/") + path if path else None)
    max_age = options.get("max-age")
    draft.carry(max_age, *section, "maxAge", value=f"{max_age.text}s")
    if options.get("context").text in ("default", ""):
        options.get("context").imply("is the registry's default")
    options.get("context").omit(
        "contexts of a registry are not chosen; write it into the url", section
    )
    for option, default in (("group-id", "default"), ("id-encoding", "default")):
        if options.get(option).text == default:
            options.get(option).imply("is the registry's default")
        options.get(option).omit(
            "is the registry's default in its API for Confluent's clients", section
        )
    options.get("use-id").omit(
        "ids are those of Apicurio's API for Confluent's clients; see ENABLE_CCOMPAT of Apicurio",
        section,
    )
    if options.get("tls").exists or catalog.get("vault").exists:
        reference = draft.need_variable(
            "REGISTRY_CA", "PEM file, if the registry's authority is not a public one", ""
        )
        draft.set((*section, "tls", "ca"), reference)
        options.get("tls", "trust").carry(*section, "tls", "ca")
        options.get("tls", "trustcacerts").imply("those of the system are trusted without a file")
        options.get("tls", "keys").omit(
            "add tls.certificate and tls.key, PEM files, to the catalog", section
        )
        catalog.get("vault").omit("the gateway reads PEM files; REGISTRY_CA names one", section)
    _convert_authorization(options.get("credentials", "headers", "authorization"), section, draft)


def _convert_authorization(header: SourceValue, section: Loc, draft: Draft) -> None:
    if not header.exists:
        return
    bearer = re.fullmatch(r"Bearer\s+(\$\{env\.\w+\})", header.text)
    if bearer or not header.text.startswith("Basic"):
        description = "the bearer token for the schema registry"
        token = bearer[1] if bearer else draft.need_variable("REGISTRY_TOKEN", description)
        draft.set((*section, "token"), token)
        header.carry(*section, "token")
        return
    username = draft.need_variable("REGISTRY_USERNAME", "user name for the schema registry")
    password = draft.need_variable("REGISTRY_PASSWORD", "its password")
    draft.set((*section, "username"), username)
    draft.set((*section, "password"), password)
    header.carry(*section, "username")


def convert_model(
    source: SourceValue, target: Loc, draft: Draft, catalog_types: Mapping[str, str]
) -> None:
    """Convert the model of a key or value: a name, or a mapping with `model`."""
    written = source if isinstance(source.value, str) else source.get("model")
    name = written.text
    catalogs = [each for each, _ in source.get("catalog").items()]
    registry = next((each for each in catalogs if catalog_types.get(each) in _REGISTRY_TYPES), None)
    if name == "int32" and source.get("format").text == "text":
        name = "string"
    if registry is not None and name in _SCHEMA_MODELS:
        draft.carry(written, *target, "model", value=_SCHEMA_MODELS[name])
        draft.set((*target, "catalog"), registry)
        for item in source.get("catalog", registry):
            item.get("strategy").carry(*target, "catalog")
            for key in ("version", "subject", "id", "record", "overlay"):
                item.get(key).omit(_SCHEMA_ID, target)
    elif name in _PLAIN_MODELS:
        draft.carry(written, *target, "model", value=_PLAIN_MODELS[name])
        source.get("catalog").omit(
            "JSON is read without a schema, because the catalog is no registry; register the "
            "schema, and use model: jsonschema",
            target,
        )
    else:
        source.omit(
            f"model {name or 'none'} needs a schema registry; register the schema, add the "
            "registry to catalogs, and name it here",
            target[:-1],
        )
        return
    source.get("view").imply("clients get JSON")
    source.get("format").imply("is how the model is read")
    source.get("encoding").imply("text is UTF-8")
    source.get("validate").omit("onInvalid says what clients get of invalid bytes", target)
    for key, value in source.items():
        if key not in ("model", "catalog"):
            value.omit("the gateway checks the encoding only, or the schema of a registry", target)
