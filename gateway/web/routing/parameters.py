"""Refuse parameters of the query that nothing reads.

A misspelt parameter was ignored: `?untill=latest` streamed for ever. The parameters of a route are
those that its capability reads, those that its templates name as `${query.name}`, and those in
which its guards find credentials. Parameters for others are ignored: names that begin with `_`, and
`t`, which clients add against caches (jQuery's `_`, an EventSource that is opened anew as
`?t=1700000000`), and the usual names of credentials, which a proxy in front may have checked.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config import ProduceWith, Route, Settings
from gateway.config.guards.credentials import RESERVED_QUERY_PARAMETERS
from gateway.config.source.expression import suggest
from gateway.config.source.template import Template
from gateway.errors import RequestError
from gateway.web.websocket.request import QueryPairs

SELECTION_PARAMETERS = frozenset({"fields", "filter"})
"""What a client may choose on every route, as far as the route lets it."""
STREAM_PARAMETERS = RESERVED_QUERY_PARAMETERS
"""What streams read, by any wire."""
CACHE_BUSTER = "t"
IGNORED_PREFIX = "_"
CREDENTIALS = frozenset(
    {
        *("access_token", "api_key", "apikey", "auth", "authorization", "bearer", "credentials"),
        *("id_token", "jwt", "session", "sig", "signature", "ticket", "token"),
    }
)
MAX_QUOTED_CHARS = 64  # characters of a name in an error


class Parameters:
    """The parameters that each route of a configuration reads; it never changes."""

    def __init__(self, settings: Settings, *, is_open: bool = False) -> None:
        """Collect the parameters; `is_open` if an application may read any by itself."""
        self._is_open = is_open
        # Routes are identified by `id`, as they are not hashable; the settings keep them.
        self._names_by_route = {
            id(route): list_parameters(route, settings) for route in settings.routes
        }

    def check(self, route: Route, query: QueryPairs) -> None:
        """Refuse a parameter that nothing reads by 400, with the name that may have been meant."""
        known = self._names_by_route.get(id(route))
        if not query or known is None or self._is_open:
            return
        for name, _ in query:
            if name and name not in known and not is_ignored(name):
                raise _build_unknown_parameter(name, known)


def is_ignored(name: str) -> bool:
    """Return whether a parameter is for a cache or a proxy in between."""
    is_for_cache = name == CACHE_BUSTER or name.startswith(IGNORED_PREFIX)
    return is_for_cache or name.lower() in CREDENTIALS


def list_parameters(route: Route, settings: Settings) -> frozenset[str]:
    own = STREAM_PARAMETERS if route.is_stream else SELECTION_PARAMETERS
    names = (
        placeholder.name
        for template in _iter_templates(route)
        for placeholder in template.placeholders
        if placeholder.root == "query"
    )
    guards = [settings.guards[name] for name in route.guarded]
    credentials = (name for guard in guards for name in guard.secret_parameters)
    return own.union(names, credentials)


def _iter_templates(route: Route) -> Iterator[Template]:
    with_ = route.with_
    yield from with_.topic_templates
    for item in with_.filters:
        yield from item.templates
    if isinstance(with_, ProduceWith):
        yield from with_.overrides.values()
        if with_.key is not None:
            yield with_.key


def _build_unknown_parameter(name: str, known: frozenset[str]) -> RequestError:
    quoted = name[:MAX_QUOTED_CHARS]
    hint, listed = suggest(quoted, known), ", ".join(sorted(known))
    if hint.startswith("did you mean"):
        hint += f" This route reads {listed}"
    return RequestError(400, "Bad request", f"nothing reads ?{quoted}=; {hint}")
