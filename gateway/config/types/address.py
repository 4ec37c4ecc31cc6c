"""Hosts, URLs, origins and proxies: where the gateway listens, and whom it talks to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.config.source.substitution import Substituted, shown

from .fields import text
from .section import Problem, refusal, refused

_NAME = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]|[A-Za-z0-9_][A-Za-z0-9_.-]{0,253}")
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")


def url(value: object) -> str:
    """An http or https URL without credentials."""
    given = text(value)
    try:
        parts = urlsplit(given)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"\s", given):
        raise refused(f"{shown(value)} is no URL; write such as http://localhost:8081")
    if "@" in parts.netloc:
        raise refused("a URL with credentials ends up in logs; use username and password")
    return given


def origin(value: object) -> str:
    """An origin as browsers send it (RFC 6454 6.1): no path, not even a slash; or `*`."""
    given = text(value)
    if given in ("*", "null") or _ORIGIN.fullmatch(given):
        return given
    parts = re.match(r"https?://[^/]+", given.lower())
    hint = f"'{parts.group()}'" if parts and "@" not in given else "https://shop.example or *"
    raise refused(f"{shown(value)} is no origin, browsers would not match it; write {hint}")


def _server(server: object) -> str:
    host, colon, port = text(server).rpartition(":")
    if "://" in host or "/" in host:
        raise refused(f"{shown(server)} has a protocol or a path; write host:port")
    if not colon or not _NAME.fullmatch(host):
        given = text(server)
        host_only = _NAME.fullmatch(given) and not isinstance(server, Substituted)
        hint = f"'{given}:9092'" if host_only else "host:port"
        raise refused(f"{shown(server)} is not host:port; write {hint}")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= 65535:
        raise refused(f"{shown(server)} has no valid port; use 1 to 65535")
    return f"{host}:{int(port)}"


def host(value: object) -> str:
    """A name or an address to bind, without a port."""
    given = text(value)
    try:
        ip_address(given)
    except ValueError:
        if not _NAME.fullmatch(given):
            what = f"{shown(value)} is no host; write a name or an address, without a port"
            raise refused(what) from None
    return given


def _host_name(value: object) -> str:
    """As `host`; or `*` for any."""
    return "*" if text(value) == "*" else host(value)


def _servers(value: object) -> tuple[str, ...] | Literal["embedded"]:
    if isinstance(value, str) and value.strip() == "embedded":
        return "embedded"
    if isinstance(value, Substituted):  # one variable often holds them all
        settled = [Substituted.of(value.source, (item.strip(),)) for item in value.split(",")]
        return tuple(_server(item) for item in settled)
    if isinstance(value, str):
        raise refused(f"{shown(value)} is no list; write [{value}], or embedded")
    if not isinstance(value, Sequence) or not value:
        raise refused("expects servers; write [localhost:9092], or embedded")
    return tuple(_numbered(value))


def _numbered(servers: Sequence[object]) -> Iterator[str]:
    for index, server in enumerate(servers):
        try:
            yield _server(server)
        except PydanticCustomError as error:
            raise refusal(Problem((index,), error.message())) from None


def _urls(value: object) -> tuple[str, ...]:
    """One, or a list; one variable may hold several, with commas."""
    if isinstance(value, Substituted):
        return tuple(
            url(Substituted.of(value.source, (each.strip(),))) for each in value.split(",")
        )
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return (url(value),)
    found = []
    for index, each in enumerate(value):
        try:
            found.append(url(each))
        except PydanticCustomError as error:
            raise refusal(Problem((index,), error.message())) from None
    return tuple(found)


def _proxies(value: object) -> bool | tuple[str, ...]:
    """`true`, `false`, or addresses and networks; one variable may hold several, with commas."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Substituted):
        if value in ("true", "false"):
            return value == "true"
        value = [Substituted.of(value.source, (item.strip(),)) for item in value.split(",")]
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        what = shown(value) if isinstance(value, str) else "this"
        raise refused(f"{what} is no list of proxies; write [10.0.0.0/8], true or false")
    return tuple(_proxy(index, item) for index, item in enumerate(value))


def _proxy(index: int, item: object) -> str:
    try:
        return str(ip_network(text(item)))
    except PydanticCustomError as error:
        message = error.message()
    except ValueError:
        message = f"{shown(item)} is no address or network; write such as 10.0.0.1 or 10.0.0.0/8"
    raise refusal(Problem((index,), message))


_SERVER = r":[0-9]+$|\$\{"

Host: TypeAlias = Annotated[
    str, BeforeValidator(host), WithJsonSchema({"type": "string", "minLength": 1})
]
HostName: TypeAlias = Annotated[
    str, BeforeValidator(_host_name), WithJsonSchema({"type": "string", "minLength": 1})
]
Url: TypeAlias = Annotated[
    str, BeforeValidator(url), WithJsonSchema({"type": "string", "pattern": "^https?://"})
]
_URL = {"type": "string", "pattern": "^https?://"}
Urls: TypeAlias = Annotated[
    tuple[str, ...],
    PlainValidator(_urls),
    PlainSerializer(lambda value: value[0] if len(value) == 1 else list(value)),
    WithJsonSchema({"anyOf": [_URL, {"type": "array", "minItems": 1, "items": _URL}]}),
]
Origin: TypeAlias = Annotated[
    str,
    BeforeValidator(origin),
    WithJsonSchema({"type": "string", "pattern": r"^(\*|null|https?://[^/]+)$|\$\{"}),
]
Servers: TypeAlias = Annotated[
    tuple[str, ...] | Literal["embedded"],
    PlainValidator(_servers),
    PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "embedded"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "string", "pattern": _SERVER},
                },
            ]
        }
    ),
]
Proxies: TypeAlias = Annotated[
    bool | tuple[str, ...],
    PlainValidator(_proxies),
    PlainSerializer(lambda value: value if isinstance(value, bool) else list(value)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "boolean"},
                {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            ]
        }
    ),
]
