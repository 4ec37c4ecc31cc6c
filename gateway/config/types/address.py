"""Validate hosts, URLs, origins, servers, proxies, and files of certificate authorities."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from .fields import File, validate_text
from .section import Problem, create_section_error, create_value_error
from .substitution import SubstitutedText, safe_repr

_HOST_NAME = re.compile(r"\[[0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?\]|[A-Za-z0-9_][A-Za-z0-9_.-]{0,253}")
_SCHEME = "[a-z][a-z0-9+.-]*://"  # app shells and extensions have their own
_ORIGIN = re.compile(rf"{_SCHEME}(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{{1,5}})?")


def is_loopback(host: str | None) -> bool:
    """Return whether a name or an address is of this machine only."""
    try:
        return ip_address((host or "").strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def validate_url(value: object) -> str:
    """Return an http or https URL, which must not hold credentials."""
    text = validate_text(value)
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or re.search(r"\s", text):
        raise create_value_error(
            f"{safe_repr(value)} is no URL; write such as http://localhost:8081"
        )
    if "@" in parts.netloc:
        raise create_value_error(
            "a URL with credentials ends up in logs; use username and password"
        )
    return text


def join_url(base: str, path: str) -> str:
    return f"{base.rstrip('/')}/{path.lstrip('/')}"


def validate_origin(value: object) -> str:
    """Return an origin as browsers send it (RFC 6454 6.1): without a path or slash."""
    text = validate_text(value)
    if text in ("*", "null") or _is_origin(text):
        return text
    if "*" in text:
        raise create_value_error(
            f"{safe_repr(value)} is a pattern, and patterns are not supported; list each origin"
        )
    suggestion = suggest_origin(text)
    hint = "https://shop.example or *" if suggestion is None else f"'{suggestion}'"
    raise create_value_error(
        f"{safe_repr(value)} is no origin, browsers would not match it; write {hint}"
    )


def suggest_origin(text: str) -> str | None:
    """Return the closest valid origin; None if there is none.

    A host with other letters than ASCII gets the form that browsers send (RFC 5891).
    """
    import httpx  # takes 0.1 s, and is needed for a message only

    written = re.match(rf"{_SCHEME}[^/?#]+", text.lower())
    if written is None or re.search(r"[@\s]", text):
        return None
    try:
        url = httpx.URL(written.group())
    except (httpx.InvalidURL, ValueError):
        return None
    host = url.raw_host.decode("ascii")
    port = "" if url.port is None else f":{url.port}"
    origin = f"{url.scheme}://{f'[{host}]' if ':' in host else host}{port}"
    return origin if _is_origin(origin) else None


def _is_origin(text: str) -> bool:
    match = _ORIGIN.fullmatch(text)
    return match is not None and int((match[1] or ":0")[1:]) <= 65535


def _validate_server(value: object) -> str:
    host, colon, port = validate_text(value).rpartition(":")
    if "://" in host or "/" in host:
        raise create_value_error(f"{safe_repr(value)} has a protocol or a path; write host:port")
    if not colon or not _HOST_NAME.fullmatch(host):
        text = validate_text(value)
        host_only = _HOST_NAME.fullmatch(text) and not isinstance(value, SubstitutedText)
        hint = f"'{text}:9092'" if host_only else "host:port"
        raise create_value_error(f"{safe_repr(value)} is not host:port; write {hint}")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= 65535:
        raise create_value_error(f"{safe_repr(value)} has no valid port; use 1 to 65535")
    return f"{host}:{int(port)}"


def validate_host(value: object) -> str:
    """Return a host name or an address to bind, without a port."""
    text = validate_text(value)
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    try:
        ip_address(text)
    except ValueError:
        if not _HOST_NAME.fullmatch(text):
            message = f"{safe_repr(value)} is no host; write a name or an address, without a port"
            raise create_value_error(message) from None
    return text


def _validate_host_name(value: object) -> str:
    return "*" if validate_text(value) == "*" else validate_host(value)


def _validate_servers(value: object) -> tuple[str, ...] | Literal["embedded"]:
    if isinstance(value, str) and value.strip() == "embedded":
        return "embedded"
    if isinstance(value, str):
        return tuple(map(_validate_server, _split_text(value)))
    if not isinstance(value, Sequence) or not value:
        raise create_value_error("expects servers; write [localhost:9092], or embedded")
    return validate_items(value, _validate_server)


def _split_text(value: str) -> list[str]:
    """Return the items of a text with commas; one variable often holds a whole list."""
    items = [item.strip() for item in value.split(",")]
    if not isinstance(value, SubstitutedText):
        return items
    return [SubstitutedText.from_parts(value.source, (item,)) for item in items]


def validate_items(items: Sequence[object], validate: Callable[[object], str]) -> tuple[str, ...]:
    """Return the validated items; raise ValidationError with the problems of all others."""
    validated: list[str] = []
    problems: list[Problem] = []
    for index, item in enumerate(items):
        try:
            validated.append(validate(item))
        except PydanticCustomError as error:
            problems.append(Problem((index,), error.message()))
    if problems:
        raise create_section_error(*problems)
    return tuple(validated)


def _validate_urls(value: object) -> tuple[str, ...]:
    """Return the URLs of one URL or of a list; a variable may hold several, with commas."""
    if isinstance(value, SubstitutedText):
        return tuple(map(validate_url, _split_text(value)))
    if isinstance(value, str) or not isinstance(value, Sequence):
        return (validate_url(value),)
    if not value:
        raise create_value_error("is empty; list at least one URL")
    return validate_items(value, validate_url)


def _validate_proxies(value: object) -> bool | tuple[str, ...]:
    """Return true, false, or addresses and networks; a variable may hold several, with commas."""
    if isinstance(value, bool):
        return value
    if isinstance(value, SubstitutedText):
        if value in ("true", "false"):
            return value == "true"
        value = _split_text(value)
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        what = safe_repr(value) if isinstance(value, str) else "this"
        raise create_value_error(f"{what} is no list of proxies; write [10.0.0.0/8], true or false")
    return validate_items(value, _validate_proxy)


def _validate_proxy(item: object) -> str:
    text = validate_text(item)
    try:
        return str(ip_network(text))
    except ValueError:
        message = (
            f"{safe_repr(item)} is no address or network; write such as 10.0.0.1 or 10.0.0.0/8"
        )
        raise create_value_error(message) from None


_SERVER_PATTERN = r":[0-9]+$|\$\{"
_SERVERS_PATTERN = r"^(embedded|[^,]+:[0-9]+(,[^,]+:[0-9]+)*)$|\$\{"

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
    WithJsonSchema({"type": "string", "pattern": rf"^(\*|null|{_SCHEME}[^/]+)$|\$\{{"}),
]
Servers: TypeAlias = Annotated[
    tuple[str, ...] | Literal["embedded"],
    PlainValidator(_validate_servers),
    PlainSerializer(lambda value: value if isinstance(value, str) else list(value)),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _SERVERS_PATTERN},
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


def create_trusting_context(ca: Path | None) -> ssl.SSLContext:
    """Create a client's context that trusts the authorities of a PEM file, or of the system.

    Raises:
        ValueError: The file cannot be read or has no certificates. The message names it.
    """
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except OSError as exc:
        raise ValueError(f"{ca}: {describe_ssl_error(exc)}") from exc


def describe_ssl_error(exc: OSError) -> str:
    """Return why files of TLS cannot be loaded, without OpenSSL's names and places."""
    if not isinstance(exc, ssl.SSLError):
        return exc.strerror or str(exc)
    match exc.reason:
        case "NO_CERTIFICATE_OR_CRL_FOUND" | "NO_START_LINE":
            return "it has no certificates in PEM"
        case "KEY_VALUES_MISMATCH":
            return "the key is of another certificate"
        case "BAD_DECRYPT" | "BAD_PASSWORD_READ":
            return "the key needs another password"
        case None:
            return "it is not what it should be, in PEM"
        case reason:
            return reason.lower().replace("_", " ")


def _require_authorities(file: Path) -> Path:
    """Return the file, which is loaded so that `check` finds the problems of a start."""
    try:
        create_trusting_context(file)
    except ValueError as exc:
        raise create_value_error(f"file {exc}; name a PEM file of certificates") from None
    return file


AuthorityFile: TypeAlias = Annotated[File, AfterValidator(_require_authorities)]
"""A PEM file of certificate authorities."""
