"""Describe the streams as AsyncAPI 3.0.0.

Actions are those of the gateway, as the specification defines them: it sends records, and receives
what clients request and produce. A path is two channels, since their messages differ: one over HTTP
(server-sent events, NDJSON), and one over WebSocket. The path `/ws` carries many of the latter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from gateway.config import PathPattern, Settings
from gateway.hub.wires.control_events import CONTROL_EVENTS
from gateway.version import __version__

from . import messages
from .description import (
    MULTIPLEX_PATH,
    NDJSON_MEDIA_TYPE,
    SSE_MEDIA_TYPE,
    SUBPROTOCOL,
    Parameter,
    StreamDescription,
    Transport,
    list_streams,
)
from .messages import build_schemas, get_delete_schema

_ANSWER_MESSAGES = ("renewed", "pong")
_COMMAND_MESSAGES = ("change", "credit", "token", "ping")


def build_document(settings: Settings, base_url: str) -> dict[str, Any]:
    """Return the AsyncAPI document."""
    streams = list_streams(settings)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for slug, path, stream in _iter_paths(streams):
        http, websocket = f"{slug}.http", f"{slug}.websocket"
        channels[http] = _build_http_channel(path, stream)
        channels[websocket] = _build_websocket_channel(path, stream)
        operations |= _build_http_operations(slug, http, stream)
        operations |= _build_websocket_operations(slug, websocket, stream)
    sent, received = messages.build_server_messages(), messages.build_client_messages()
    channels["multiplex"] = _build_multiplex_channel((*sent, *received))
    operations |= {
        "multiplex.send": _build_operation("send", "multiplex", sent),
        "multiplex.receive": _build_operation("receive", "multiplex", received),
    }
    return {
        "asyncapi": "3.0.0",
        "info": _build_info(settings, streams),
        "defaultContentType": "application/json",
        "servers": _build_servers(base_url),
        "channels": channels,
        "operations": operations,
        "components": _build_components(streams),
    }


def _build_info(settings: Settings, streams: Iterable[StreamDescription]) -> dict[str, Any]:
    description = "Kafka topics as streams that resume without loss."
    if not streams:
        description += " There are no routes yet."
    return {"title": settings.name, "version": __version__, "description": description}


def _build_servers(base_url: str) -> dict[str, Any]:
    url = urlsplit(base_url)
    secure = "s" if url.scheme == "https" else ""
    location = {"host": url.netloc, **({"pathname": url.path} if url.path else {})}
    return {
        "http": {**location, "protocol": f"http{secure}"},
        "websocket": {**location, "protocol": f"ws{secure}"},
    }


def _build_components(streams: Iterable[StreamDescription]) -> dict[str, Any]:
    components: dict[str, Any] = {
        "schemas": build_schemas(),
        "messages": {
            **messages.build_sse_messages(),
            **messages.build_ndjson_messages(),
            **messages.build_server_messages(),
            **messages.build_client_messages(),
        },
    }
    schemes_by_name = [schemes for stream in streams for schemes in stream.security_schemes]
    if schemes_by_name:
        components["securitySchemes"] = {
            name: dict(scheme.definition)
            for schemes in schemes_by_name
            for name, scheme in schemes.items()
        }
    return components


def _iter_paths(
    streams: Iterable[StreamDescription],
) -> Iterator[tuple[str, str, StreamDescription]]:
    """Yield each path with a unique name: `events-customer` for `/events/{customer}`."""
    taken = {"multiplex"}
    for stream in streams:
        for path in stream.paths:
            name = slug = re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-") or "all"
            number = 1
            while name in taken:
                number += 1
                name = f"{slug}-{number}"
            taken.add(name)
            yield name, path, stream


# channels


def _build_channel(
    server: str, path: str, names: Iterable[str], parameters: dict[str, Any]
) -> dict[str, Any]:
    return {
        "address": path,
        "servers": [{"$ref": f"#/servers/{server}"}],
        **({"parameters": parameters} if parameters else {}),
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
    }


def _build_path_parameters(path: str, stream: StreamDescription) -> dict[str, Any]:
    names = PathPattern.parse(path).params
    return {
        parameter.name: {"description": parameter.description}
        for parameter in stream.parameters
        if parameter.location == "path" and parameter.name in names
    }


def _build_http_channel(path: str, stream: StreamDescription) -> dict[str, Any]:
    names = (*_list_sse_messages(stream), *_list_ndjson_messages(stream))
    return {
        **_build_channel("http", path, names, _build_path_parameters(path, stream)),
        "summary": _format_summary(stream),
    }


def _build_websocket_channel(path: str, stream: StreamDescription) -> dict[str, Any]:
    names = (*_list_sent_messages(stream), *_list_received_messages(stream))
    query = _build_query_schema(stream, "websocket")
    return {
        **_build_channel("websocket", path, names, _build_path_parameters(path, stream)),
        "summary": _format_summary(stream),
        "description": f"Subprotocol: {SUBPROTOCOL}.",
        "bindings": {"ws": {"method": "GET", "query": query, "bindingVersion": "0.1.0"}},
    }


def _build_multiplex_channel(names: Iterable[str]) -> dict[str, Any]:
    return {
        **_build_channel("websocket", MULTIPLEX_PATH, names, {}),
        "summary": "Many streams on one socket: nothing runs until `subscribe`.",
        "description": f"Subprotocol: {SUBPROTOCOL}. Messages carry the id of their subscription.",
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def _format_summary(stream: StreamDescription) -> str:
    return f"Records of {', '.join(stream.topics)}, format {stream.format}."


# operations


def _build_operation(
    action: str, channel: str, names: Iterable[str], **extra: Any
) -> dict[str, Any]:
    return {"action": action, **_build_references(channel, names), **extra}


def _build_references(channel: str, names: Iterable[str]) -> dict[str, Any]:
    return {
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
    }


def _build_http_operations(slug: str, channel: str, stream: StreamDescription) -> dict[str, Any]:
    def build_get_operation(
        transport: Transport, names: Iterable[str], accept: str
    ) -> dict[str, Any]:
        query = _build_query_schema(stream, transport)
        http = {"method": "GET", "query": query, "bindingVersion": "0.3.0"}
        options = {"summary": f"GET with Accept: {accept}", "bindings": {"http": http}}
        return _build_operation("send", channel, names, **options, **_build_security(stream))

    return {
        f"{slug}.sse": build_get_operation("sse", _list_sse_messages(stream), SSE_MEDIA_TYPE),
        f"{slug}.ndjson": build_get_operation(
            "ndjson", _list_ndjson_messages(stream), NDJSON_MEDIA_TYPE
        ),
    }


def _build_websocket_operations(
    slug: str, channel: str, stream: StreamDescription
) -> dict[str, Any]:
    security = _build_security(stream)
    commands = tuple(f"websocket-{kind}" for kind in _COMMAND_MESSAGES)
    operations = {
        f"{slug}.websocket.send": _build_operation(
            "send", channel, _list_sent_messages(stream), **security
        ),
        f"{slug}.websocket.receive": _build_operation("receive", channel, commands, **security),
    }
    if stream.produce:
        reply = _build_references(channel, ("websocket-produced", "websocket-error"))
        operations[f"{slug}.websocket.produce"] = _build_operation(
            "receive", channel, ("websocket-produce",), reply=reply, **security
        )
    return operations


def _build_security(stream: StreamDescription) -> dict[str, Any]:
    """Return the security of an operation: any of the schemes of each guard.

    The specification cannot express that several guards must all be satisfied.
    """
    names = [name for schemes in stream.security_schemes for name in schemes]
    refs = [{"$ref": f"#/components/securitySchemes/{name}"} for name in names]
    return {"security": refs} if refs else {}


def _build_query_schema(stream: StreamDescription, transport: Transport) -> dict[str, Any]:
    parameters = [
        parameter
        for parameter in stream.parameters
        if parameter.location == "query" and transport in parameter.transports
    ]
    required = [parameter.name for parameter in parameters if parameter.required]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            parameter.name: _build_parameter_schema(parameter) for parameter in parameters
        },
    }
    return schema | ({"required": required} if required else {})


def _build_parameter_schema(parameter: Parameter) -> dict[str, Any]:
    schema = {"type": "string", "description": parameter.description}
    return schema if parameter.default is None else {**schema, "default": parameter.default}


# the messages of a stream


def _get_record_schema(stream: StreamDescription) -> str:
    with_ = stream.route.with_
    if stream.format != "value":
        return stream.format
    if with_.binary == "base64":
        return "value-base64"
    return "value-fields" if with_.fields else "value-any"


def _get_sse_record_schema(stream: StreamDescription) -> str:
    """Return the name of the schema of a record in an event, where a value is text.

    Whether the text is JSON depends on the topics.
    """
    schema = _get_record_schema(stream)
    return ("value-json" if stream.is_json else "value-text") if schema == "value-any" else schema


def _list_events(stream: StreamDescription) -> tuple[str, ...]:
    conditions = {None: True, "snapshot": stream.is_snapshot, "challenge": stream.has_challenges}
    events = [event.name for event in CONTROL_EVENTS.values() if conditions[event.condition]]
    return (get_delete_schema(stream.format), *events)


def _list_sse_messages(stream: StreamDescription) -> tuple[str, ...]:
    return tuple(f"sse-{name}" for name in (_get_sse_record_schema(stream), *_list_events(stream)))


def _list_ndjson_messages(stream: StreamDescription) -> tuple[str, ...]:
    return tuple(
        f"ndjson-{name}" for name in (_get_record_schema(stream), "record", *_list_events(stream))
    )


def _list_sent_messages(stream: StreamDescription) -> tuple[str, ...]:
    names = (f"records-{_get_record_schema(stream)}", *_list_events(stream), *_ANSWER_MESSAGES)
    produced = ("produced",) if stream.produce else ()
    return tuple(f"websocket-{name}" for name in (*names, *produced))


def _list_received_messages(stream: StreamDescription) -> tuple[str, ...]:
    produce = ("produce",) if stream.produce else ()
    return tuple(f"websocket-{name}" for name in (*_COMMAND_MESSAGES, *produce))
