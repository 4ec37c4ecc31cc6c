"""What a configuration wants of a cluster's topics, and what is wrong with what is there. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.config import Kafka, Route, Settings
from gateway.config.source.expression import nearest
from gateway.core.channel.glob import fits, is_glob
from gateway.kafka.client.metadata import UNKNOWN_TOPIC
from gateway.kafka.client.metadata_changes import DENIED
from gateway.kafka.protocol.requests import Operation, TopicAnswer

from .finding import Finding, State, ok, warning

MOST = 5  # names that are listed in a line


class Want(NamedTuple):
    """A topic. write: clients may write it. optional: one of several that a path may choose.
    read: False for one that is written only."""

    name: str
    write: bool = False
    optional: bool = False
    read: bool = True


class Pattern(NamedTuple):
    """Of `allow`: what a path may choose. way: where it stands."""

    way: str
    glob: str


def wants(settings: Settings, cluster: str = "") -> list[Want]:
    """The topics that are named of a cluster: those of its list, and what else a path may
    choose."""
    kafka, routes = settings.clusters[cluster], _routes(settings, cluster)
    listed = [topic.name for topic in kafka.topics]
    allowed = [name for _, route in routes for name in route.with_.allow if not is_glob(name)]
    further = [name for name in dict.fromkeys(allowed) if name not in listed]
    made = [_want(name, kafka, [route for _, route in routes]) for name in (*listed, *further)]
    return [want._replace(optional=want.name in further) for want in made]


def _routes(settings: Settings, cluster: str) -> list[tuple[int, Route]]:
    every = enumerate(settings.routes)
    return [(n, route) for n, route in every if settings.cluster_of(route) == cluster]


def _want(name: str, kafka: Kafka, routes: Sequence[Route]) -> Want:
    of_it = [route.with_ for route in routes if _may_be_of(route, name)]
    answers = any(route.with_.reply_to == name for route in routes)
    warmed = name in kafka.bootstrap
    read = any(with_.capability != "produce" for with_ in of_it) or answers or warmed
    return Want(name, any(with_.writes for with_ in of_it), read=read or not of_it)


def patterns(settings: Settings, cluster: str = "") -> list[Pattern]:
    return [
        Pattern(f"routes[{number}].with.allow[{index}]", glob)
        for number, route in _routes(settings, cluster)
        for index, glob in enumerate(route.with_.allow)
        if is_glob(glob)
    ]


def _may_be_of(route: Route, topic: str) -> bool:
    with_ = route.with_
    if with_.allow and any(template.holes for template in with_.sources):
        return any(fits(pattern, topic) for pattern in with_.allow)
    return any(template.may_be(topic) for template in with_.sources)


def judge(
    want: Want, told: TopicAnswer | None, readable: bool | None, names: Collection[str]
) -> Iterator[Finding]:
    """told: by the brokers; None if they know none of the name. readable: as they say, or as was
    tried. names: of all topics that there are."""
    subject = f"topic {want.name}"
    bad = State.WARNING if want.optional else State.FAILS
    if told is None or told.error == UNKNOWN_TOPIC:
        near = nearest(want.name, names)
        hint = near if near.startswith("did you mean") else "create it, or correct its name"
        yield Finding(bad, subject, f"no broker knows it; {hint}")
        return
    if told.error == DENIED:
        what = "it may not be described, if it exists; allow the gateway READ on it"
        yield Finding(bad, subject, what)
        return
    if told.error or not told.partitions:
        yield Finding(bad, subject, f"it cannot be used (error {told.error} of Kafka)")
        return
    problems = list(_problems(want, told, readable))
    for state, what in problems:
        yield Finding(bad if state is State.FAILS else state, subject, what)
    if not problems:
        both = "read and written" if want.write else "read"
        rights = both if want.read else "written"
        count = len(told.partitions)
        yield ok(subject, f"{count} partition{'s' * (count > 1)}, may be {rights}")


def _problems(want: Want, told: TopicAnswer, readable: bool | None) -> Iterator[tuple[State, str]]:
    if readable is False and want.read:
        yield State.FAILS, "it may not be read; allow the gateway READ on it"
    elif readable is False:
        what = "it may not be read, so Idempotency-Key is of no use"
        yield State.WARNING, f"{what}; allow the gateway READ on it"
    elif readable is None and want.read:
        yield State.WARNING, "whether it may be read, no broker tells"
    writable = told.may(Operation.WRITE)
    if want.write and writable is False:
        yield State.FAILS, "it may not be written, and clients shall; allow the gateway WRITE on it"
    elif want.write and writable is None:
        yield State.WARNING, "whether it may be written, this broker does not tell"
    alone = sorted(number for number, one in told.partitions.items() if one.leader < 0)
    if alone:
        of = f"partition{'s' * (len(alone) > 1)} {_listed(map(str, alone))}"
        yield State.WARNING, f"{of} of {len(told.partitions)} without a leader; look at the brokers"


def judge_pattern(pattern: Pattern, topics: Mapping[str, TopicAnswer]) -> Finding:
    """topics: all that there are, with rights."""
    subject = f"{pattern.way} {pattern.glob}"
    found = [
        name for name in sorted(topics) if fits(pattern.glob, name) and not name.startswith("__")
    ]
    denied = [name for name in found if topics[name].may(Operation.READ) is False]
    if not found:
        return warning(subject, "no topic fits it by now")
    if denied:
        what = f"{len(denied)} of {len(found)} topics may not be read: {_listed(denied)}"
        return warning(subject, f"{what}; allow the gateway READ on them")
    return ok(subject, f"{len(found)} topic{'s' * (len(found) > 1)}, may be read")


def _listed(words: Iterable[str]) -> str:
    every = list(words)
    return ", ".join(every[:MOST]) + (", ..." if len(every) > MOST else "")
