"""Hosts, URLs, origins and proxies: where the gateway listens, and whom it talks to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_network
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from gateway.config.source.substitution import SubstitutedText, safe_repr

from .fields import validate_text
from .section import Problem, create_section_error, create_value_error

_HOST_NAME = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]|[A-Za-z0-9_][A-Za-z0-9_.-]{0,253}")
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:.]+\](:[0-9]{1,5})?")


def validate_url(value: object) -> str:
    """An http or https URL without credentials."""
    given = validate_text(value)
    try:
        parts = urlsplit(given)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or re.search(r"\s", given):
        raise create_value_error(
            f"{safe_repr(value)} is no URL; write such as http://localhost:8081"
        )
    if "@" in parts.netloc:
        raise create_value_error(
            "a URL with credentials ends up in logs; use username and password"
        )
    return given


def validate_origin(value: object) -> str:
    """An origin as browsers send it (RFC 6454 6.1): no path, not even a slash; or `*`."""
    given = validate_text(value)
    if given in ("*", "null") or _ORIGIN.fullmatch(given):
        return given
    parts = re.match(r"https?://[^/]+", given.lower())
    hint = f"'{parts.group()}'" if parts and "@" not in given else "https://shop.example or *"
    raise create_value_error(
        f"{safe_repr(value)} is no origin, browsers would not match it; write {hint}"
    )


def _validate_server(value: object) -> str:
    host, colon, port = validate_text(value).rpartition(":")
    if "://" in host or "/" in host:
        raise create_value_error(f"{safe_repr(value)} has a protocol or a path; write host:port")
    if not colon or not _HOST_NAME.fullmatch(host):
        given = validate_text(value)
        host_only = _HOST_NAME.fullmatch(given) and not isinstance(value, SubstitutedText)
        hint = f"'{given}:9092'" if host_only else "host:port"
        raise create_value_error(f"{safe_repr(value)} is not host:port; write {hint}")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= 65535:
        raise create_value_error(f"{safe_repr(value)} has no valid port; use 1 to 65535")
    return f"{host}:{int(port)}"


def validate_host(value: object) -> str:
    """A name or an address to bind, without a port."""
    given = validate_text(value)
    try:
        ip_address(given)
    except ValueError:
        if not _HOST_NAME.fullmatch(given):
            what = f"{safe_repr(value)} is no host; write a name or an address, without a port"
            raise create_value_error(what) from None
    return given


def _validate_host_name(value: object) -> str:
    """As `host`; or `*` for any."""
    return "*" if validate_text(value) == "*" else validate_host(value)


def _validate_servers(value: object) -> tuple[str, ...] | Literal["embedded"]:
    if isinstance(value, str) and value.strip() == "embedded":
        return "embedded"
    if isinstance(value, SubstitutedText):  # one variable often holds them all
        settled = [
            SubstitutedText.from_parts(value.source, (item.strip(),)) for item in value.split(",")
        ]
        return tuple(_validate_server(item) for item in settled)
    if isinstance(value, str):
        raise create_value_error(f"{safe_repr(value)} is no list; write [{value}], or embedded")
    if not isinstance(value, Sequence) or not value:
        raise create_value_error("expects servers; write [localhost:9092], or embedded")
    return tuple(_iter_validated_servers(value))


def _iter_validated_servers(servers: Sequence[object]) -> Iterator[str]:
    for index, server in enumerate(servers):
        try:
            yield _validate_server(server)
        except PydanticCustomError as error:
            raise create_section_error(Problem((index,), error.message())) from None


def _validate_urls(value: object) -> tuple[str, ...]:
    """One, or a list; one variable may hold several, with commas."""
    if isinstance(value, SubstitutedText):
        return tuple(
            validate_url(SubstitutedText.from_parts(value.source, (each.strip(),)))
            for each in value.split(",")
        )
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        return (validate_url(value),)
    found = []
    for index, each in enumerate(value):
        try:
            found.append(validate_url(each))
        except PydanticCustomError as error:
            raise create_section_error(Problem((index,), error.message())) from None
    return tuple(found)


def _validate_proxies(value: object) -> bool | tuple[str, ...]:
    """`true`, `false`, or addresses and networks; one variable may hold several, with commas."""
    if isinstance(value, bool):
        return value
    if isinstance(value, SubstitutedText):
        if value in ("true", "false"):
            return value == "true"
        value = [
            SubstitutedText.from_parts(value.source, (item.strip(),)) for item in value.split(",")
        ]
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        what = safe_repr(value) if isinstance(value, str) else "this"
        raise create_value_error(f"{what} is no list of proxies; write [10.0.0.0/8], true or false")
    return tuple(_validate_proxy(index, item) for index, item in enumerate(value))


def _validate_proxy(index: int, item: object) -> str:
    try:
        return str(ip_network(validate_text(item)))
    except PydanticCustomError as error:
        message = error.message()
    except ValueError:
        message = (
            f"{safe_repr(item)} is no address or network; write such as 10.0.0.1 or 10.0.0.0/8"
        )
    raise create_section_error(Problem((index,), message))


_SERVER_PATTERN = r":[0-9]+$|\$\{"

Host: TypeAlias = Annotated[
    str, BeforeValidator(validate_host), WithJsonSchema({"type": "string", "minLength": 1})
]
HostName: TypeAlias = Annotated[
    str, BeforeValidator(_validate_host_name), WithJsonSchema({"type": "string", "minLength": 1})
]
Url: TypeAlias = Annotated[
    str, BeforeValidator(validate_url), WithJsonSchema({"type": "string", "pattern": "^https?://"})
]
_URL_SCHEMA = {"type": "string", "pattern": "^https?://"}
Urls: TypeAlias = Annotated[
    tuple[str, ...],
    PlainValidator(_validate_urls),
    PlainSerializer(lambda value: value[0] if len(value) == 1 else list(value)),
    WithJsonSchema(
        {"anyOf": [_URL_SCHEMA, {"type": "array", "minItems": 1, "items": _URL_SCHEMA}]}
    ),
]
Origin: TypeAlias = Annotated[
    str,
    BeforeValidator(validate_origin),
    WithJsonSchema({"type": "string", "pattern": r"^(\*|null|https?://[^/]+)$|\$\{"}),
]
Servers: TypeAlias = Annotated[
    tuple[str, ...] | Literal["embedded"],
    PlainValidator(_validate_servers),
    PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
    WithJsonSchema(
        {
            "anyOf": [
                {"const": "embedded"},
                {
                    "type": "array",
                    "minItems": 1,
                    "items": {"type": "string", "pattern": _SERVER_PATTERN},
                },
            ]
        }
    ),
]
Proxies: TypeAlias = Annotated[
    bool | tuple[str, ...],
    PlainValidator(_validate_proxies),
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
