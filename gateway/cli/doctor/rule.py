"""Define a rule of the doctor, and the thresholds above which something counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gateway.telemetry.catalog import CLUSTER

from .observation import Observation

MAX_LISTED = 8  # partitions, streams or routes that one line of evidence names


class Thresholds(NamedTuple):
    """The least effect that makes something a cause.

    Attributes:
        max_loop_share: The share of time for which the event loop may keep others waiting. It is
            measured four times per second, so about half of a pause is seen.
        max_memory_share: The share of `memory` that may be in use.
        max_file_share: The share of file descriptors that may be in use.
        min_lag_records: The fewest offsets that a read has to be behind.
        min_held_seconds: How long a transaction has to hold a partition.
        min_throttled_share: The share of time for which brokers have to throttle the gateway.
        min_unmatched_records: The fewest records that pass a route whose filter matches none.
        min_refusals: The fewest requests without access that count.
        min_certificate_seconds: How long the certificate has to be valid.
    """

    max_loop_share: float = 0.2
    max_memory_share: float = 0.9
    max_file_share: float = 0.9
    min_lag_records: float = 1000.0
    min_held_seconds: float = 5.0
    min_throttled_share: float = 0.05
    min_unmatched_records: float = 20.0
    min_refusals: float = 5.0
    min_certificate_seconds: float = 7 * 86_400.0


class Rule(NamedTuple):
    """One cause, and how it is recognized.

    Attributes:
        name: The name of the cause for programs.
        title: What it is, in a few words.
        find_evidence: Returns what was seen of it, a sentence each; none if it is not there.
        settings: What to change: settings of the YAML, or commands.
        advice: How to change it, and why that helps.
    """

    name: str
    title: str
    find_evidence: Callable[[Observation, Thresholds], Iterable[str]]
    settings: Sequence[str]
    advice: str


def format_partitions(series: Iterable[Mapping[str, str]]) -> str:
    """Return the partitions of labels as text, by topic: `orders 0, 3; stock 1 (eu)`."""
    by_topic: dict[tuple[str, str], list[int]] = {}
    for labels in series:
        key = labels["topic"], labels.get(CLUSTER, "")
        by_topic.setdefault(key, []).append(int(labels["partition"]))
    return "; ".join(
        f"{topic} {format_list(map(str, sorted(partitions)))}{cluster and f' ({cluster})'}"
        for (topic, cluster), partitions in sorted(by_topic.items())
    )


def format_list(items: Iterable[str]) -> str:
    """Return items separated by commas; the number of those that are too many."""
    found = list(items)
    more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return ", ".join(found[:MAX_LISTED] + more)


def format_cluster(labels: Mapping[str, str]) -> str:
    """Return ` of cluster NAME`, where the configuration names its clusters."""
    return f" of cluster {labels[CLUSTER]}" if labels.get(CLUSTER) else ""


def format_count(number: float, noun: str) -> str:
    """Return a number with its noun, in the plural if it is not 1."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def iter_health(observation: Observation, key: str) -> Iterator[str]:
    """Iterate over the `reasons` or `warnings` of the gateway's health."""
    yield from (observation.health or {}).get(key, ())
