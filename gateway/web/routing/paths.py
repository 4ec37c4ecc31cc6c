"""Which route answers to a path and a method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from starlette.exceptions import HTTPException

from gateway.config import PathPattern, Route
from gateway.config.sections.producing import pattern_of


class Found(NamedTuple):
    """params: of the path's pattern. reply: it is where the reply of a request is asked for.
    method: what the path answers to; of a stream's route that takes records, POST for those."""

    route: Route
    params: Mapping[str, str]
    reply: bool = False
    method: str = "GET"


class _Served(NamedTuple):
    pattern: PathPattern
    route: Route
    method: str
    reply: bool = False

    @property
    def stream(self) -> bool:
        return self.route.with_.capability == "stream"


class Paths:
    """The paths of some routes; the first route that fits answers."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._served = tuple(_served(routes))

    def find(self, path: str, method: str | None = None) -> Found:
        """path: percent-encoded as it came. method: None for a stream, whatever its wire.

        Raises HTTPException: 404, and 405 with what the path answers to.
        """
        known = False
        for served in self._served:
            params = served.pattern.match(path)
            if params is None:
                continue
            if served.method == method or (method is None and served.stream):
                return Found(served.route, params, served.reply, served.method)
            known = True
        if known:
            raise HTTPException(405, headers={"Allow": self.allow(path)})
        raise HTTPException(404)

    def nearest(self, path: str, method: str) -> Route | None:
        """The route that answers, or would to another method; None where there is none."""
        found: Route | None = None
        for served in self._served:
            if served.pattern.match(path) is not None:
                if served.method == method:
                    return served.route
                found = found or served.route
        return found

    def allow(self, path: str) -> str:
        """What a path answers to, as `Allow` has it (RFC 9110 10.2.1). Raises HTTPException 404."""
        methods = [each.method for each in self._served if each.pattern.match(path) is not None]
        if not methods:
            raise HTTPException(404)
        if "GET" in methods:
            methods.insert(methods.index("GET") + 1, "HEAD")
        return ", ".join(dict.fromkeys([*methods, "OPTIONS"]))

    def writable(self, path: str) -> Found:
        """The route that takes records by this path; another, where none does. Raises
        HTTPException 404."""
        found: Found | None = None
        for served in self._served:
            if served.reply or served.method == "DELETE":
                continue
            params = served.pattern.match(path)
            if params is not None:
                if served.route.with_.writes:
                    method = "POST" if served.stream else served.method
                    return Found(served.route, params, method=method)
                found = found or Found(served.route, params, method=served.method)
        if found is None:
            raise HTTPException(404)
        return found


def _served(routes: Iterable[Route]) -> Iterator[_Served]:
    for route in routes:
        for when in route.when:
            yield _Served(when.pattern, route, route.method(when))
        if route.with_.async_ is not None:
            yield _Served(pattern_of(route.with_.async_.location), route, "GET", reply=True)
