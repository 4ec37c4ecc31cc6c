"""Define the section `guards`: how the gateway identifies a client.

A guard verifies a signed token (`jwt`), asks the application (`http`), reads a client certificate
(`x509`), or knows the users that the file lists (`inline`). `jwt` has a module for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
)

from gateway.config.source.substitution import safe_repr
from gateway.config.types.address import Url
from gateway.config.types.discriminator import serialize_section, validate_by_type
from gateway.config.types.fields import Duration, Flag, SecretText, Text, in_range, validate_text
from gateway.config.types.section import Problem, Section, create_value_error

from .credentials import BEARER_CREDENTIALS, Credentials, HeaderName, QueryName
from .jwt import ChallengeDuration, Jwt

CertificateField = Literal[
    "CN", "O", "OU", "C", "L", "ST", "DC", "UID", "serialNumber", "email", "dns", "uri"
]
"""A field of a certificate: `email`, `dns` and `uri` are alternative names of the subject
(RFC 5280 4.2.1.6), the others are attributes of its distinguished name."""


FORWARDED_HEADERS = frozenset({"x-forwarded-method", "x-forwarded-uri"})
"""Headers that the gateway itself sends to the application.

They cannot be forwarded from clients, because the application could not distinguish them.
"""


class Forward(Section):
    """The parts of a request that are forwarded to the application.

    A request that has none of them is refused without asking the application.
    """

    headers: tuple[HeaderName, ...] = Field(
        default=("cookie", "authorization"),
        description="Headers to forward. The token of a WebSocket's subprotocol is sent as "
        "`authorization`. For applications with sessions.",
    )
    query: tuple[QueryName, ...] = Field(
        default=(), description="Query parameters to forward. For tickets that are valid once."
    )


class Http(Section):
    """A guard that asks the application, by a GET request.

    The application admits a client with 200 and a JSON object of `identity`, `roles`, `attributes`
    and `expires` (all but `identity` are optional), and denies it with 401 or 403.
    """

    type: Literal["http"] = Field(description="The kind of guard. For access control.")
    url: Url = Field(description="The URL of the GET request. For applications with sessions.")
    forward: Forward = Field(
        default=Forward(),
        description="What the application gets of a client's request. For applications with "
        "sessions.",
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=2.0,
        description="How long the application may take to respond; the client waits meanwhile. For "
        "operators.",
    )
    cache: Annotated[Duration, in_range(0, 3600)] = Field(
        default=10.0,
        description="How long a response is used for equal requests; 0s asks each time. For "
        "applications under load.",
    )
    attributes: tuple[Text, ...] = Field(
        default=(), description="The attributes to keep of its responses. For templates."
    )
    challenge: ChallengeDuration = Field(
        default=30.0,
        description="How long before the token expires the client is asked for a new one. For long "
        "streams.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problems of `forward`: nothing, or a header that the gateway itself sends."""
        written = raw.get("forward")
        forward = written if isinstance(written, Mapping) else {}
        if forward.get("headers") in ([], ()) and not forward.get("query"):
            yield Problem(("forward",), "forwards nothing; add headers or query")
        headers = forward.get("headers")
        for index, name in enumerate(headers if isinstance(headers, (list, tuple)) else ()):
            if isinstance(name, str) and name.lower() in FORWARDED_HEADERS:
                what = f"{name.lower()} is sent to the application by the gateway itself; remove it"
                yield Problem(("forward", "headers", index), what)


class X509(Section):
    """A guard that reads the client certificate, which TLS has verified (`listen.tls.trust`)."""

    type: Literal["x509"] = Field(description="The kind of guard. For access control.")
    identity: CertificateField = Field(
        default="CN", description="The field that names the client. For templates."
    )
    roles: CertificateField | None = Field(
        default=None, description="The field that has its roles. For `guarded` of routes."
    )
    attributes: dict[Text, CertificateField] = Field(
        default={},
        description="Attributes of the client, each with the field that has its value. For "
        "templates.",
    )
    forwarded: Flag = Field(
        default=False,
        description="Trust the header X-Forwarded-Client-Cert of the proxies in listen.forwarded. "
        "They must remove this header from the requests of clients. For gateways behind a proxy "
        "that terminates TLS.",
    )


class User(Section):
    """A user of an inline guard: with a password, a token or both."""

    password: SecretText | None = Field(
        default=None, description="Password of Basic authentication. For browsers."
    )
    token: SecretText | None = Field(
        default=None, description="A bearer token. For programs and streams."
    )
    roles: tuple[Text, ...] = Field(
        default=(), description="The user's roles. For `guarded` of routes."
    )
    attributes: dict[Text, Text] = Field(
        default={}, description="The user's attributes, by name. For templates."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problem of a user who cannot authenticate."""
        if "password" not in raw and "token" not in raw:
            yield Problem((), "has neither password nor token; add one", is_key=True)


def _validate_user_name(value: object) -> str:
    name = validate_text(value)
    if ":" in name:
        raise create_value_error(
            f"{safe_repr(value)} is no name of a user; leave out ':' (RFC 7617 2)"
        )
    return name


class Inline(Section):
    """A guard that knows the users that this file lists, for development.

    It is refused where other machines can connect, unless it is `exposed`.
    """

    type: Literal["inline"] = Field(description="The kind of guard. For development.")
    users: dict[Annotated[Text, BeforeValidator(_validate_user_name)], User] = Field(
        description="Users by name; the name is the identity. For development.",
        json_schema_extra={"minProperties": 1},
    )
    credentials: Credentials = Field(
        default=BEARER_CREDENTIALS,
        description="Where in a request the token is. For pages, which cannot set headers on "
        "streams.",
    )
    exposed: Flag = Field(
        default=False,
        description="Allow this guard even if other machines can connect. For containers of "
        "developers.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        """Yield the problem of a guard without users."""
        if raw.get("users") in ({}, [], ()):
            yield Problem(("users",), "is empty; add one")


_GUARD_TYPES: Mapping[str, type[Section]] = {
    "jwt": Jwt,
    "http": Http,
    "x509": X509,
    "inline": Inline,
}


def _validate_guard(value: object, info: ValidationInfo) -> Section:
    return validate_by_type(value, info, _GUARD_TYPES, "guard")


_AnyGuard = Jwt | Http | X509 | Inline

Guard: TypeAlias = Annotated[
    _AnyGuard,
    PlainValidator(
        _validate_guard, json_schema_input_type=Annotated[_AnyGuard, Field(discriminator="type")]
    ),
    PlainSerializer(serialize_section, return_type=Any),
]
