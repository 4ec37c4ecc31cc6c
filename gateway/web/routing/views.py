"""From a route and what a request chooses to the view it looks at.

A client's choice only narrows what the operator opened: topics by `allow`, records by
filters where `clientFilters` lets it, fields by those that the route shows. A filter on a
field that is not shown would tell what stands there, and is refused too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from gateway.config import Route, Settings, fields_of, filters_of_all
from gateway.config.sections.route import Shown
from gateway.config.source.template import Template
from gateway.config.types.filters import filters_of_route
from gateway.core.channel.filters import Filters
from gateway.core.channel.glob import fits, is_glob
from gateway.errors import RequestError, UnknownTopic
from gateway.hub.fanout.hubs import Hubs
from gateway.hub.fanout.view import View
from gateway.web.access import NOBODY, Granted

MOST = 100  # topics of one view
SHORT = 256  # characters of a path and a query whose view is kept
MOST_MADE = 4096  # views that are
PATTERNS = 10  # in one request: each is compared with every topic of the cluster

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Chosen(NamedTuple):
    """What a client chooses itself. fields: by JSON pointer; none for all that are shown."""

    filters: Filters = Filters()
    fields: tuple[str, ...] = ()


class Fill(NamedTuple):
    """What fills the holes of a route's texts: the path's parameters, the query, the client's
    claims, and words such as `idempotencyKey`."""

    params: Mapping[str, str] = {}
    query: Mapping[str, str] = {}
    granted: Granted = NOBODY
    words: Mapping[str, str] = {}

    def text(self, template: Template) -> str:
        """Raises RequestError: 400 for a missing parameter, 403 for a missing claim."""
        if not template.holes:
            return template.render()
        return template.render(
            params=self.params,
            query=self.query,
            identity=self.granted.identities,
            attributes=self.granted.attributes,
            words=self.words,
        )


NOTHING = Chosen()


class Views:
    """The views of requests to one gateway."""

    def __init__(self, hubs: Hubs, settings: Settings) -> None:
        self._hubs = hubs
        self._settings = settings
        self._clusters = {id(route): settings.cluster_of(route) for route in settings.routes}
        self._configured = {
            name: frozenset(topic.name for topic in kafka.topics)
            for name, kafka in settings.clusters.items()
        }
        self._made: dict[Hashable, View] = {}

    async def of(
        self,
        route: Route,
        params: Mapping[str, str],
        query: Iterable[tuple[str, str]],
        chosen: Chosen | None = None,
        granted: Granted = NOBODY,
    ) -> View:
        """The view of one request.

        query: all of it, in its order. chosen: in place of what the query says. granted: who asks.
        Raises RequestError, UnknownTopic, and KafkaError where a pattern needs the brokers.
        """
        asked = list(query)
        if chosen is None:
            may_choose(route, asked)
        if chosen is None and not route.with_.allow:
            return self._known(route, params, asked, granted)
        chosen = chosen_of(asked) if chosen is None else chosen
        cluster = self.cluster_of(route)
        known = self._configured[cluster]
        fill = Fill(params, dict(asked), granted)
        is_pattern = bool(route.with_.allow) and any(map(is_glob, _sources(route, fill)))
        if is_pattern:  # it means what there is, not what is configured and may be absent
            known = await self._hubs.of(cluster).cluster.topics()
        view = view_of(route, fill, chosen, known=known, cluster=cluster)
        return replace(view, is_pattern=True) if is_pattern else view

    def cluster_of(self, route: Route) -> str:
        """The name of the cluster that a route is of."""
        known = self._clusters.get(id(route))
        return self._settings.cluster_of(route) if known is None else known

    def _known(
        self,
        route: Route,
        params: Mapping[str, str],
        asked: Sequence[tuple[str, str]],
        granted: Granted,
    ) -> View:
        """Made once for all who ask alike: 0.7 us of a connect, 26 to make."""
        key = id(route), tuple(params.items()), tuple(asked), granted
        view = self._made.get(key)
        if view is None:
            fill = Fill(params, dict(asked), granted)
            cluster = self.cluster_of(route)
            known = self._configured[cluster]
            view = view_of(route, fill, chosen_of(asked), known=known, cluster=cluster)
            size = sum(len(name) + len(text) for name, text in (*params.items(), *asked))
            if size < SHORT and id(route) in self._clusters:  # else another may get its id
                if len(self._made) >= MOST_MADE:
                    self._made.clear()
                self._made[key] = view
        return view


def may_choose(route: Route, query: Iterable[tuple[str, str]]) -> None:
    """Raise RequestError 403 where a query chooses what the route leaves no choice of.

    Nothing of the query is read for that: whoever may not choose is not worked for.
    """
    names = {name for name, text in query if text}
    if "filter" in names and not route.with_.client_filters:
        raise _refused("filter", "clientFilters")
    if "fields" in names and not route.with_.client_fields:
        raise _refused("fields", "clientFields")


def chosen_of(query: Iterable[tuple[str, str]]) -> Chosen:
    """What `?filter=` (repeated: all of them must match) and `?fields=` say.

    Raises RequestError 400.
    """
    asked = list(query)
    filters = [text for name, text in asked if name == "filter" and text]
    fields = [text for name, text in asked if name == "fields" and text]
    if len(fields) > 1:
        raise _bad(f"?fields= is given {len(fields)} times; give it once, with commas")
    try:
        made = filters_of_all(filters)
    except ValueError as error:
        raise _bad(f"?filter=: {error}") from None
    try:
        return Chosen(made, fields_of("".join(fields)))
    except ValueError as error:
        raise _bad(f"?fields=: {error}") from None


def view_of(
    route: Route,
    fill: Fill,
    chosen: Chosen = NOTHING,
    *,
    known: Collection[str],
    cluster: str = "",
) -> View:
    """The view of one request.

    known: topics that may be served; of a route with `allow`, those that a pattern may mean.
    Raises RequestError (400, 403, 404), and UnknownTopic for what is not served here.
    """
    with_, shown = route.with_, _shown(route, fill.granted)
    return View(
        _topics(route, _sources(route, fill), known),
        _filters(route, fill, chosen.filters, shown),
        with_.format,
        with_.binary,
        _fields(route, chosen.fields, shown),
        with_.interval,
        cluster,
    )


def _sources(route: Route, fill: Fill) -> list[str]:
    """Names and, with `allow`, patterns."""
    made: list[str] = []
    for template in route.with_.sources:
        text = fill.text(template)
        made += text.split(",") if route.with_.allow and template.holes else [text]
    if any(not text or len(text) > 249 for text in made):
        raise RequestError(404, "Unknown topic", "this path names no topic; see the routes")
    return made


def _topics(route: Route, asked: list[str], known: Collection[str]) -> tuple[str, ...]:
    """Who fills in a path must not choose among all topics that the gateway could read."""
    if route.with_.allow:
        return _allowed(route, asked, known)
    for name in asked:
        if name not in known:
            raise UnknownTopic(f"no topic '{name}' is served here", topic=name)
    return tuple(dict.fromkeys(asked))


def _allowed(route: Route, asked: list[str], known: Collection[str]) -> tuple[str, ...]:
    """In the order of their names, so that lists of the same topics are one view."""
    given = {template.literal for template in route.with_.sources}
    patterns = {text for text in asked if is_glob(text)}
    if len(patterns) > PATTERNS or len(asked) > MOST:
        what = f"at most {MOST} topics and {PATTERNS} patterns are read at once; ask for fewer"
        raise _bad(what)
    found = {name for name in asked if name not in patterns}
    for name in found - given:
        if not _NAME.fullmatch(name) or not _is_allowed(name, route.with_.allow):
            raise UnknownTopic(f"no topic '{name}' is served here", topic=name)
    if patterns:
        found |= set(_meant(patterns, [n for n in known if _is_allowed(n, route.with_.allow)]))
    if not found:
        raise RequestError(
            404, "Unknown topic", f"no topic fits {', '.join(sorted(patterns))}; see the routes"
        )
    if len(found) > MOST:
        raise _bad(f"{len(found)} topics fit, at most {MOST} are read at once; narrow the pattern")
    return tuple(sorted(found))


def _meant(patterns: Collection[str], names: Iterable[str]) -> Iterator[str]:
    return (name for name in names if any(fits(pattern, name) for pattern in patterns))


def _is_allowed(name: str, allow: Collection[str]) -> bool:
    """Kafka's own topics, such as __consumer_offsets, only where they are named."""
    if name.startswith("__"):
        return name in allow
    return any(fits(pattern, name) for pattern in allow)


def _filters(route: Route, fill: Fill, chosen: Filters, shown: tuple[str, ...]) -> Filters:
    try:
        own = filters_of_route(one.written(fill.text) for one in route.with_.filters)
    except ValueError as error:
        raise _bad(f"the filter of this route: {error}") from None
    if not chosen.filters:
        return own
    if not route.with_.client_filters:
        raise _refused("filter", "clientFilters")
    for pointer in sorted(chosen.pointers):
        if shown and not _covered(pointer, shown):
            what = f"?filter= looks at {pointer}, which this route does not show; leave it out"
            raise RequestError(403, "Not to be chosen", what)
    return own.narrowed(chosen)


def _shown(route: Route, granted: Granted) -> tuple[str, ...]:
    """The fields that this client is shown; none of them for all. Raises RequestError 403 where
    there is nothing: an empty list would show everything."""
    fields = route.with_.fields
    told = {
        each.field if isinstance(each, Shown) else each
        for each in fields
        if not isinstance(each, Shown) or granted.has(each.guarded)
    }
    if fields and not told:
        what = "this route shows you no field of its records; its owner lets roles see them"
        raise RequestError(403, "Nothing to be shown", what)
    return tuple(sorted(told))


def _fields(route: Route, chosen: tuple[str, ...], shown: tuple[str, ...]) -> tuple[str, ...]:
    if not chosen:
        return shown
    if not route.with_.client_fields:
        raise _refused("fields", "clientFields")
    if not shown:
        return chosen
    made: set[str] = set()
    for pointer in chosen:
        below = {each for each in shown if _covered(each, (pointer,))}
        if not (below or _covered(pointer, shown)):
            what = f"?fields= asks for {pointer}, which this route does not show; leave it out"
            raise RequestError(403, "Not to be chosen", what)
        made |= below if not _covered(pointer, shown) else {pointer}
    return tuple(sorted(made))


def _covered(pointer: str, by: Iterable[str]) -> bool:
    return any(pointer == each or pointer.startswith(each + "/") for each in by)


def _refused(asked: str, option: str) -> RequestError:
    what = f"this route leaves no choice by ?{asked}=; leave it out, or set {option}: true on it"
    return RequestError(403, "Not to be chosen", what)


def _bad(detail: str) -> RequestError:
    return RequestError(400, "Bad request", detail)
