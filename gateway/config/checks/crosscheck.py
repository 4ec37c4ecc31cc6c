"""Check that parts of a configuration agree: names, paths, parameters.

The checks work on the values as written, which may be wrong in any way. So an unknown topic of a
route is reported together with an invalid duration elsewhere, not only after that is corrected.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gateway.config.capabilities.kinds import WITH_KINDS
from gateway.config.capabilities.options import With
from gateway.config.capabilities.produce import parse_location
from gateway.config.source.substitution import UnresolvedText, safe_repr, suggest
from gateway.config.source.template import Placeholder, Template
from gateway.config.types.path import PathPattern
from gateway.config.types.section import Problem, as_list, as_mapping, is_refused_mapping

from . import clusters
from . import sidecar as beside
from .clusters import iter_clusters, list_topics, matches
from .extras import check_extras
from .guards import (
    check_admin,
    check_claim,
    check_guarded,
    check_guards,
    check_masked_fields,
    check_secret_query,
)
from .jobs import check_jobs

RESERVED_PATHS = frozenset(
    {
        *("/", "/asyncapi.json", "/discovery.css", "/discovery.js"),
        *("/gateway.js", "/gateway.d.ts", "/health/front", "/health/live", "/health/ready", "/ws"),
    }
)
VERSIONED_MODULE_PATTERN = re.compile(r"/gateway-[0-9a-f]{16}\.js")
"""The paths of the versions of `/gateway.js`."""
RESERVED_PLACEHOLDER_NAMES = frozenset({"filter", "fields"})


def is_reserved_path(path: str) -> bool:
    return path in RESERVED_PATHS or bool(VERSIONED_MODULE_PATTERN.fullmatch(path))


Loc = tuple[str | int, ...]


def check_settings(raw: Mapping[str, Any]) -> Iterator[Problem]:
    topics: dict[str, list[str]] = {}
    for loc, name, kafka in iter_clusters(raw):
        topics[name] = _list_topic_names(kafka)
        for problem in (*_check_topics(kafka, topics[name]), *_check_catalogs(raw, kafka)):
            yield problem._replace(loc=(*loc, *problem.loc))
    yield from check_guards(raw)
    yield from check_admin(raw)
    yield from beside.check_sidecar(raw)
    yield from check_jobs(raw)
    yield from check_extras(raw)
    yield from _check_paths(raw)
    for index, route in enumerate(as_list(raw.get("routes"))):
        for problem in _check_route(raw, as_mapping(route), topics):
            yield problem._replace(loc=("routes", index, *problem.loc))


def _list_topic_names(kafka: Mapping[Any, Any]) -> list[str]:
    """Return the topics that a cluster lists, in whatever form.

    The names in a refused form are known, so that no route that names one of them is reported.
    """
    written = kafka.get("topics")
    if isinstance(written, UnresolvedText):
        return [written]
    if isinstance(written, str):
        return [name.strip() for name in written.split(",")]
    if isinstance(written, Mapping):
        return list(map(str, written))
    names = (as_mapping(topic).get("name") for topic in as_list(written))
    return [
        name if isinstance(name, str) else str(name)
        for name in names
        if isinstance(name, (str, int)) and not isinstance(name, bool)
    ]


def _iter_topic_names(kafka: Mapping[Any, Any]) -> Iterator[tuple[int, str]]:
    for index, topic in enumerate(as_list(kafka.get("topics"))):
        name = as_mapping(topic).get("name")
        if isinstance(name, str):
            yield index, name


def _check_topics(kafka: Mapping[Any, Any], topics: list[str]) -> Iterator[Problem]:
    first_index: dict[str, int] = {}
    for index, name in _iter_topic_names(kafka):
        if name in first_index:
            message = f"topic '{name}' is listed before, as topics[{first_index[name]}]; remove one"
            yield Problem(("topics", index, "name"), message)
        first_index.setdefault(name, index)
    seen: set[str] = set()
    for index, name in enumerate(as_list(kafka.get("bootstrap"))):
        loc: Loc = ("bootstrap", index)
        if isinstance(name, str) and not _is_known(name, topics):
            yield Problem(loc, _describe_unknown_topic(name, topics))
        elif isinstance(name, str) and name in seen:
            yield Problem(loc, f"topic {safe_repr(name)} is listed before; remove one")
        elif isinstance(name, str):
            seen.add(name)


def _is_known(name: str, topics: list[str]) -> bool:
    return name in topics or any(isinstance(topic, UnresolvedText) for topic in topics)


def _describe_unknown_topic(name: str, topics: list[str]) -> str:
    return f"unknown topic {safe_repr(name)}; {suggest(name, topics, 'add it to kafka.topics')}"


def _check_catalogs(raw: Mapping[str, Any], kafka: Mapping[Any, Any]) -> Iterator[Problem]:
    if is_refused_mapping(raw.get("catalogs")):
        return
    catalogs = [str(name) for name in as_mapping(raw.get("catalogs"))]
    for index, topic in enumerate(as_list(kafka.get("topics"))):
        for part in ("key", "value"):
            name = as_mapping(as_mapping(topic).get(part)).get("catalog")
            if isinstance(name, str) and name not in catalogs:
                near = suggest(name, catalogs, "add it to catalogs")
                what = f"unknown catalog {safe_repr(name)}; {near}"
                yield Problem(("topics", index, part, "catalog"), what)


def _check_paths(raw: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the paths that are taken by the gateway itself or by an earlier route."""
    metrics = as_mapping(as_mapping(raw.get("telemetry")).get("metrics")).get(
        "prometheus", "/metrics"
    )
    earlier_paths: dict[str, list[tuple[int, str, PathPattern]]] = {}
    for loc, method, text, pattern in _iter_paths(raw):
        if is_reserved_path(text) or (isinstance(metrics, str) and text == metrics):
            yield Problem(loc, f"path '{text}' is the gateway's own; use another")
        elif beside.is_sidecar_path(raw, text):
            yield Problem(loc, f"path '{text}' is the sidecar's own; use another")
        for index, other, earlier in earlier_paths.setdefault(method, []):
            if earlier.shape == pattern.shape:
                what = f"path '{text}' is taken by routes[{index}] ('{other}'); remove one"
                yield Problem(loc, what)
                break
            if earlier.covers(pattern):
                what = f"path '{text}' is never reached, routes[{index}] ('{other}') answers first"
                yield Problem(loc, f"{what}; put this route before it")
                break
        earlier_paths[method].append((int(loc[1]), text, pattern))


def _iter_paths(raw: Mapping[str, Any]) -> Iterator[tuple[Loc, str, str, PathPattern]]:
    """Yield the paths of all routes with their methods, including those of delayed replies."""
    for index, route in enumerate(as_list(raw.get("routes"))):
        options = as_mapping(as_mapping(route).get("with"))
        default_method = (WITH_KINDS.find(options) or With).methods[0]
        for number, when in enumerate(as_list(as_mapping(route).get("when"))):
            pattern = _parse_pattern(as_mapping(when).get("path"))
            if pattern is not None:
                loc: Loc = ("routes", index, "when", number, "path")
                method = str(as_mapping(when).get("method") or default_method)
                yield loc, method, str(as_mapping(when)["path"]), pattern
        for loc, location in _iter_location_templates(options):
            try:
                yield ("routes", index, *loc), "GET", str(location), parse_location(location)
            except ValueError:
                continue


def _check_route(
    raw: Mapping[str, Any], route: Mapping[str, Any], topics_by_cluster: Mapping[str, list[str]]
) -> Iterator[Problem]:
    if route.get("guarded") in ([], (), {}):
        what = "is empty, so everybody may use this route"
        yield Problem(("guarded",), f"{what}; name a guard, or remove it")
    yield from check_guarded(raw, route)
    yield from check_masked_fields(raw, route)
    yield from clusters.check_cluster_choice(
        topics_by_cluster, as_mapping(route.get("with")), list(_iter_source_templates(route))
    )
    topics = list_topics(topics_by_cluster, as_mapping(route.get("with")).get("kafka"))
    chosen = as_mapping(route.get("with")).get("allow") is not None
    for loc, template in _iter_source_templates(route):
        if chosen and template.placeholders:
            yield from _check_chosen_topic(loc, template)
        else:
            yield from _check_source(loc, template, topics)
    if chosen and not any(template.placeholders for _, template in _iter_source_templates(route)):
        what = "'allow' is for topics that a path chooses; add one such as ${params.topics}"
        yield Problem(("with", "allow"), what, is_key=True)
    params = _collect_params(route)
    options = as_mapping(route.get("with"))
    replies = options.get("replyTo")
    if isinstance(replies, str) and not _is_known(replies, topics):
        yield Problem(("with", "replyTo"), _describe_unknown_topic(replies, topics))
    for loc, template in (
        *_iter_source_templates(route),
        *_iter_filter_templates(route),
        *_iter_write_templates(options),
    ):
        for placeholder in template.placeholders:
            refusal = _check_placeholder(placeholder, params) or _check_claim(
                raw, route, placeholder
            )
            if refusal:
                yield Problem(loc, refusal)


def _check_source(loc: Loc, template: Template, topics: list[str]) -> Iterator[Problem]:
    literal = template.literal
    if literal is not None and not _is_known(literal, topics):
        yield Problem(loc, _describe_unknown_topic(literal, topics))
    elif literal is None and not any(matches(template, topic) for topic in topics):
        known = ", ".join(topics[:12]) or "none"
        yield Problem(loc, f"no topic can match '{template}'; kafka.topics has {known}")


def _check_chosen_topic(loc: Loc, template: Template) -> Iterator[Problem]:
    """Yield a problem if a placeholder is only a part of the name.

    With `allow`, a client chooses a list of topics or a pattern, which cannot be a part of a name.
    """
    if len(template.parts) > 1:
        what = f"'{template}' is a part of a name, and 'allow' is for whole ones"
        yield Problem(loc, f"{what}; write such as ${{params.topics}}")


def _iter_source_templates(route: Mapping[str, Any]) -> Iterator[tuple[Loc, Template]]:
    options = as_mapping(route.get("with"))
    yield from _iter_templates(("with", "topic"), options.get("topic"))
    for index, topic in enumerate(as_list(options.get("topics"))):
        yield from _iter_templates(("with", "topics", index), topic)


def _iter_filter_templates(route: Mapping[str, Any]) -> Iterator[tuple[Loc, Template]]:
    for index, condition in enumerate(as_list(as_mapping(route.get("with")).get("filters"))):
        loc: Loc = ("with", "filters", index)
        yield from _iter_condition_templates((*loc, "key"), as_mapping(condition).get("key"))
        for part in ("headers", "value"):
            for name, expected in as_mapping(as_mapping(condition).get(part)).items():
                yield from _iter_condition_templates((*loc, part, name), expected)


def _iter_write_templates(options: Mapping[str, Any]) -> Iterator[tuple[Loc, Template]]:
    yield from _iter_templates(("with", "key"), options.get("key"))
    for name, text in as_mapping(options.get("overrides")).items():
        yield from _iter_templates(("with", "overrides", name), text)
    yield from _iter_location_templates(options)


def _iter_location_templates(options: Mapping[str, Any]) -> Iterator[tuple[Loc, Template]]:
    yield from _iter_templates(
        ("with", "async", "location"), as_mapping(options.get("async")).get("location")
    )


def _iter_condition_templates(loc: Loc, condition: object) -> Iterator[tuple[Loc, Template]]:
    yield from _iter_templates(loc, condition)
    for name, text in as_mapping(condition).items():
        yield from _iter_templates((*loc, name), text)
        for index, item in enumerate(as_list(text)):
            yield from _iter_templates((*loc, name, index), item)


def _check_placeholder(placeholder: Placeholder, params: dict[str, bool]) -> str | None:
    """Return why a request cannot fill a placeholder; None if it can."""
    if placeholder.root == "query" and placeholder.name in RESERVED_PLACEHOLDER_NAMES:
        return f"?{placeholder.name}= is read by the gateway itself; use another name"
    if placeholder.root == "params" and not params.get(placeholder.name):
        if placeholder.name in params:
            what = f"not every path of this route has a parameter '{placeholder.name}'"
            return f"{what}; split the route"
        near = suggest(placeholder.name, params, f"add {{{placeholder.name}}} to the path")
        return f"no parameter '{placeholder.name}' in this route's path; {near}"
    return None


def _check_claim(
    raw: Mapping[str, Any], route: Mapping[str, Any], placeholder: Placeholder
) -> str | None:
    if placeholder.root == "guarded":
        return check_claim(raw, route, placeholder)
    return check_secret_query(raw, route, placeholder) if placeholder.root == "query" else None


def _collect_params(route: Mapping[str, Any]) -> dict[str, bool]:
    """Return the parameters of a route's paths, and whether every path has each."""
    patterns = [_parse_pattern(as_mapping(when).get("path")) for when in as_list(route.get("when"))]
    sets = [set(pattern.params) for pattern in patterns if pattern is not None]
    return {name: all(name in names for names in sets) for name in set().union(*sets)}


def _parse_pattern(path: object) -> PathPattern | None:
    try:
        return PathPattern.parse(path) if isinstance(path, str) else None
    except ValueError:
        return None


def _iter_templates(loc: Loc, text: object) -> Iterator[tuple[Loc, Template]]:
    """Yield the template of a valid text; invalid ones are reported elsewhere."""
    if isinstance(text, Template):
        yield loc, text
    elif isinstance(text, str) and text:
        try:
            yield loc, Template.parse(text)
        except ValueError:
            return
