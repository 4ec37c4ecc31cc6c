"""The streams as AsyncAPI 3.0.0.

Actions are the gateway's, as the specification has it: it sends records, and receives what
clients ask for and produce. A path is two channels, since what goes over them differs: one
over HTTP (server-sent events, NDJSON), one over WebSocket; `/ws` carries many of the latter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from gateway.config import PathPattern, Settings
from gateway.version import __version__

from . import messages
from .description import MULTIPLEX, NDJSON, SSE, SUBPROTOCOL, Parameter, Stream, Transport, streams
from .schemas import SCHEMAS

_CONTROL = (
    "begin",
    "ready",
    "partitions-ready",
    "gap",
    "position",
    "error",
    "partitions-error",
    "end",
)
_ANSWERS = ("renewed", "pong")
_STEERING = ("change", "credit", "token", "ping")
_KINDS = {"from_server": tuple(messages.from_server()), "to_server": tuple(messages.to_server())}


def document(settings: Settings, base: str) -> dict[str, Any]:
    """base: the URL of the gateway as the client knows it, without a slash at the end."""
    found = streams(settings)
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for slug, path, stream in _paths(found):
        http, websocket = f"{slug}.http", f"{slug}.websocket"
        channels[http] = _over_http(path, stream)
        channels[websocket] = _over_websocket(path, stream)
        operations |= _http_operations(slug, http, stream)
        operations |= _socket_operations(slug, websocket, stream)
    channels["multiplex"] = _multiplex()
    operations |= {
        "multiplex.send": _operation("send", "multiplex", _KINDS["from_server"]),
        "multiplex.receive": _operation("receive", "multiplex", _KINDS["to_server"]),
    }
    return {
        "asyncapi": "3.0.0",
        "info": _info(settings, found),
        "defaultContentType": "application/json",
        "servers": _servers(base),
        "channels": channels,
        "operations": operations,
        "components": _components(found),
    }


def _info(settings: Settings, found: Iterable[Stream]) -> dict[str, Any]:
    what = "Kafka topics as streams that resume without loss."
    if not found:
        what += " There are no routes yet."
    return {"title": settings.name, "version": __version__, "description": what}


def _servers(base: str) -> dict[str, Any]:
    url = urlsplit(base)
    secure = "s" if url.scheme == "https" else ""
    at = {"host": url.netloc, **({"pathname": url.path} if url.path else {})}
    return {
        "http": {**at, "protocol": f"http{secure}"},
        "websocket": {**at, "protocol": f"ws{secure}"},
    }


def _components(found: Iterable[Stream]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "schemas": dict(SCHEMAS),
        "messages": {
            **messages.sse(),
            **messages.ndjson(),
            **messages.from_server(),
            **messages.to_server(),
        },
    }
    guards = [each for stream in found for each in stream.ways]
    if guards:
        told["securitySchemes"] = {
            name: dict(way.scheme) for each in guards for name, way in each.items()
        }
    return told


def _paths(found: Iterable[Stream]) -> Iterator[tuple[str, str, Stream]]:
    """Each path with a name of its own: /events/{customer} is events-customer."""
    taken = {"multiplex"}
    for stream in found:
        for path in stream.paths:
            name = slug = re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-") or "all"
            number = 1
            while name in taken:
                number += 1
                name = f"{slug}-{number}"
            taken.add(name)
            yield name, path, stream


# channels


def _channel(
    server: str, path: str, names: Iterable[str], parameters: dict[str, Any]
) -> dict[str, Any]:
    return {
        "address": path,
        "servers": [{"$ref": f"#/servers/{server}"}],
        **({"parameters": parameters} if parameters else {}),
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
    }


def _of_path(path: str, stream: Stream) -> dict[str, Any]:
    wanted = PathPattern.parse(path).params
    return {
        each.name: {"description": each.description}
        for each in stream.parameters
        if each.place == "path" and each.name in wanted
    }


def _over_http(path: str, stream: Stream) -> dict[str, Any]:
    names = (*_sse(stream), *_ndjson(stream))
    return {
        **_channel("http", path, names, _of_path(path, stream)),
        "summary": _summary(stream),
    }


def _over_websocket(path: str, stream: Stream) -> dict[str, Any]:
    names = (*_sent(stream), *_received(stream))
    query = _query(stream, "websocket")
    return {
        **_channel("websocket", path, names, _of_path(path, stream)),
        "summary": _summary(stream),
        "description": f"Subprotocol: {SUBPROTOCOL}.",
        "bindings": {"ws": {"method": "GET", "query": query, "bindingVersion": "0.1.0"}},
    }


def _multiplex() -> dict[str, Any]:
    names = (*_KINDS["from_server"], *_KINDS["to_server"])
    return {
        **_channel("websocket", MULTIPLEX, names, {}),
        "summary": "Many streams on one socket: nothing runs until `subscribe`.",
        "description": f"Subprotocol: {SUBPROTOCOL}. Messages carry the id of their subscription.",
        "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
    }


def _summary(stream: Stream) -> str:
    return f"Records of {', '.join(stream.topics)}, format {stream.format}."


# operations


def _operation(action: str, channel: str, names: Iterable[str], **more: Any) -> dict[str, Any]:
    return {"action": action, **_about(channel, names), **more}


def _about(channel: str, names: Iterable[str]) -> dict[str, Any]:
    return {
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in names],
    }


def _http_operations(slug: str, channel: str, stream: Stream) -> dict[str, Any]:
    def got(transport: Transport, names: Iterable[str], accept: str) -> dict[str, Any]:
        query = _query(stream, transport)
        http = {"method": "GET", "query": query, "bindingVersion": "0.3.0"}
        told = {"summary": f"GET with Accept: {accept}", "bindings": {"http": http}}
        return _operation("send", channel, names, **told, **_secured(stream))

    return {
        f"{slug}.sse": got("sse", _sse(stream), SSE),
        f"{slug}.ndjson": got("ndjson", _ndjson(stream), NDJSON),
    }


def _socket_operations(slug: str, channel: str, stream: Stream) -> dict[str, Any]:
    more = _secured(stream)
    steering = tuple(f"websocket-{kind}" for kind in _STEERING)
    told = {
        f"{slug}.websocket.send": _operation("send", channel, _sent(stream), **more),
        f"{slug}.websocket.receive": _operation("receive", channel, steering, **more),
    }
    if stream.produce:
        reply = _about(channel, ("websocket-produced", "websocket-error"))
        told[f"{slug}.websocket.produce"] = _operation(
            "receive", channel, ("websocket-produce",), reply=reply, **more
        )
    return told


def _secured(stream: Stream) -> dict[str, Any]:
    """Any of the ways of each guard; the specification has no word for all of several guards."""
    named = [name for each in stream.ways for name in each]
    refs = [{"$ref": f"#/components/securitySchemes/{name}"} for name in named]
    return {"security": refs} if refs else {}


def _query(stream: Stream, transport: Transport) -> dict[str, Any]:
    asked = [
        each for each in stream.parameters if each.place == "query" and transport in each.transports
    ]
    required = [each.name for each in asked if each.required]
    told: dict[str, Any] = {"type": "object", "properties": {p.name: _typed(p) for p in asked}}
    return told | ({"required": required} if required else {})


def _typed(parameter: Parameter) -> dict[str, Any]:
    told = {"type": "string", "description": parameter.description}
    return told if parameter.default is None else {**told, "default": parameter.default}


# which messages a stream has


def _form(stream: Stream) -> str:
    """What a record is as JSON."""
    with_ = stream.route.with_
    if stream.format != "value":
        return stream.format
    if with_.binary == "base64":
        return "value-base64"
    return "value-fields" if with_.fields else "value-any"


def _form_of_sse(stream: Stream) -> str:
    """There a value is text; whether it is JSON is the topics' affair."""
    form = _form(stream)
    return ("value-json" if stream.json else "value-text") if form == "value-any" else form


def _deleted(stream: Stream) -> str:
    return "delete-envelope" if stream.format == "envelope" else "delete-key"


def _told(stream: Stream) -> tuple[str, ...]:
    snapshot = ("snapshot-end",) if stream.snapshot else ()
    challenge = ("challenge",) if stream.challenges else ()
    return (_deleted(stream), *_CONTROL, *snapshot, *challenge)


def _sse(stream: Stream) -> tuple[str, ...]:
    return tuple(f"sse-{name}" for name in (_form_of_sse(stream), *_told(stream)))


def _ndjson(stream: Stream) -> tuple[str, ...]:
    return tuple(f"ndjson-{name}" for name in (_form(stream), "record", *_told(stream)))


def _sent(stream: Stream) -> tuple[str, ...]:
    names = (f"records-{_form(stream)}", *_told(stream), *_ANSWERS)
    produced = ("produced",) if stream.produce else ()
    return tuple(f"websocket-{name}" for name in (*names, *produced))


def _received(stream: Stream) -> tuple[str, ...]:
    produce = ("produce",) if stream.produce else ()
    return tuple(f"websocket-{name}" for name in (*_STEERING, *produce))
