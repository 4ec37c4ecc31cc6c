"""What must agree between parts of a configuration: names, paths, parameters.

Works on the values as written, which may be wrong in any way, so that an unknown topic
in a route is told together with a wrong duration elsewhere and not a run later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.sections.producing import pattern_of
from gateway.config.source.expression import nearest
from gateway.config.source.substitution import Unsettled, shown
from gateway.config.source.template import Hole, Template
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem

from . import clusters
from . import sidecar as beside
from .clusters import matches, sections, topics_for
from .guards import admin, claim, guarded, guards, masked, secret_query
from .jobs import jobs

RESERVED = frozenset(
    {
        *("/", "/asyncapi.json", "/discovery.css", "/discovery.js"),
        *("/gateway.js", "/gateway.d.ts", "/health/live", "/health/ready", "/ws"),
    }
)
OWN_QUERY = frozenset({"filter", "fields"})

Way = tuple[str | int, ...]


def crosscheck(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Every disagreement, with the way to it."""
    topics: dict[str, list[str]] = {}
    for way, name, kafka in sections(raw):
        topics[name] = [topic for _, topic in _names(kafka)]
        for problem in (*_topics(kafka, topics[name]), *_catalogs(raw, kafka)):
            yield problem._replace(way=(*way, *problem.way))
    yield from guards(raw)
    yield from admin(raw)
    yield from beside.sidecar(raw)
    yield from jobs(raw)
    yield from _paths(raw)
    for index, route in enumerate(_list(raw.get("routes"))):
        for problem in _route(raw, _map(route), topics):
            yield problem._replace(way=("routes", index, *problem.way))


def _names(kafka: Mapping[Any, Any]) -> Iterator[tuple[int, str]]:
    for index, topic in enumerate(_list(kafka.get("topics"))):
        name = _map(topic).get("name")
        if isinstance(name, str):
            yield index, name


def _topics(kafka: Mapping[Any, Any], topics: list[str]) -> Iterator[Problem]:
    first: dict[str, int] = {}
    for index, name in _names(kafka):
        if name in first:
            what = f"topic '{name}' is listed before, as topics[{first[name]}]; remove one"
            yield Problem(("topics", index, "name"), what)
        first.setdefault(name, index)
    warmed: set[str] = set()
    for index, name in enumerate(_list(kafka.get("bootstrap"))):
        way: Way = ("bootstrap", index)
        if isinstance(name, str) and not _known(name, topics):
            yield Problem(way, _unknown_topic(name, topics))
        elif isinstance(name, str) and name in warmed:
            yield Problem(way, f"topic {shown(name)} is listed before; remove one")
        elif isinstance(name, str):
            warmed.add(name)


def _known(name: str, topics: list[str]) -> bool:
    return name in topics or any(isinstance(topic, Unsettled) for topic in topics)


def _unknown_topic(name: str, topics: list[str]) -> str:
    return f"unknown topic {shown(name)}; {nearest(name, topics, 'add it to kafka.topics')}"


def _catalogs(raw: Mapping[str, Any], kafka: Mapping[Any, Any]) -> Iterator[Problem]:
    catalogs = [str(name) for name in _map(raw.get("catalogs"))]
    for index, topic in enumerate(_list(kafka.get("topics"))):
        for part in ("key", "value"):
            name = _map(_map(topic).get(part)).get("catalog")
            if isinstance(name, str) and name not in catalogs:
                near = nearest(name, catalogs, "add it to catalogs")
                what = f"unknown catalog {shown(name)}; {near}"
                yield Problem(("topics", index, part, "catalog"), what)


def _paths(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Paths that are taken: by the gateway itself, or by a route before."""
    metrics = _map(_map(raw.get("telemetry")).get("metrics")).get("prometheus", "/metrics")
    own = RESERVED | ({str(metrics)} if isinstance(metrics, str) else set())
    before: dict[str, list[tuple[int, str, PathPattern]]] = {}
    for way, method, text, pattern in _whens(raw):
        if text in own:
            yield Problem(way, f"path '{text}' is the gateway's own; use another")
        elif beside.takes(raw, text):
            yield Problem(way, f"path '{text}' is the sidecar's own; use another")
        for index, other, earlier in before.setdefault(method, []):
            if earlier.shape == pattern.shape:
                what = f"path '{text}' is taken by routes[{index}] ('{other}'); remove one"
                yield Problem(way, what)
                break
            if earlier.covers(pattern):
                what = f"path '{text}' is never reached, routes[{index}] ('{other}') answers first"
                yield Problem(way, f"{what}; put this route before it")
                break
        before[method].append((int(way[1]), text, pattern))


def _whens(raw: Mapping[str, Any]) -> Iterator[tuple[Way, str, str, PathPattern]]:
    """The paths of all routes, by method; those where replies are asked for, too."""
    for index, route in enumerate(_list(raw.get("routes"))):
        options = _map(_map(route).get("with"))
        usual = "POST" if options.get("capability") == "produce" else "GET"
        for number, when in enumerate(_list(_map(route).get("when"))):
            pattern = _pattern(_map(when).get("path"))
            if pattern is not None:
                way: Way = ("routes", index, "when", number, "path")
                method = str(_map(when).get("method") or usual)
                yield way, method, str(_map(when)["path"]), pattern
        for way, location in _location(options):
            try:
                yield ("routes", index, *way), "GET", str(location), pattern_of(location)
            except ValueError:
                continue


def _route(
    raw: Mapping[str, Any], route: Mapping[str, Any], by_cluster: Mapping[str, list[str]]
) -> Iterator[Problem]:
    yield from guarded(raw, route)
    yield from masked(raw, route)
    yield from clusters.problems(by_cluster, _map(route.get("with")), list(_sources(route)))
    topics = topics_for(by_cluster, _map(route.get("with")).get("kafka"))
    chosen = _map(route.get("with")).get("allow") is not None
    for way, template in _sources(route):
        if chosen and template.holes:
            yield from _chosen(way, template)
        else:
            yield from _source(way, template, topics)
    if chosen and not any(template.holes for _, template in _sources(route)):
        what = "'allow' is for topics that a path chooses; add one such as ${params.topics}"
        yield Problem(("with", "allow"), what, key=True)
    params = _params(route)
    options = _map(route.get("with"))
    replies = options.get("replyTo")
    if isinstance(replies, str) and not _known(replies, topics):
        yield Problem(("with", "replyTo"), _unknown_topic(replies, topics))
    for way, template in (*_sources(route), *_conditions(route), *_written(options)):
        for hole in template.holes:
            refusal = _hole(hole, params) or _claimed(raw, route, hole)
            if refusal:
                yield Problem(way, refusal)


def _source(way: Way, template: Template, topics: list[str]) -> Iterator[Problem]:
    literal = template.literal
    if literal is not None and not _known(literal, topics):
        yield Problem(way, _unknown_topic(literal, topics))
    elif literal is None and not any(matches(template, topic) for topic in topics):
        known = ", ".join(topics[:12]) or "none"
        yield Problem(way, f"no topic can match '{template}'; kafka.topics has {known}")


def _chosen(way: Way, template: Template) -> Iterator[Problem]:
    """With `allow`, a list is chosen or a pattern: not a part of a name."""
    if len(template.pieces) > 1:
        what = f"'{template}' is a part of a name, and 'allow' is for whole ones"
        yield Problem(way, f"{what}; write such as ${{params.topics}}")


def _sources(route: Mapping[str, Any]) -> Iterator[tuple[Way, Template]]:
    options = _map(route.get("with"))
    yield from _template(("with", "topic"), options.get("topic"))
    for index, topic in enumerate(_list(options.get("topics"))):
        yield from _template(("with", "topics", index), topic)


def _conditions(route: Mapping[str, Any]) -> Iterator[tuple[Way, Template]]:
    for index, condition in enumerate(_list(_map(route.get("with")).get("filters"))):
        way: Way = ("with", "filters", index)
        yield from _wanted((*way, "key"), _map(condition).get("key"))
        for part in ("headers", "value"):
            for name, wanted in _map(_map(condition).get(part)).items():
                yield from _wanted((*way, part, name), wanted)


def _written(options: Mapping[str, Any]) -> Iterator[tuple[Way, Template]]:
    yield from _template(("with", "key"), options.get("key"))
    for name, text in _map(options.get("overrides")).items():
        yield from _template(("with", "overrides", name), text)
    yield from _location(options)


def _location(options: Mapping[str, Any]) -> Iterator[tuple[Way, Template]]:
    yield from _template(("with", "async", "location"), _map(options.get("async")).get("location"))


def _wanted(way: Way, wanted: object) -> Iterator[tuple[Way, Template]]:
    """The templates of a text, or of a condition's options."""
    yield from _template(way, wanted)
    for name, text in _map(wanted).items():
        yield from _template((*way, name), text)
        for index, each in enumerate(_list(text)):
            yield from _template((*way, name, index), each)


def _hole(hole: Hole, params: dict[str, bool]) -> str | None:
    """What a hole asks for and the request cannot give; None if it can."""
    if hole.root == "query" and hole.name in OWN_QUERY:
        return f"?{hole.name}= is read by the gateway itself; use another name"
    if hole.root == "params" and not params.get(hole.name):
        if hole.name in params:
            return f"not every path of this route has a parameter '{hole.name}'; split the route"
        near = nearest(hole.name, params, f"add {{{hole.name}}} to the path")
        return f"no parameter '{hole.name}' in this route's path; {near}"
    return None


def _claimed(raw: Mapping[str, Any], route: Mapping[str, Any], hole: Hole) -> str | None:
    """What a hole asks for and the guards cannot give; None if they can."""
    if hole.root == "guarded":
        return claim(raw, route, hole)
    return secret_query(raw, route, hole) if hole.root == "query" else None


def _params(route: Mapping[str, Any]) -> dict[str, bool]:
    """The parameters of a route's paths, and whether every path has it."""
    patterns = [_pattern(_map(when).get("path")) for when in _list(route.get("when"))]
    sets = [set(pattern.params) for pattern in patterns if pattern is not None]
    return {name: all(name in names for names in sets) for name in set().union(*sets)}


def _pattern(path: object) -> PathPattern | None:
    try:
        return PathPattern.parse(path) if isinstance(path, str) else None
    except ValueError:
        return None


def _template(way: Way, text: object) -> Iterator[tuple[Way, Template]]:
    """A template where there is a good one; what is wrong with others is told elsewhere."""
    if isinstance(text, Template):
        yield way, text
    elif isinstance(text, str) and text:
        try:
            yield way, Template.parse(text)
        except ValueError:
            return


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []
