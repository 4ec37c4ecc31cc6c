"""Requests that have one answer: documents, records that are written, and replies to them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.config import Route, Settings

from .security_schemes import SecurityScheme, build_security_schemes

ACTION_DESCRIPTIONS = {
    "fetch": "the latest record of a key",
    "produce": "writes a record",
    "reply": "writes a record, and answers with its reply",
}


class ExchangeDescription(NamedTuple):
    """One method of one path. ways: of its guards, as of `Stream`."""

    method: str
    path: str
    route: Route
    security_schemes: tuple[Mapping[str, SecurityScheme], ...] = ()

    @property
    def action(self) -> str:
        with_ = self.route.with_
        return ACTION_DESCRIPTIONS["reply" if with_.reply_to is not None else with_.capability]

    def format_line(self, base_url: str) -> str:
        """For a terminal, with the names of the path as values to replace."""
        shown = [next(iter(each.values())) for each in self.security_schemes]
        query = "&".join([way.query for way in shown if way.query])
        url = shlex.quote(base_url + self.path + (f"?{query}" if query else ""))
        own = "" if self.method == "GET" else f" -X {self.method}"
        body = " -H 'Content-Type: application/json' -d '{}'"
        own += body if self.method in ("POST", "PUT", "PATCH") else ""
        return f"curl{own}{''.join([f' {way.curl}' for way in shown if way.curl])} {url}"

    def to_json(self, base_url: str) -> dict[str, Any]:
        with_ = self.route.with_
        told = {"method": self.method, "path": self.path, "capability": with_.capability}
        later = {"location": str(with_.async_.location)} if with_.async_ is not None else {}
        return {
            **told,
            "topics": tuple(str(source) for source in with_.topic_templates),
            "replies": with_.reply_to is not None,
            **later,
            "guarded": tuple(self.route.guarded),
            "line": self.format_line(base_url),
        }


def list_exchanges(settings: Settings) -> tuple[ExchangeDescription, ...]:
    """All of them, in the order of the routes."""
    return tuple(_iter_exchanges(settings))


def _iter_exchanges(settings: Settings) -> Iterator[ExchangeDescription]:
    known = build_security_schemes(settings)
    for route in settings.routes:
        if route.with_.capability != "stream":
            ways = tuple(known[name] for name in route.guarded)
            for when in route.when:
                yield ExchangeDescription(route.get_method(when), when.path, route, ways)
