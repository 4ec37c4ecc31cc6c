"""Describe how clients identify themselves to a guard, for documents and terminals.

The descriptions contain none of a guard's secrets, nor the URL of an application that it asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Credentials
from gateway.config.guards.guard_section import CREDENTIALS_PLACEHOLDER

BEARER_SCHEME: Mapping[str, Any] = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}


class SecurityScheme(NamedTuple):
    """One way to identify a client to a guard; its commands have words to replace.

    `is_sent_by_browser` says whether the EventSource of a page of the same site sends it on its
    own.
    """

    definition: Mapping[str, Any]
    curl: str = ""
    wscat: str = ""
    query: str = ""
    is_sent_by_browser: bool = False


def iter_credentials_schemes(credentials: Credentials) -> Iterator[SecurityScheme]:
    for name, form in credentials.headers.items():
        is_bearer = name == "authorization" and form.lower().startswith("bearer ")
        yield build_header_scheme(name, form, BEARER_SCHEME if is_bearer else None)
    for name, form in credentials.cookies.items():
        yield build_header_scheme("cookie", f"{name}={form}", build_api_key("cookie", name))
    for name, form in credentials.query.items():
        yield SecurityScheme(
            build_api_key("query", name), query=f"{name}={_fill_placeholder(form)}"
        )


def build_header_scheme(
    name: str, form: str, definition: Mapping[str, Any] | None = None
) -> SecurityScheme:
    option = f"-H '{name.title()}: {_fill_placeholder(form)}'"
    return SecurityScheme(
        definition or build_api_key("header", name),
        option,
        option,
        is_sent_by_browser=name == "cookie",
    )


def build_api_key(location: str, name: str) -> dict[str, Any]:
    return {"type": "httpApiKey", "in": location, "name": name}


def _fill_placeholder(form: str) -> str:
    """Return a form with a word to replace, without quotes that would end a shell argument."""
    return form.replace(CREDENTIALS_PLACEHOLDER, "TOKEN").replace("'", "")
