"""How a client shows a guard who it is: for its documents, and for a line in a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Credentials, Guard, Http, Inline, Jwt, Settings
from gateway.config.sections.credentials import PLACE

_BEARER = {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}
_PEM = "--cert client.pem --key client.key"


class Way(NamedTuple):
    """scheme: as AsyncAPI has it. curl, wscat: options, with words to replace; query: of the URL.

    unasked: an EventSource of a page of the same site sends it by itself.
    """

    scheme: Mapping[str, Any]
    curl: str = ""
    wscat: str = ""
    query: str = ""
    unasked: bool = False


def ways(guard: Guard) -> tuple[Way, ...]:
    """All of a guard, the best first. None is of its secrets, nor of where it asks."""
    if isinstance(guard, Jwt):
        return tuple(_places(guard.credentials))
    if isinstance(guard, Inline):
        scheme = {"type": "http", "scheme": "basic"}
        user = "NAME:PASSWORD"
        return (
            Way(scheme, f"-u {user}", f"--auth {user}", unasked=True),
            *_places(guard.credentials),
        )
    if isinstance(guard, Http):
        return tuple(_shown(guard))
    return (Way({"type": "X509"}, _PEM, _PEM, unasked=True),)


def schemes(settings: Settings) -> Mapping[str, Mapping[str, Way]]:
    """The ways of each guard that a route names, by names that a document may have."""
    named = {name for route in settings.routes for name in route.guarded}
    taken: set[str] = set()
    return {
        name: {_free(name, taken): way for way in ways(settings.guards[name])}
        for name in sorted(named)
    }


def _free(name: str, taken: set[str]) -> str:
    slug = free = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    number = 1
    while free in taken:
        number += 1
        free = f"{slug}-{number}"
    taken.add(free)
    return free


def _places(credentials: Credentials) -> Iterator[Way]:
    for name, form in credentials.headers.items():
        bearer = name == "authorization" and form.lower().startswith("bearer ")
        yield _header(name, form, _BEARER if bearer else None)
    for name, form in credentials.cookies.items():
        yield _header("cookie", f"{name}={form}", _key("cookie", name))
    for name, form in credentials.query.items():
        yield Way(_key("query", name), query=f"{name}={_filled(form)}")


def _shown(guard: Http) -> Iterator[Way]:
    for name in guard.forward.headers:
        if name == "authorization":
            yield _header(name, f"Bearer {PLACE}", _BEARER)
        else:
            yield _header(name, "NAME=VALUE" if name == "cookie" else "VALUE")
    for name in guard.forward.query:
        yield Way(_key("query", name), query=f"{name}=VALUE")


def _header(name: str, form: str, scheme: Mapping[str, Any] | None = None) -> Way:
    option = f"-H '{name.title()}: {_filled(form)}'"
    return Way(scheme or _key("header", name), option, option, unasked=name == "cookie")


def _key(place: str, name: str) -> dict[str, Any]:
    return {"type": "httpApiKey", "in": place, "name": name}


def _filled(form: str) -> str:
    return form.replace(PLACE, "TOKEN").replace("'", "")
