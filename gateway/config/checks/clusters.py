"""Which of several clusters a route is of: one that has all of its topics, or the one it names.

Works on the values as written, as `crosscheck`, and on settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.config.sections.kafka import several
from gateway.config.source.expression import nearest
from gateway.config.source.substitution import Unsettled, shown
from gateway.config.source.template import Template
from gateway.config.types.section import Problem

Way = tuple[str | int, ...]


def sections(raw: Mapping[str, Any]) -> Iterator[tuple[Way, str, Mapping[Any, Any]]]:
    """The way to each cluster, its name (empty for one without), and what is written of it."""
    written = raw.get("kafka")
    if several(written):
        for name, each in _map(written).items():
            yield ("kafka", name), str(name), _map(each)
    else:
        yield ("kafka",), "", _map(written)


def having(topics: Mapping[str, Sequence[str]], sources: Iterable[Template]) -> list[str]:
    """The clusters of which a route with these topics may be. topics: by cluster."""
    wanted = list(sources)
    return [
        name
        for name, known in topics.items()
        if all(any(matches(template, topic) for topic in known) for template in wanted)
    ]


def matches(template: Template, topic: str) -> bool:
    return isinstance(topic, Unsettled) or template.may_be(topic)


def problems(
    topics: Mapping[str, Sequence[str]],
    options: Mapping[Any, Any],
    sources: Sequence[tuple[Way, Template]],
) -> Iterator[Problem]:
    """What is wrong with the choice of a route. options: its `with`."""
    wanted = options.get("kafka")
    if "" in topics:
        if wanted is not None:
            what = "'kafka' chooses among several, and there is one; remove it"
            yield Problem(("with", "kafka"), what, key=True)
    elif isinstance(wanted, str) and not isinstance(wanted, Unsettled):
        if wanted not in topics:
            near = nearest(wanted, topics, "add it to kafka")
            yield Problem(("with", "kafka"), f"unknown cluster {shown(wanted)}; {near}")
    elif wanted is None and len(topics) > 1:
        yield from _open(topics, options, sources)


def _open(
    topics: Mapping[str, Sequence[str]],
    options: Mapping[Any, Any],
    sources: Sequence[tuple[Way, Template]],
) -> Iterator[Problem]:
    names = " or ".join(f"kafka: {name}" for name in topics)
    if options.get("allow") is not None:
        what = "'allow' may mean topics of several clusters"
        yield Problem(("with", "allow"), f"{what}; add {names}", key=True)
        return
    found = having(topics, (template for _, template in sources))
    if len(found) > 1 and sources:
        way, template = sources[0]
        which, choice = " and ".join(found), " or ".join(f"kafka: {name}" for name in found)
        yield Problem(way, f"topic '{template}' is in {which}; add {choice}")
    elif not found and all(having(topics, [template]) for _, template in sources):
        what = "no cluster has all of these topics, and a stream is of one; split the route"
        yield Problem(("with", "topics"), what, key=True)


def topics_for(topics: Mapping[str, Sequence[str]], wanted: object) -> list[str]:
    """Those that a route may name."""
    if isinstance(wanted, str) and wanted in topics:
        return list(topics[wanted])
    return list(dict.fromkeys(name for known in topics.values() for name in known))


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}
