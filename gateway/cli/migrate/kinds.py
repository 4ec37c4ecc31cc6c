"""The programs whose configurations can be migrated, and how each is recognised by its content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.errors import GatewayError

if TYPE_CHECKING:
    from .draft import Draft
    from .report import SourceValue

Converter: TypeAlias = "Callable[[SourceValue, Draft], None]"
"""Fills a draft with what a source says, and gives each value of it an outcome."""


class SourceKind(StrEnum):
    """A program, or a format, whose configuration can be migrated."""

    ZILLA = "zilla"
    CENTRIFUGO = "centrifugo"
    ASYNCAPI = "asyncapi"


_CENTRIFUGO_KEYS = frozenset(
    {
        *("http_server", "client", "channel", "consumers", "http_api", "grpc_api", "engine"),
        *("broker", "uni_sse", "uni_websocket", "http_stream", "rpc", "prometheus"),
    }
)
_CENTRIFUGO_5_KEYS = frozenset(
    {
        *("token_hmac_secret_key", "token_jwks_public_endpoint", "token_rsa_public_key"),
        *("allowed_origins", "namespaces", "api_key", "proxy_connect_endpoint", "history_size"),
    }
)


def detect_kind(values: Any, name: str) -> SourceKind:
    """Return whose configuration this is.

    Raises:
        GatewayError: It is that of the gateway itself, or of nobody who is known.
    """
    keys = set(values) if isinstance(values, Mapping) else set()
    if "asyncapi" in keys:
        return SourceKind.ASYNCAPI
    if isinstance(values, Mapping) and isinstance(values.get("bindings"), Mapping):
        return SourceKind.ZILLA
    if keys & _CENTRIFUGO_KEYS:
        return SourceKind.CENTRIFUGO
    if keys & _CENTRIFUGO_5_KEYS:
        raise GatewayError(
            f"{name} is of Centrifugo 5 or older; convert it to Centrifugo 6 first, as its page on "
            "the migration to v6 describes"
        )
    if {"kafka", "routes"} <= keys:
        raise GatewayError(f"{name} is a configuration of the gateway already; see gateway check")
    raise GatewayError(
        f"{name} is no configuration of Zilla (bindings), Centrifugo (client, channel, consumers) "
        f"or AsyncAPI (asyncapi); if it is one, say which by --from: {', '.join(SourceKind)}"
        + (f"; its first keys are {', '.join(list(map(str, keys))[:5])}" if keys else "")
    )


def load_converter(kind: SourceKind) -> Converter:
    """Return the converter of a program, which is imported now."""
    if kind is SourceKind.ZILLA:
        from .zilla import convert_zilla

        return convert_zilla
    if kind is SourceKind.CENTRIFUGO:
        from .centrifugo import convert_centrifugo

        return convert_centrifugo
    from .asyncapi import convert_asyncapi

    return convert_asyncapi
