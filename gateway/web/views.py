"""From a route and what a request chooses to the view it looks at."""

from __future__ import annotations

from collections.abc import Mapping

from ..config import Route
from ..core.filters import Filter, Filters
from ..errors import RequestError
from ..hub.view import View


def view_of(route: Route, params: Mapping[str, str], asked: Mapping[str, str]) -> View:
    """The view of one request. Raises RequestError where a template lacks its value."""
    with_ = route.with_
    topics = tuple(template.render(params=params, query=asked) for template in with_.sources)
    if any(not topic or len(topic) > 249 for topic in topics):
        raise RequestError(404, "Unknown topic", "this path names no topic; see the routes")
    filters = tuple(
        Filter(
            key=one.key.render(params=params, query=asked).encode() if one.key else None,
            headers=tuple(
                (name, template.render(params=params, query=asked).encode())
                for name, template in sorted(one.headers.items())
            ),
            fields=tuple(
                (pointer, template.render(params=params, query=asked))
                for pointer, template in sorted(one.value.items())
            ),
        )
        for one in with_.filters
    )
    return View(tuple(dict.fromkeys(topics)), Filters(filters), with_.format, with_.binary)
