"""Convert how the keys and values of a channel are encoded."""

from __future__ import annotations

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.config.types.section import Loc

from .document import Channel, Document
from .servers import CATALOG

_REST = (
    "schemas come from a registry; register the payload there, and use model: jsonschema, avro or "
    "protobuf. The rest of a message is documentation"
)
_MANY = "its messages have several encodings; set value.model if one decodes them all"


def convert_messages(channel: Channel, document: Document, topics: list[Loc], draft: Draft) -> None:
    """Convert the messages of a channel to the models of its topics."""
    has_registry = draft.get(("catalogs", CATALOG)) is not None
    models = [_find_model(each, document, has_registry=has_registry) for each in channel.messages]
    for message, model in zip(channel.messages, models, strict=True):
        payload = message.get("payload")
        if len(set(models)) > 1:
            message.omit(_MANY, topics[0])
        elif model in ("avro", "protobuf", "jsonschema") and has_registry:
            _set_model(message, document, topics, draft, {"model": model, "catalog": CATALOG})
        elif model in ("json", "string"):
            _set_model(message, document, topics, draft, {"model": model})
        elif model:
            payload.omit(
                f"{model} needs a schema registry; add it to catalogs, and set value.model",
                topics[0],
            )
        _convert_key(message, document, topics, draft)
        message.omit(_REST, topics[0])
        document.resolve(payload).omit(_REST, topics[0])


def _find_model(message: SourceValue, document: Document, *, has_registry: bool) -> str:
    """Return the model of a message; empty if nothing says it."""
    formats = " ".join(
        option.text
        for option in (
            message.get("contentType"),
            message.get("schemaFormat"),
            message.get("payload", "schemaFormat"),
            document.root.get("defaultContentType"),
        )
    ).lower()
    for name in ("avro", "protobuf"):
        if name in formats:
            return name
    content_type = message.get("contentType").text or document.root.get("defaultContentType").text
    if "json" in content_type:
        has_id = message.get("bindings", "kafka", "schemaIdLocation").text == "payload"
        return "jsonschema" if has_registry and has_id else "json"
    return "string" if content_type.startswith("text/") else ""


def _set_model(
    message: SourceValue,
    document: Document,
    topics: list[Loc],
    draft: Draft,
    value: dict[str, str],
) -> None:
    for topic in topics:
        draft.set((*topic, "value"), dict(value))
    target = (*topics[0], "value", "model")
    message.get("contentType").carry(*target)
    message.get("schemaFormat").carry(*target)
    document.resolve(message.get("payload")).get("schemaFormat").carry(*target)
    if "catalog" in value:
        binding = message.get("bindings", "kafka")
        binding.get("schemaIdLocation").carry(*topics[0], "value", "catalog")
        binding.get("schemaIdPayloadEncoding").carry(*topics[0], "value", "catalog")


def _convert_key(message: SourceValue, document: Document, topics: list[Loc], draft: Draft) -> None:
    key = document.resolve(message.get("bindings", "kafka", "key"))
    kind = key.get("type")
    if kind.text == "string":
        for topic in topics:
            draft.set((*topic, "key"), {"model": "string"})
        kind.carry(*topics[0], "key", "model")
    key.omit("set key.model: how the bytes of keys are made is not said", topics[0])
