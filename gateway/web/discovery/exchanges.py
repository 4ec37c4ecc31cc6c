"""Requests that have one answer: documents, records that are written, and replies to them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Route, Settings

from .ways import Way, schemes

DOES = {
    "fetch": "the latest record of a key",
    "produce": "writes a record",
    "reply": "writes a record, and answers with its reply",
}


class Exchange(NamedTuple):
    """One method of one path. ways: of its guards, as of `Stream`."""

    method: str
    path: str
    route: Route
    ways: tuple[Mapping[str, Way], ...] = ()

    @property
    def does(self) -> str:
        with_ = self.route.with_
        return DOES["reply" if with_.reply_to is not None else with_.capability]

    def line(self, base: str) -> str:
        """For a terminal, with the names of the path as values to replace."""
        shown = [next(iter(each.values())) for each in self.ways]
        query = "&".join([way.query for way in shown if way.query])
        url = shlex.quote(base + self.path + (f"?{query}" if query else ""))
        own = "" if self.method == "GET" else f" -X {self.method}"
        body = " -H 'Content-Type: application/json' -d '{}'"
        own += body if self.method in ("POST", "PUT", "PATCH") else ""
        return f"curl{own}{''.join([f' {way.curl}' for way in shown if way.curl])} {url}"

    def as_json(self, base: str) -> dict[str, Any]:
        with_ = self.route.with_
        told = {"method": self.method, "path": self.path, "capability": with_.capability}
        later = {"location": str(with_.async_.location)} if with_.async_ is not None else {}
        return {
            **told,
            "topics": tuple(str(source) for source in with_.sources),
            "replies": with_.reply_to is not None,
            **later,
            "guarded": tuple(self.route.guarded),
            "line": self.line(base),
        }


def exchanges(settings: Settings) -> tuple[Exchange, ...]:
    """All of them, in the order of the routes."""
    return tuple(_exchanges(settings))


def _exchanges(settings: Settings) -> Iterator[Exchange]:
    known = schemes(settings)
    for route in settings.routes:
        if route.with_.capability != "stream":
            ways = tuple(known[name] for name in route.guarded)
            for when in route.when:
                yield Exchange(route.method(when), when.path, route, ways)
