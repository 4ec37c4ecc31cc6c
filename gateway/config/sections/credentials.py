"""From where in a request a guard takes a client's credentials, in zilla's words."""

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
    {"credit", "fields", "filter", "from", "lastEventId", "positions", "until", "wait"}
)
"""What the gateway reads of a query itself."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING_HEADERS = frozenset(
    {"connection", "content-length", "content-type", "expect", "host", "keep-alive", "te"}
    | {"trailer", "transfer-encoding", "upgrade"}
)


def _validate_form(value: object) -> str:
    given = validate_text(value)
    if given.count(CREDENTIALS_PLACEHOLDER) != 1:
        raise create_value_error(
            f"{safe_repr(value)} says not where the credentials are; "
            f"write {CREDENTIALS_PLACEHOLDER} once"
        )
    return given


def _validate_header_name(value: object) -> str:
    given = validate_text(value).lower()
    if not _TOKEN.fullmatch(given) or given in _FRAMING_HEADERS:
        raise create_value_error(
            f"{safe_repr(value)} is no header to look into; write such as authorization"
        )
    return given


def _validate_cookie_name(value: object) -> str:
    given = validate_text(value)
    if not _TOKEN.fullmatch(given):
        raise create_value_error(
            f"{safe_repr(value)} is no name of a cookie; use letters, digits, '-' and '_'"
        )
    return given


def _validate_query_name(value: object) -> str:
    given = validate_text(value)
    if given in RESERVED_QUERY_PARAMETERS:
        raise create_value_error(f"?{given}= is read by the gateway itself; use another name")
    return given


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
    """The first that is there is taken: of headers, then of cookies, then of the query.

    A WebSocket's subprotocol `bearer.TOKEN` stands for `authorization: Bearer {credentials}`:
    a browser sets no headers on one.
    """

    headers: dict[HeaderName, CredentialsForm] = Field(
        default={},
        description="By name, such as authorization: Bearer {credentials}. For programs.",
    )
    cookies: dict[CookieName, CredentialsForm] = Field(
        default={}, description="By name. For pages of the same site."
    )
    query: dict[QueryName, CredentialsForm] = Field(
        default={},
        description="By name; what is in a URL ends up in histories. For EventSource elsewhere.",
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not any(raw.get(part) for part in ("headers", "cookies", "query")):
            yield Problem((), "says nothing; add headers, cookies or query, or leave it out")


BEARER_CREDENTIALS = Credentials(headers={"authorization": f"Bearer {CREDENTIALS_PLACEHOLDER}"})
"""Where nothing is said."""
