"""Which route answers to a path and a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException

from gateway.config import PathPattern, Route
from gateway.config.sections.produce import parse_location


class PathMatch(NamedTuple):
    """params: of the path's pattern. reply: it is where the reply of a request is asked for.
    method: what the path answers to; of a stream's route that takes records, POST for those."""

    route: Route
    params: Mapping[str, str]
    is_reply: bool = False
    method: str = "GET"


class _ServedPath(NamedTuple):
    pattern: PathPattern
    route: Route
    method: str
    is_reply: bool = False

    @property
    def is_stream(self) -> bool:
        return self.route.with_.capability == "stream"


class Paths:
    """The paths of some routes; the first route that fits answers."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._served_paths = tuple(_iter_served_paths(routes))

    def find_route(self, path: str, method: str | None = None) -> PathMatch:
        """path: percent-encoded as it came. method: None for a stream, whatever its wire.

        Raises HTTPException: 404, and 405 with what the path answers to.
        """
        known = False
        for served in self._served_paths:
            params = served.pattern.match(path)
            if params is None:
                continue
            if served.method == method or (method is None and served.is_stream):
                return PathMatch(served.route, params, served.is_reply, served.method)
            known = True
        if known:
            raise HTTPException(405, headers={"Allow": self.format_allow(path)})
        raise HTTPException(404)

    def find_nearest(self, path: str, method: str) -> Route | None:
        """The route that answers, or would to another method; None where there is none."""
        found: Route | None = None
        for served in self._served_paths:
            if served.pattern.match(path) is not None:
                if served.method == method:
                    return served.route
                found = found or served.route
        return found

    def format_allow(self, path: str) -> str:
        """What a path answers to, as `Allow` has it (RFC 9110 10.2.1). Raises HTTPException 404."""
        methods = [
            each.method for each in self._served_paths if each.pattern.match(path) is not None
        ]
        if not methods:
            raise HTTPException(404)
        if "GET" in methods:
            methods.insert(methods.index("GET") + 1, "HEAD")
        return ", ".join(dict.fromkeys([*methods, "OPTIONS"]))

    def find_writable(self, path: str) -> PathMatch:
        """The route that takes records by this path; another, where none does. Raises
        HTTPException 404."""
        found: PathMatch | None = None
        for served in self._served_paths:
            if served.is_reply or served.method == "DELETE":
                continue
            params = served.pattern.match(path)
            if params is not None:
                if served.route.with_.can_write:
                    method = "POST" if served.is_stream else served.method
                    return PathMatch(served.route, params, method=method)
                found = found or PathMatch(served.route, params, method=served.method)
        if found is None:
            raise HTTPException(404)
        return found


def _iter_served_paths(routes: Iterable[Route]) -> Iterator[_ServedPath]:
    for route in routes:
        for when in route.when:
            yield _ServedPath(when.pattern, route, route.get_method(when))
        if route.with_.async_ is not None:
            yield _ServedPath(
                parse_location(route.with_.async_.location), route, "GET", is_reply=True
            )
