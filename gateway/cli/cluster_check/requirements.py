"""Decide what topics a configuration needs, and check it against metadata, without I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.cli.output import format_count, format_list
from gateway.config import Kafka, Route, Settings
from gateway.config.types.substitution import suggest
from gateway.core.channel.filters import is_glob, matches_glob
from gateway.core.error_code import ErrorCode
from gateway.kafka.protocol.requests import TopicMetadata, TopicOperation

from .finding import Finding, FindingState, ok, warning


class TopicRequirement(NamedTuple):
    """The required permissions of a topic.

    Attributes:
        optional: It is one of several that a path may choose: if it is missing, others still work.
        read: The gateway reads it; False if clients only write to it.
    """

    name: str
    write: bool = False
    optional: bool = False
    read: bool = True


class TopicPattern(NamedTuple):
    """A pattern of topics that a path may choose, and the option that has it, for findings."""

    option: str
    glob: str


def list_requirements(settings: Settings, cluster: str = "") -> list[TopicRequirement]:
    kafka, routes = settings.clusters[cluster], _list_routes(settings, cluster)
    listed = [topic.name for topic in kafka.topics]
    allowed = [name for _, route in routes for name in route.with_.allow if not is_glob(name)]
    others = [name for name in dict.fromkeys(allowed) if name not in listed]
    requirements = [
        _build_requirement(name, kafka, [route for _, route in routes])
        for name in (*listed, *others)
    ]
    return [each._replace(optional=each.name in others) for each in requirements]


def _list_routes(settings: Settings, cluster: str) -> list[tuple[int, Route]]:
    numbered = enumerate(settings.routes)
    return [(n, route) for n, route in numbered if settings.get_cluster_name(route) == cluster]


def _build_requirement(name: str, kafka: Kafka, routes: Sequence[Route]) -> TopicRequirement:
    users = [route.with_ for route in routes if _may_use_topic(route, name)]
    has_replies = any(route.with_.reply_topic == name for route in routes)
    is_read = (
        any(with_.can_read for with_ in users)
        or has_replies
        or name in kafka.bootstrap
        or not users  # read by the Python API, or by nobody yet
    )
    return TopicRequirement(name, any(with_.can_write for with_ in users), read=is_read)


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
    subject = f"topic {requirement.name}"
    failed = FindingState.WARNING if requirement.optional else FindingState.FAILS
    if metadata is None or metadata.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        near = suggest(requirement.name, names)
        hint = near if near.startswith("did you mean") else "create it, or correct its name"
        yield Finding(failed, subject, f"no broker knows it; {hint}")
        return
    if metadata.error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        what = "it may not be described, if it exists; allow the gateway READ on it"
        yield Finding(failed, subject, what)
        return
    if metadata.error or not metadata.partitions:
        yield Finding(failed, subject, f"it cannot be used (Kafka's error {metadata.error})")
        return
    problems = list(_iter_problems(requirement, metadata, readable))
    for state, what in problems:
        yield Finding(failed if state is FindingState.FAILS else state, subject, what)
    if not problems:
        both = "read and written" if requirement.write else "read"
        rights = both if requirement.read else "written"
        yield ok(subject, f"{format_count(len(metadata.partitions), 'partition')}, may be {rights}")


def _iter_problems(
    requirement: TopicRequirement, metadata: TopicMetadata, readable: bool | None
) -> Iterator[tuple[FindingState, str]]:
    if readable is False and requirement.read:
        yield FindingState.FAILS, "it may not be read; allow the gateway READ on it"
    elif readable is False:
        what = "it may not be read, so Idempotency-Key has no effect"
        yield FindingState.WARNING, f"{what}; allow the gateway READ on it"
    elif readable is None and requirement.read:
        yield FindingState.WARNING, "no broker tells whether it may be read"
    writable = metadata.is_allowed(TopicOperation.WRITE)
    if requirement.write and writable is False:
        yield (
            FindingState.FAILS,
            "it may not be written, but a route writes to it; allow the gateway WRITE on it",
        )
    elif requirement.write and writable is None:
        yield FindingState.WARNING, "no broker tells whether it may be written"
    leaderless = sorted(
        number for number, partition in metadata.partitions.items() if partition.leader < 0
    )
    if leaderless:
        which = f"partition{'s' * (len(leaderless) > 1)} {format_list(map(str, leaderless))}"
        yield (
            FindingState.WARNING,
            f"{which} of {len(metadata.partitions)} without a leader; look at the brokers",
        )


def check_pattern(pattern: TopicPattern, topics: Mapping[str, TopicMetadata]) -> Finding:
    subject = f"{pattern.option} {pattern.glob}"
    # Names that begin with two underscores are Kafka's internal topics.
    matching = [
        name
        for name in sorted(topics)
        if matches_glob(pattern.glob, name) and not name.startswith("__")
    ]
    denied = [name for name in matching if topics[name].is_allowed(TopicOperation.READ) is False]
    if not matching:
        return warning(subject, "no topic matches it yet")
    if denied:
        what = f"{len(denied)} of {len(matching)} topics may not be read: {format_list(denied)}"
        return warning(subject, f"{what}; allow the gateway READ on them")
    return ok(subject, f"{len(matching)} topic{'s' * (len(matching) > 1)}, may be read")
