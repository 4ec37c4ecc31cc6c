"""From where in a request a guard takes a client's credentials, in zilla's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema

from gateway.config.source.substitution import shown
from gateway.config.types.fields import text
from gateway.config.types.section import Problem, Section, refused

PLACE = "{credentials}"
OWN_QUERY = frozenset(
    {"credit", "fields", "filter", "from", "lastEventId", "positions", "until", "wait"}
)
"""What the gateway reads of a query itself."""

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_FRAMING = frozenset(
    {"connection", "content-length", "content-type", "expect", "host", "keep-alive", "te"}
    | {"trailer", "transfer-encoding", "upgrade"}
)


def _form(value: object) -> str:
    given = text(value)
    if given.count(PLACE) != 1:
        raise refused(f"{shown(value)} says not where the credentials are; write {PLACE} once")
    return given


def _header(value: object) -> str:
    given = text(value).lower()
    if not _TOKEN.fullmatch(given) or given in _FRAMING:
        raise refused(f"{shown(value)} is no header to look into; write such as authorization")
    return given


def _cookie(value: object) -> str:
    given = text(value)
    if not _TOKEN.fullmatch(given):
        raise refused(f"{shown(value)} is no name of a cookie; use letters, digits, '-' and '_'")
    return given


def _parameter(value: object) -> str:
    given = text(value)
    if given in OWN_QUERY:
        raise refused(f"?{given}= is read by the gateway itself; use another name")
    return given


Form: TypeAlias = Annotated[
    str,
    BeforeValidator(_form),
    WithJsonSchema({"type": "string", "pattern": r"\{credentials\}"}),
]
_NAMED = WithJsonSchema({"type": "string", "minLength": 1})
HeaderName: TypeAlias = Annotated[str, BeforeValidator(_header), _NAMED]
CookieName: TypeAlias = Annotated[str, BeforeValidator(_cookie), _NAMED]
QueryName: TypeAlias = Annotated[str, BeforeValidator(_parameter), _NAMED]


class Credentials(Section):
    """The first that is there is taken: of headers, then of cookies, then of the query.

    A WebSocket's subprotocol `bearer.TOKEN` stands for `authorization: Bearer {credentials}`:
    a browser sets no headers on one.
    """

    headers: dict[HeaderName, Form] = Field(
        default={},
        description="By name, such as authorization: Bearer {credentials}. For programs.",
    )
    cookies: dict[CookieName, Form] = Field(
        default={}, description="By name. For pages of the same site."
    )
    query: dict[QueryName, Form] = Field(
        default={},
        description="By name; what is in a URL ends up in histories. For EventSource elsewhere.",
    )

    @classmethod
    def look(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        if not any(raw.get(part) for part in ("headers", "cookies", "query")):
            yield Problem((), "says nothing; add headers, cookies or query, or leave it out")


BEARER = Credentials(headers={"authorization": f"Bearer {PLACE}"})
"""Where nothing is said."""
