"""Find the route that answers to a path and a method, and refuse parameters that nothing reads."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.types import Scope

from gateway.config import PathPattern, ProduceWith, Route, Settings
from gateway.config.capabilities import parse_location
from gateway.config.sections.guard_section import RESERVED_QUERY_PARAMETERS
from gateway.config.types.substitution import find_closest, suggest
from gateway.config.types.template import Template
from gateway.core.client.terms import ClientKey, EndReason
from gateway.errors import NotGranted, RequestError
from gateway.web.access import NO_GRANTS, Granted
from gateway.web.http.limits import get_client_address

from .messages import QueryPairs


class PathMatch(NamedTuple):
    """The route of a path; `method` is POST if a stream's route is to take records."""

    route: Route
    pattern: PathPattern
    params: Mapping[str, str]
    is_reply: bool = False
    method: str = "GET"

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(self.params.values())


class _ServedPath(NamedTuple):
    pattern: PathPattern
    route: Route
    method: str
    is_reply: bool = False

    @property
    def is_stream(self) -> bool:
        return self.route.is_stream

    def build_match(self, params: Mapping[str, str]) -> PathMatch:
        return PathMatch(self.route, self.pattern, params, self.is_reply, self.method)


class Paths:
    """The paths of some routes; the first route that matches answers. It never changes."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._served_paths = tuple(_iter_served_paths(routes))

    def find_route(self, path: str, method: str | None = None) -> PathMatch:
        """Return the route of a percent-encoded path; a method of None is for a stream.

        A path that no route has is a 404, and one with other methods a 405 that names them.
        """
        is_known_path = False
        for served in self._served_paths:
            params = served.pattern.match(path)
            if params is None:
                continue
            if served.method == method or (method is None and served.is_stream):
                return served.build_match(params)
            is_known_path = True
        if is_known_path:
            raise HTTPException(405, headers={"Allow": self.format_allow(path)})
        raise self._build_not_found(path)

    def find_nearest(self, path: str, method: str) -> Route | None:
        """Return the route that answers, or would to another method; None if there is none."""
        nearest: Route | None = None
        for served in self._served_paths:
            if served.pattern.match(path) is not None:
                if served.method == method:
                    return served.route
                nearest = nearest or served.route
        return nearest

    def format_allow(self, path: str) -> str:
        """Return the methods of a path, as in `Allow` (RFC 9110 10.2.1), or raise a 404.

        `*` stands for all paths (RFC 9110 9.3.7).
        """
        methods = [
            served.method
            for served in self._served_paths
            if path == "*" or served.pattern.match(path) is not None
        ]
        if not methods:
            raise self._build_not_found(path)
        if "GET" in methods:
            methods.insert(methods.index("GET") + 1, "HEAD")
        return ", ".join(dict.fromkeys([*methods, "OPTIONS"]))

    def find_writable(self, path: str) -> PathMatch:
        """Return the route that takes records by this path, or raise a 404.

        If no route with the path takes records, it is the first route with the path, so that the
        caller can say why that one does not.
        """
        fallback: PathMatch | None = None
        for served in self._served_paths:
            # Replies are read and DELETE has no record: neither says that the path takes records.
            if served.is_reply or served.method == "DELETE":
                continue
            params = served.pattern.match(path)
            if params is not None:
                if served.route.with_.can_write:
                    found = served.build_match(params)
                    return found._replace(method="POST") if served.is_stream else found
                fallback = fallback or served.build_match(params)
        if fallback is None:
            raise self._build_not_found(path)
        return fallback

    def _build_not_found(self, path: str) -> HTTPException:
        """Return the error of a path that no route has, with the one that may have been meant."""
        patterns = (served.pattern for served in self._served_paths)
        nearest = find_closest(path, ["/" + "/".join(pattern.segments) for pattern in patterns])
        if nearest is None:
            return HTTPException(404)
        return HTTPException(404, f"no route has this path; did you mean '{nearest}'?")


def _iter_served_paths(routes: Iterable[Route]) -> Iterator[_ServedPath]:
    for route in routes:
        for when in route.when:
            yield _ServedPath(when.pattern, route, route.get_method(when))
        if route.with_.reply_location is not None:
            pattern = parse_location(route.with_.reply_location)
            yield _ServedPath(pattern, route, "GET", is_reply=True)


class Match(NamedTuple):
    """A route that a request matched, and the client that asks.

    Created by `Routes`. Without `granted`, nobody is admitted yet.

    Attributes:
        pattern: The path pattern; None if the route was not looked up by a path.
        values: The values of its parameters, in their order. Each stream keeps its match for as
            long as it runs, and a dict of one parameter takes 130 bytes more.
        path: The path, percent-encoded as it came.
        is_reply: Whether the path is where a client fetches the reply of an earlier request.
        purpose: The lookup of the path: by an HTTP method, for a stream (None), or WRITE_PURPOSE.
        settings: The configuration at the lookup; None if it was not looked up.
        method: The client's action for guards, as an HTTP method on any wire.
    """

    route: Route
    pattern: PathPattern | None = None
    values: tuple[str, ...] = ()
    granted: Granted = NO_GRANTS
    path: str = ""
    is_reply: bool = False
    purpose: str | None = None
    settings: Settings | None = None
    method: str = "GET"

    @property
    def params(self) -> Mapping[str, str]:
        names = () if self.pattern is None else self.pattern.params
        return dict(zip(names, self.values, strict=True))

    def get_client_key(self, scope: Scope) -> ClientKey:
        """Return the key of the client's share: who it is or, without guards, its address."""
        return self.granted.client_key or get_client_address(scope)


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
    """The parameters that each route of a configuration reads; it never changes.

    A misspelt parameter was ignored: `?untill=latest` streamed for ever. The parameters of a route
    are those that its capability reads, those that its templates name as `${query.name}`, and those
    in which its guards find credentials. Parameters for others are ignored: names that begin with
    `_`, and `t`, which clients add against caches (jQuery's `_`, an EventSource that is opened anew
    as `?t=1700000000`), and the usual names of credentials, which a proxy in front may have
    checked.
    """

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


RETRY_DELAY_S = (3.0, 10.0)  # seconds until a client of a paused route tries again


class RoutePaused(RequestError):
    reason = EndReason.PAUSED

    def __init__(self) -> None:
        detail = "this route is paused by an operator; come back later"
        super().__init__(503, "Paused", detail, retry_after=random.uniform(*RETRY_DELAY_S))


class AccessRevoked(NotGranted):
    reason = EndReason.ACCESS_REVOKED

    def __init__(self) -> None:
        super().__init__(403, "your access was revoked; ask whoever runs the gateway")
