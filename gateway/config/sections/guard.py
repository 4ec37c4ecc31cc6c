"""Who a client is: a token's word, the application's, a certificate's, or that of this file."""

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
"""Of the subject, or with small letters of its alternative names (RFC 5280 4.2.1.6)."""


FORWARDED_HEADERS = frozenset({"x-forwarded-method", "x-forwarded-uri"})
"""Headers of which a client's own, beside the gateway's, could be taken for them."""


class Forward(Section):
    """What of a request the application is shown; without any of it, it is not asked."""

    headers: tuple[HeaderName, ...] = Field(
        default=("cookie", "authorization"),
        description="Headers; a token of a WebSocket goes as authorization. For sessions.",
    )
    query: tuple[QueryName, ...] = Field(
        default=(), description="Parameters of the query. For tickets of one use."
    )


class Http(Section):
    """The application is asked by GET. It grants with 200 and a JSON object of `identity`,
    `roles`, `attributes` and `expires`, and denies with 401 or 403."""

    type: Literal["http"] = Field(description="The kind of guard. For access control.")
    url: Url = Field(description="What is asked. For applications with sessions of their own.")
    forward: Forward = Field(
        default=Forward(), description="What it is shown. For applications with sessions."
    )
    timeout: Annotated[Duration, in_range(0.1, 60)] = Field(
        default=2.0, description="How long it may take to answer. For operators."
    )
    cache: Annotated[Duration, in_range(0, 3600)] = Field(
        default=10.0, description="How long its answer holds. For applications under load."
    )
    attributes: tuple[Text, ...] = Field(
        default=(), description="The attributes that are used of its answers. For templates."
    )
    challenge: ChallengeDuration = Field(
        default=30.0,
        description="How long before expiry a new token is asked for. For long streams.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        forward = raw.get("forward")
        shown = forward if isinstance(forward, Mapping) else {}
        if shown.get("headers") in ([], ()) and not shown.get("query"):
            yield Problem(("forward",), "shows it nothing; add headers or query")
        listed = shown.get("headers")
        for index, name in enumerate(listed if isinstance(listed, (list, tuple)) else ()):
            if isinstance(name, str) and name.lower() in FORWARDED_HEADERS:
                what = f"{name.lower()} is what the gateway itself tells the application; remove it"
                yield Problem(("forward", "headers", index), what)


class X509(Section):
    """The certificate with which a client came, checked by the TLS of `listen`."""

    type: Literal["x509"] = Field(description="The kind of guard. For access control.")
    identity: CertificateField = Field(
        default="CN", description="The field that names the client. For templates."
    )
    roles: CertificateField | None = Field(
        default=None, description="The field with its roles. For `guarded` of routes."
    )
    attributes: dict[Text, CertificateField] = Field(
        default={}, description="Names for further fields. For templates."
    )
    forwarded: Flag = Field(
        default=False,
        description="Believe the X-Forwarded-Client-Cert of the proxies of listen.forwarded, which "
        "have to remove that of clients. For gateways behind a proxy that ends TLS.",
    )


class User(Section):
    """One who is known by this file."""

    password: SecretText | None = Field(default=None, description="For Basic authentication.")
    token: SecretText | None = Field(default=None, description="For bearers of it.")
    roles: tuple[Text, ...] = Field(default=(), description="For `guarded` of routes.")
    attributes: dict[Text, Text] = Field(default={}, description="By name. For templates.")

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if "password" not in raw and "token" not in raw:
            yield Problem((), "has neither password nor token; add one", is_key=True)


def _validate_user_name(value: object) -> str:
    given = validate_text(value)
    if ":" in given:
        raise create_value_error(
            f"{safe_repr(value)} is no name of a user; leave out ':' (RFC 7617 2)"
        )
    return given


class Inline(Section):
    """Users of this file, for whoever develops against a guarded route."""

    type: Literal["inline"] = Field(description="The kind of guard. For development.")
    users: dict[Annotated[Text, BeforeValidator(_validate_user_name)], User] = Field(
        description="By name, which is their identity. For development.",
        json_schema_extra={"minProperties": 1},
    )
    credentials: Credentials = Field(
        default=BEARER_CREDENTIALS, description="From where their tokens are taken. For pages."
    )
    exposed: Flag = Field(
        default=False,
        description="Serve it to other machines, too. For containers of developers.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
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
