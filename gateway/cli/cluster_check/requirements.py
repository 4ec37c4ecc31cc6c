"""What a configuration wants of a cluster's topics, and what is wrong with what is there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.config import Kafka, Route, Settings
from gateway.config.source.expression import suggest
from gateway.core.channel.glob import is_glob, matches_glob
from gateway.kafka.client.metadata import UNKNOWN_TOPIC_OR_PARTITION
from gateway.kafka.client.metadata_changes import TOPIC_AUTHORIZATION_FAILED
from gateway.kafka.protocol.requests import TopicMetadata, TopicOperation

from .finding import Finding, FindingState, ok, warning

MAX_LISTED_NAMES = 5  # names that are listed in a line


class TopicRequirement(NamedTuple):
    """A topic. write: clients may write it. optional: one of several that a path may choose.
    read: False for one that is written only."""

    name: str
    write: bool = False
    optional: bool = False
    read: bool = True


class TopicPattern(NamedTuple):
    """Of `allow`: what a path may choose. way: where it stands."""

    option: str
    glob: str


def list_requirements(settings: Settings, cluster: str = "") -> list[TopicRequirement]:
    """The topics that are named of a cluster: those of its list, and what else a path may
    choose."""
    kafka, routes = settings.clusters[cluster], _list_routes(settings, cluster)
    listed = [topic.name for topic in kafka.topics]
    allowed = [name for _, route in routes for name in route.with_.allow if not is_glob(name)]
    further = [name for name in dict.fromkeys(allowed) if name not in listed]
    made = [
        _build_requirement(name, kafka, [route for _, route in routes])
        for name in (*listed, *further)
    ]
    return [want._replace(optional=want.name in further) for want in made]


def _list_routes(settings: Settings, cluster: str) -> list[tuple[int, Route]]:
    every = enumerate(settings.routes)
    return [(n, route) for n, route in every if settings.get_cluster_name(route) == cluster]


def _build_requirement(name: str, kafka: Kafka, routes: Sequence[Route]) -> TopicRequirement:
    of_it = [route.with_ for route in routes if _may_use_topic(route, name)]
    answers = any(route.with_.reply_to == name for route in routes)
    warmed = name in kafka.bootstrap
    read = any(with_.capability != "produce" for with_ in of_it) or answers or warmed
    return TopicRequirement(name, any(with_.can_write for with_ in of_it), read=read or not of_it)


def list_patterns(settings: Settings, cluster: str = "") -> list[TopicPattern]:
    return [
        TopicPattern(f"routes[{number}].with.allow[{index}]", glob)
        for number, route in _list_routes(settings, cluster)
        for index, glob in enumerate(route.with_.allow)
        if is_glob(glob)
    ]


def _may_use_topic(route: Route, topic: str) -> bool:
    with_ = route.with_
    if with_.allow and any(template.placeholders for template in with_.topic_templates):
        return any(matches_glob(pattern, topic) for pattern in with_.allow)
    return any(template.can_render(topic) for template in with_.topic_templates)


def check_topic(
    requirement: TopicRequirement,
    metadata: TopicMetadata | None,
    readable: bool | None,
    names: Collection[str],
) -> Iterator[Finding]:
    """told: by the brokers; None if they know none of the name. readable: as they say, or as was
    tried. names: of all topics that there are."""
    subject = f"topic {requirement.name}"
    bad = FindingState.WARNING if requirement.optional else FindingState.FAILS
    if metadata is None or metadata.error == UNKNOWN_TOPIC_OR_PARTITION:
        near = suggest(requirement.name, names)
        hint = near if near.startswith("did you mean") else "create it, or correct its name"
        yield Finding(bad, subject, f"no broker knows it; {hint}")
        return
    if metadata.error == TOPIC_AUTHORIZATION_FAILED:
        what = "it may not be described, if it exists; allow the gateway READ on it"
        yield Finding(bad, subject, what)
        return
    if metadata.error or not metadata.partitions:
        yield Finding(bad, subject, f"it cannot be used (error {metadata.error} of Kafka)")
        return
    problems = list(_iter_problems(requirement, metadata, readable))
    for state, what in problems:
        yield Finding(bad if state is FindingState.FAILS else state, subject, what)
    if not problems:
        both = "read and written" if requirement.write else "read"
        rights = both if requirement.read else "written"
        count = len(metadata.partitions)
        yield ok(subject, f"{count} partition{'s' * (count > 1)}, may be {rights}")


def _iter_problems(
    requirement: TopicRequirement, metadata: TopicMetadata, readable: bool | None
) -> Iterator[tuple[FindingState, str]]:
    if readable is False and requirement.read:
        yield FindingState.FAILS, "it may not be read; allow the gateway READ on it"
    elif readable is False:
        what = "it may not be read, so Idempotency-Key is of no use"
        yield FindingState.WARNING, f"{what}; allow the gateway READ on it"
    elif readable is None and requirement.read:
        yield FindingState.WARNING, "whether it may be read, no broker tells"
    writable = metadata.is_allowed(TopicOperation.WRITE)
    if requirement.write and writable is False:
        yield (
            FindingState.FAILS,
            "it may not be written, and clients shall; allow the gateway WRITE on it",
        )
    elif requirement.write and writable is None:
        yield FindingState.WARNING, "whether it may be written, this broker does not tell"
    alone = sorted(number for number, one in metadata.partitions.items() if one.leader < 0)
    if alone:
        of = f"partition{'s' * (len(alone) > 1)} {_join_names(map(str, alone))}"
        yield (
            FindingState.WARNING,
            f"{of} of {len(metadata.partitions)} without a leader; look at the brokers",
        )


def check_pattern(pattern: TopicPattern, topics: Mapping[str, TopicMetadata]) -> Finding:
    """topics: all that there are, with rights."""
    subject = f"{pattern.option} {pattern.glob}"
    found = [
        name
        for name in sorted(topics)
        if matches_glob(pattern.glob, name) and not name.startswith("__")
    ]
    denied = [name for name in found if topics[name].is_allowed(TopicOperation.READ) is False]
    if not found:
        return warning(subject, "no topic fits it by now")
    if denied:
        what = f"{len(denied)} of {len(found)} topics may not be read: {_join_names(denied)}"
        return warning(subject, f"{what}; allow the gateway READ on them")
    return ok(subject, f"{len(found)} topic{'s' * (len(found) > 1)}, may be read")


def _join_names(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(every[:MAX_LISTED_NAMES]) + (", ..." if len(every) > MAX_LISTED_NAMES else "")
