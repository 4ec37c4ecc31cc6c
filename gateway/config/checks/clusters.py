"""Find the cluster of a route: the one it names, or the one that has all of its topics.

The functions work on the values as written (as `crosscheck` does) and on settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.config.sections.kafka import is_cluster_mapping
from gateway.config.source.substitution import UnresolvedText, safe_repr, suggest
from gateway.config.source.template import Template
from gateway.config.types.section import Problem, as_mapping

Loc = tuple[str | int, ...]


def iter_clusters(raw: Mapping[str, Any]) -> Iterator[tuple[Loc, str, Mapping[Any, Any]]]:
    """Yield the path, the name (empty for a single cluster) and the options of each cluster."""
    written = raw.get("kafka")
    if is_cluster_mapping(written):
        for name, options in as_mapping(written).items():
            yield ("kafka", name), str(name), as_mapping(options)
    else:
        yield ("kafka",), "", as_mapping(written)


def find_clusters(topics: Mapping[str, Sequence[str]], templates: Iterable[Template]) -> list[str]:
    """Return the names of the clusters that have a match for each of these topics."""
    wanted = list(templates)
    return [
        name
        for name, known in topics.items()
        if all(any(matches(template, topic) for topic in known) for template in wanted)
    ]


def matches(template: Template, topic: str) -> bool:
    return isinstance(topic, UnresolvedText) or template.can_render(topic)


def check_cluster_choice(
    topics: Mapping[str, Sequence[str]],
    options: Mapping[Any, Any],
    sources: Sequence[tuple[Loc, Template]],
) -> Iterator[Problem]:
    """Yield the problems of a route's choice of a cluster; `topics` are those of each cluster."""
    wanted = options.get("kafka")
    if "" in topics:
        if wanted is not None:
            what = "'kafka' chooses among several, and there is one; remove it"
            yield Problem(("with", "kafka"), what, is_key=True)
    elif isinstance(wanted, str) and not isinstance(wanted, UnresolvedText):
        if wanted not in topics:
            near = suggest(wanted, topics, "add it to kafka")
            yield Problem(("with", "kafka"), f"unknown cluster {safe_repr(wanted)}; {near}")
    elif wanted is None and len(topics) > 1:
        yield from _check_implicit_choice(topics, options, sources)


def _check_implicit_choice(
    topics: Mapping[str, Sequence[str]],
    options: Mapping[Any, Any],
    sources: Sequence[tuple[Loc, Template]],
) -> Iterator[Problem]:
    names = " or ".join(f"kafka: {name}" for name in topics)
    if options.get("allow") is not None:
        what = "'allow' may mean topics of several clusters"
        yield Problem(("with", "allow"), f"{what}; add {names}", is_key=True)
        return
    candidates = find_clusters(topics, (template for _, template in sources))
    if len(candidates) > 1 and sources:
        loc, template = sources[0]
        cluster_names, choice = (
            " and ".join(candidates),
            " or ".join(f"kafka: {name}" for name in candidates),
        )
        yield Problem(loc, f"topic '{template}' is in {cluster_names}; add {choice}")
    elif not candidates and all(find_clusters(topics, [template]) for _, template in sources):
        what = "no cluster has all of these topics, and a stream is of one; split the route"
        yield Problem(("with", "topics"), what, is_key=True)


def list_topics(topics: Mapping[str, Sequence[str]], cluster: object) -> list[str]:
    """Return the topics that a route may name: of its cluster, or of all if it names none."""
    if isinstance(cluster, str) and cluster in topics:
        return list(topics[cluster])
    return list(dict.fromkeys(name for known in topics.values() for name in known))
