"""How a client shows a guard who it is: for its documents, and for a line in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Credentials, Guard, Http, Inline, Jwt, Settings
from gateway.config.sections.credentials import CREDENTIALS_PLACEHOLDER

_BEARER_SCHEME = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
_CERTIFICATE_OPTIONS = "--cert client.pem --key client.key"


class SecurityScheme(NamedTuple):
    """scheme: as AsyncAPI has it. curl, wscat: options, with words to replace; query: of the URL.

    unasked: an EventSource of a page of the same site sends it by itself.
    """

    definition: Mapping[str, Any]
    curl: str = ""
    wscat: str = ""
    query: str = ""
    is_sent_by_browser: bool = False


def list_security_schemes(guard: Guard) -> tuple[SecurityScheme, ...]:
    """All of a guard, the best first. None is of its secrets, nor of where it asks."""
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
    """The ways of each guard that a route names, by names that a document may have."""
    named = {name for route in settings.routes for name in route.guarded}
    taken: set[str] = set()
    return {
        name: {
            _choose_unique_name(name, taken): way
            for way in list_security_schemes(settings.guards[name])
        }
        for name in sorted(named)
    }


def _choose_unique_name(name: str, taken: set[str]) -> str:
    slug = free = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    number = 1
    while free in taken:
        number += 1
        free = f"{slug}-{number}"
    taken.add(free)
    return free


def _iter_credentials_schemes(credentials: Credentials) -> Iterator[SecurityScheme]:
    for name, form in credentials.headers.items():
        bearer = name == "authorization" and form.lower().startswith("bearer ")
        yield _build_header_scheme(name, form, _BEARER_SCHEME if bearer else None)
    for name, form in credentials.cookies.items():
        yield _build_header_scheme("cookie", f"{name}={form}", _build_api_key("cookie", name))
    for name, form in credentials.query.items():
        yield SecurityScheme(
            _build_api_key("query", name), query=f"{name}={_fill_placeholder(form)}"
        )


def _iter_forwarded_schemes(guard: Http) -> Iterator[SecurityScheme]:
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
    return form.replace(CREDENTIALS_PLACEHOLDER, "TOKEN").replace("'", "")
