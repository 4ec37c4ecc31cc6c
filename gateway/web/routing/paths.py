"""Find the route that answers to a path and a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException

from gateway.config import PathPattern, Route
from gateway.config.capabilities.produce import parse_location
from gateway.config.source.expression import find_closest


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
