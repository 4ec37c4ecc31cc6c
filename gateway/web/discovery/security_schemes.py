"""Describe how clients identify themselves to a guard, for documents and terminals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Credentials, Guard, Http, Inline, Jwt, Settings
from gateway.config.sections.credentials import CREDENTIALS_PLACEHOLDER

_BEARER_SCHEME = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
_CERTIFICATE_OPTIONS = "--cert client.pem --key client.key"


class SecurityScheme(NamedTuple):
    """One way to identify a client to a guard.

    Attributes:
        definition: The security scheme of AsyncAPI.
        curl: Options of curl, with words to replace.
        wscat: Options of wscat, with words to replace.
        query: Parameters for the URL, with words to replace.
        is_sent_by_browser: Whether the EventSource of a page of the same site sends it on its own.
    """

    definition: Mapping[str, Any]
    curl: str = ""
    wscat: str = ""
    query: str = ""
    is_sent_by_browser: bool = False


def list_security_schemes(guard: Guard) -> tuple[SecurityScheme, ...]:
    """Return the schemes of a guard, the best one first.

    They contain none of its secrets, nor the URL of an application that it asks.
    """
    if isinstance(guard, Jwt):
        return tuple(_iter_credentials_schemes(guard.credentials))
    if isinstance(guard, Inline):
        scheme = {"type": "http", "scheme": "basic"}
        user = "NAME:PASSWORD"
        return (
            SecurityScheme(scheme, f"-u {user}", f"--auth {user}", is_sent_by_browser=True),
            *_iter_credentials_schemes(guard.credentials),
        )
    if isinstance(guard, Http):
        return tuple(_iter_forwarded_schemes(guard))
    return (
        SecurityScheme(
            {"type": "X509"}, _CERTIFICATE_OPTIONS, _CERTIFICATE_OPTIONS, is_sent_by_browser=True
        ),
    )


def build_security_schemes(settings: Settings) -> Mapping[str, Mapping[str, SecurityScheme]]:
    """Return the schemes of each guard that a route names.

    Returns:
        By the name of the guard, its schemes by a name that is unique and allowed in a document.
    """
    guard_names = {name for route in settings.routes for name in route.guarded}
    taken: set[str] = set()
    return {
        name: {
            _choose_unique_name(name, taken): scheme
            for scheme in list_security_schemes(settings.guards[name])
        }
        for name in sorted(guard_names)
    }


def _choose_unique_name(name: str, taken: set[str]) -> str:
    slug = unique_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    number = 1
    while unique_name in taken:
        number += 1
        unique_name = f"{slug}-{number}"
    taken.add(unique_name)
    return unique_name


def _iter_credentials_schemes(credentials: Credentials) -> Iterator[SecurityScheme]:
    """Yield the scheme of each location of credentials."""
    for name, form in credentials.headers.items():
        is_bearer = name == "authorization" and form.lower().startswith("bearer ")
        yield _build_header_scheme(name, form, _BEARER_SCHEME if is_bearer else None)
    for name, form in credentials.cookies.items():
        yield _build_header_scheme("cookie", f"{name}={form}", _build_api_key("cookie", name))
    for name, form in credentials.query.items():
        yield SecurityScheme(
            _build_api_key("query", name), query=f"{name}={_fill_placeholder(form)}"
        )


def _iter_forwarded_schemes(guard: Http) -> Iterator[SecurityScheme]:
    """Yield the scheme of each header and parameter that the application gets."""
    for name in guard.forward.headers:
        if name == "authorization":
            yield _build_header_scheme(name, f"Bearer {CREDENTIALS_PLACEHOLDER}", _BEARER_SCHEME)
        else:
            yield _build_header_scheme(name, "NAME=VALUE" if name == "cookie" else "VALUE")
    for name in guard.forward.query:
        yield SecurityScheme(_build_api_key("query", name), query=f"{name}=VALUE")


def _build_header_scheme(
    name: str, form: str, definition: Mapping[str, Any] | None = None
) -> SecurityScheme:
    """Return the scheme of a header that has this form."""
    option = f"-H '{name.title()}: {_fill_placeholder(form)}'"
    return SecurityScheme(
        definition or _build_api_key("header", name),
        option,
        option,
        is_sent_by_browser=name == "cookie",
    )


def _build_api_key(location: str, name: str) -> dict[str, Any]:
    return {"type": "httpApiKey", "in": location, "name": name}


def _fill_placeholder(form: str) -> str:
    """Return a form with a word to replace, without quotes that would end a shell argument."""
    return form.replace(CREDENTIALS_PLACEHOLDER, "TOKEN").replace("'", "")
