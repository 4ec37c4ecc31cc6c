"""Check that parts of a configuration agree: names, paths, parameters; and find doubtful ones.

The checks work on typed sections. Of a configuration with invalid options they get the rest, so an
unknown topic of a route is reported together with an invalid duration elsewhere; see
`types.valid_rest`. A check names in `Problem.needs` what else it draws its conclusion from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gateway.config.capabilities import parse_location
from gateway.config.capabilities.options import With
from gateway.config.source.problems import format_loc
from gateway.config.types.fields import Secret
from gateway.config.types.path import PathPattern, is_reserved_path
from gateway.config.types.section import Loc, Problem, iter_leaves, nest
from gateway.config.types.substitution import safe_repr, suggest
from gateway.config.types.template import Placeholder, Template
from gateway.config.types.units import format_size

from .component_checks import (
    check_extras,
    check_jobs,
    check_name,
    check_sidecar,
    is_sidecar_path,
)
from .guard_checks import (
    check_admin,
    check_guards,
    check_route_guards,
    find_claim_problem,
)
from .kafka import Kafka
from .listen import Allow, Expose
from .route import Route

if TYPE_CHECKING:
    from .settings import Settings

METRICS_LOC: Loc = ("telemetry", "metrics", "prometheus")
RESERVED_PLACEHOLDER_NAMES = frozenset({"filter", "fields"})


def check_settings(settings: Settings) -> Iterator[Problem]:
    for loc, kafka in settings.iter_clusters():
        yield from nest(loc, _check_topics(kafka, loc))
        yield from nest(loc, _check_catalogs(settings, kafka))
    yield from check_guards(settings)
    yield from check_admin(settings)
    yield from check_sidecar(settings)
    yield from check_jobs(settings)
    yield from check_extras(settings)
    yield from _check_paths(settings)
    for index, route in enumerate(settings.routes):
        loc = ("routes", index)
        yield from nest(loc, check_route_guards(settings, route, loc))
        yield from nest((*loc, "with"), _check_topic_choice(settings, route.with_, loc))
        yield from nest(loc, _check_placeholders(settings, route, loc))


def _check_topics(kafka: Kafka, loc: Loc) -> Iterator[Problem]:
    needs = ((*loc, "topics", "*"),)
    names = [topic.name for topic in kafka.topics]
    for index, name in enumerate(names):
        first = names.index(name)
        if first < index:
            message = f"topic '{name}' is listed before, as topics[{first}]; remove one"
            yield Problem(("topics", index, "name"), message, named=(*loc, "topics", first))
    for index, name in enumerate(kafka.bootstrap):
        place: Loc = ("bootstrap", index)
        if name not in names:
            yield Problem(place, _describe_unknown_topic(name, names), needs=needs)
        elif name in kafka.bootstrap[:index]:
            yield Problem(place, f"topic {safe_repr(name)} is listed before; remove one")


def _describe_unknown_topic(name: str, topics: Sequence[str]) -> str:
    return f"unknown topic {safe_repr(name)}; {suggest(name, topics, 'add it to kafka.topics')}"


def _check_catalogs(settings: Settings, kafka: Kafka) -> Iterator[Problem]:
    for index, topic in enumerate(kafka.topics):
        for part, model in (("key", topic.key), ("value", topic.value)):
            problems = check_name("catalog", model.catalog, settings.catalogs)
            yield from nest(("topics", index, part), problems)


def _check_paths(settings: Settings) -> Iterator[Problem]:
    """Yield the paths that are taken by the gateway itself or by an earlier route."""
    metrics = settings.telemetry.metrics.prometheus
    # By method; with the shape of each, as it is compared with those of all later ones.
    earlier_paths: dict[str, list[tuple[int, str, PathPattern, object]]] = {}
    for index, loc, method, text, pattern in _iter_paths(settings):
        if is_reserved_path(text) or text == metrics:
            what = f"path '{text}' is the gateway's own; use another"
            is_metrics = not is_reserved_path(text)
            yield Problem(loc, what, needs=(METRICS_LOC,) if is_metrics else ())
        elif settings.sidecar is not None and is_sidecar_path(settings.sidecar, text):
            yield Problem(loc, f"path '{text}' is the sidecar's own; use another")
        shape = pattern.shape
        for earlier_index, other, earlier, earlier_shape in earlier_paths.setdefault(method, []):
            place = f"routes[{earlier_index}]"
            named: Loc = ("routes", earlier_index)
            needs = ((*named, "when"), (*loc[:-1], "method"))
            if earlier_shape == shape:
                what = f"path '{text}' is taken by {place} ('{other}'); remove one"
                yield Problem(loc, what, needs=needs, named=named)
                break
            if earlier.covers(pattern):
                what = f"path '{text}' is never reached, {place} ('{other}') answers first"
                what = f"{what}; put this route before it"
                yield Problem(loc, what, needs=needs, named=named)
                break
        earlier_paths[method].append((index, text, pattern, shape))


def _iter_paths(settings: Settings) -> Iterator[tuple[int, Loc, str, str, PathPattern]]:
    """Yield the paths of all routes with their methods, including those of delayed replies."""
    for index, route in enumerate(settings.routes):
        loc: Loc = ("routes", index)
        for number, when in enumerate(route.when):
            place = (*loc, "when", number, "path")
            yield index, place, route.get_method(when), when.path, when.pattern
        location = route.with_.reply_location
        if location is not None:
            place = (*loc, "with", "async", "location")
            yield index, place, "GET", str(location), parse_location(location)


def _check_topic_choice(settings: Settings, options: With, route: Loc) -> Iterator[Problem]:
    """Yield the problems of a route's topics, and of its choice of a cluster."""
    is_single, wanted = "" in settings.clusters, options.kafka
    is_chosen = wanted in settings.clusters
    cluster, allow, topic, topic_list = (
        (*route, "with", name) for name in ("kafka", "allow", "topic", "topics")
    )
    known_topics: tuple[Loc, ...] = (
        *(
            (*loc, "topics", "*")
            for loc, _ in settings.iter_clusters()
            if not is_chosen or loc == ("kafka", wanted)
        ),
        *([] if is_single or is_chosen else [("kafka", "*")]),
        cluster,
    )
    choice = (cluster, allow, topic, topic_list)
    templates = _iter_templates(options)
    sources = [(loc, each) for loc, each in templates if loc[0] in ("topic", "topics")]
    for problem in _check_cluster(settings, options, sources):
        needs = known_topics if problem.loc == ("topics",) else ()
        yield problem._replace(needs=(*problem.needs, *choice, *needs))
    topics = settings.list_topics(options.kafka)
    if options.allow and not any(template.placeholders for _, template in sources):
        what = "'allow' is for topics that a path chooses; add one such as ${params.topics}"
        yield Problem(("allow",), what, is_key=True, needs=choice)
    for loc, template in sources:
        literal = template.literal
        if literal is not None and literal not in topics:
            yield Problem(loc, _describe_unknown_topic(literal, topics), needs=known_topics)
        elif literal is None and options.allow and len(template.parts) > 1:
            # With `allow`, a client chooses a list or a pattern, which cannot be a part of a name.
            what = f"'{template}' is a part of a name, and 'allow' is for whole ones"
            yield Problem(loc, f"{what}; write such as ${{params.topics}}")
        elif literal is None and not options.allow and not any(map(template.can_render, topics)):
            known = ", ".join(topics[:12]) or "none"
            what = f"no topic can match '{template}'; kafka.topics has {known}"
            yield Problem(loc, what, needs=(*known_topics, allow))
    if options.reply_topic is not None and options.reply_topic not in topics:
        what = _describe_unknown_topic(options.reply_topic, topics)
        yield Problem(("replyTo",), what, needs=known_topics)


def _check_cluster(
    settings: Settings, options: With, sources: Sequence[tuple[Loc, Template]]
) -> Iterator[Problem]:
    names, wanted = list(settings.clusters), options.kafka
    choice = " or ".join(f"kafka: {name}" for name in names)
    if wanted is not None:
        yield from check_name("kafka", wanted, settings.clusters)
    elif len(names) > 1 and options.allow:
        what = "'allow' may mean topics of several clusters"
        yield Problem(("allow",), f"{what}; add {choice}", is_key=True)
    elif len(names) > 1:
        candidates = settings.find_clusters(options.topic_templates)
        if len(candidates) > 1:
            loc, template = sources[0]
            choice = " or ".join(f"kafka: {name}" for name in candidates)
            what = f"topic '{template}' is in {' and '.join(candidates)}"
            yield Problem(loc, f"{what}; add {choice}")
        elif not candidates and all(settings.find_clusters([each]) for _, each in sources):
            what = "no cluster has all of these topics, and a stream is of one; split the route"
            yield Problem(("topics",), what, is_key=True)


def _iter_templates(options: With) -> Iterator[tuple[Loc, Template]]:
    for loc, value in iter_leaves(options):
        if isinstance(value, Template):
            yield loc, value


def _check_placeholders(settings: Settings, route: Route, loc: Loc) -> Iterator[Problem]:
    """Yield the placeholders that requests cannot fill."""
    path_params = [set(when.pattern.params) for when in route.when]
    params = {
        name: all(name in names for names in path_params) for name in set().union(*path_params)
    }
    for place, template in _iter_templates(route.with_):
        for placeholder in template.placeholders:
            needs: list[Loc] = [(*loc, "when", "*")]
            needs += [(*loc, "when", number, "path") for number in range(len(route.when))]
            refusal = _find_param_problem(placeholder, params)
            if refusal is None:
                options = ("attributes", "users", "credentials", "forward")
                names = {*route.guarded, placeholder.name}
                needs = [("guards", name, option) for name in names for option in options]
                needs.append((*loc, "guarded", "*"))
                refusal = find_claim_problem(settings, route, placeholder)
            if refusal is not None:
                yield Problem(("with", *place), refusal, needs=tuple(needs))


def _find_param_problem(placeholder: Placeholder, params: dict[str, bool]) -> str | None:
    if placeholder.root == "query" and placeholder.name in RESERVED_PLACEHOLDER_NAMES:
        return f"?{placeholder.name}= is read by the gateway itself; use another name"
    if placeholder.root == "params" and not params.get(placeholder.name):
        if placeholder.name in params:
            what = f"not every path of this route has a parameter '{placeholder.name}'"
            return f"{what}; split the route"
        near = suggest(placeholder.name, params, f"add {{{placeholder.name}}} to the path")
        return f"no parameter '{placeholder.name}' in this route's path; {near}"
    return None


def iter_warnings(settings: Settings) -> Iterator[str]:
    """Yield one line for each doubtful setting: `option: problem; remedy`."""
    clusters = settings.clusters
    caches = sum(topic.cache.bytes for kafka in clusters.values() for topic in kafka.topics)
    if caches > settings.memory:
        bound, total = format_size(settings.memory), format_size(caches)
        yield f"memory: {bound} is less than all caches, {total}; raise it or lower them"
    for name, kafka in clusters.items():
        yield from _check_kafka(f"kafka.{name}" if name else "kafka", kafka)
    route_access = (
        (f"routes[{n}]", route.access_control) for n, route in enumerate(settings.routes)
    )
    for prefix, access in (("listen", settings.listen.access_control), *route_access):
        is_same_origin = access is not None and access.policy == "same-origin"
        if is_same_origin and access and (access.allow, access.expose) != (Allow(), Expose()):
            yield f"{prefix}.access-control: allow and expose need policy: cross-origin; set it"
    for name, guard in settings.guards.items():
        for problem in guard.iter_warnings():
            yield f"{format_loc(('guards', name, *problem.loc))}: {problem.message}"
    for loc, value in iter_leaves(settings):
        if isinstance(value, Secret) and value.source is None:
            what = "a secret stands in the file; use ${env.NAME} or ${file:path}"
            yield f"{format_loc(loc)}: {what}"


def _check_kafka(prefix: str, kafka: Kafka) -> Iterator[str]:
    tls, sasl = kafka.security.tls, kafka.security.sasl
    if tls and not tls.verify:
        yield f"{prefix}.security.tls.verify: anyone may pose as the broker; use it for tests only"
    if sasl and not tls:
        yield f"{prefix}.security.sasl: credentials travel unencrypted; add {prefix}.security.tls"
    if kafka.servers == "embedded" and (tls or sasl):
        yield f"{prefix}.security: the embedded broker has none; remove it"
