"""Define the places of a client's credentials in a request; the options are Zilla's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.source.substitution import safe_repr
from gateway.config.types.fields import validate_text
from gateway.config.types.section import Problem, Section, create_value_error

CREDENTIALS_PLACEHOLDER = "{credentials}"
RESERVED_QUERY_PARAMETERS = frozenset(
    {"credit", "dictionary", "fields", "filter", "from", "lastEventId", "positions"}
    | {"until", "wait"}
)
"""The query parameters that the gateway reads itself, so that no guard can use them."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110 5.6.2
# Headers of the message and its connection. Their values are not the client's to choose freely.
_FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "content-type", "expect", "host", "keep-alive", "te"}
    | {"trailer", "transfer-encoding", "upgrade"}
)


def _validate_form(value: object) -> str:
    text = validate_text(value)
    if text.count(CREDENTIALS_PLACEHOLDER) != 1:
        raise create_value_error(
            f"{safe_repr(value)} does not say where the credentials are; "
            f"write {CREDENTIALS_PLACEHOLDER} once"
        )
    return text


def _validate_header_name(value: object) -> str:
    name = validate_text(value).lower()
    if not _TOKEN.fullmatch(name) or name in _FRAMING_HEADERS:
        raise create_value_error(
            f"{safe_repr(value)} is no header for credentials; write such as authorization"
        )
    return name


def _validate_cookie_name(value: object) -> str:
    name = validate_text(value)
    if not _TOKEN.fullmatch(name):
        raise create_value_error(
            f"{safe_repr(value)} is no name of a cookie; use letters, digits, '-' and '_'"
        )
    return name


def _validate_query_name(value: object) -> str:
    name = validate_text(value)
    if name in RESERVED_QUERY_PARAMETERS:
        raise create_value_error(f"?{name}= is read by the gateway itself; use another name")
    return name


CredentialsForm: TypeAlias = Annotated[
    str,
    BeforeValidator(_validate_form),
    WithJsonSchema({"type": "string", "pattern": r"\{credentials\}"}),
]
_NAME_SCHEMA = WithJsonSchema({"type": "string", "minLength": 1})
HeaderName: TypeAlias = Annotated[str, BeforeValidator(_validate_header_name), _NAME_SCHEMA]
CookieName: TypeAlias = Annotated[str, BeforeValidator(_validate_cookie_name), _NAME_SCHEMA]
QueryName: TypeAlias = Annotated[str, BeforeValidator(_validate_query_name), _NAME_SCHEMA]


class Credentials(Section):
    """Where a guard finds the credentials: in headers, then in cookies, then in the query.

    The first credentials that are found are used. On a WebSocket, where browsers cannot set
    headers, the subprotocol `bearer.TOKEN` beside `gateway.v1` is read as
    `authorization: Bearer TOKEN`.
    """

    headers: dict[HeaderName, CredentialsForm] = Field(
        default={},
        description="Headers by name, such as `authorization: Bearer {credentials}`. For programs.",
    )
    cookies: dict[CookieName, CredentialsForm] = Field(
        default={},
        description='Cookies by name, such as `session: "{credentials}"`. For pages of the same '
        "site.",
    )
    query: dict[QueryName, CredentialsForm] = Field(
        default={},
        description="Query parameters by name. URLs end up in logs and browser histories, so "
        "prefer headers or cookies. For EventSource in pages of other sites.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not any(raw.get(part) for part in ("headers", "cookies", "query")):
            yield Problem((), "is empty; add headers, cookies or query, or leave it out")


BEARER_CREDENTIALS = Credentials(headers={"authorization": f"Bearer {CREDENTIALS_PLACEHOLDER}"})
"""The default: a bearer token in the header `Authorization` (RFC 6750 2.1)."""
