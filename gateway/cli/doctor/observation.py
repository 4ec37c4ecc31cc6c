"""Hold the observation of a gateway, and define what rules and their evidence are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gateway.telemetry.catalog import CLUSTER, Metric

from .scrape import Scrape


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation of one gateway: two scrapes, and answers of its admin API.

    `collection` creates it; the rules read it.

    Attributes:
        routes: `GET /routes` of the admin API; None if it was not answered, as of the next two.
        streams: The first streams of `GET /streams`.
        missing: The workers that did not answer for `GET /routes`.
    """

    url: str
    seconds: float
    now: float
    before: Scrape
    after: Scrape
    routes: Sequence[Mapping[str, Any]] | None = None
    streams: Sequence[Mapping[str, Any]] | None = None
    health: Mapping[str, Any] | None = None
    missing: Sequence[int] = ()

    def growth(self, metric: Metric, suffix: str = "", **labels: str) -> float:
        return sum(grown for _, grown in self.iter_growth(metric, suffix, **labels))

    def iter_growth(
        self, metric: Metric, suffix: str = "", **labels: str
    ) -> Iterator[tuple[dict[str, str], float]]:
        """Yield the labels of each series of a counter that grew, and its growth.

        A worker that was restarted counts from 0 again; then its whole count is new.
        """
        for names, value in self.after.iter_series(metric, suffix, **labels):
            before = self.before.get(metric, names, suffix) or 0.0
            grown = value - before if value >= before else value
            if grown > 0:
                yield names, grown

    def iter_lasting(
        self, metric: Metric, **labels: str
    ) -> Iterator[tuple[dict[str, str], float, float]]:
        """Yield the labels, first and last value of each gauge above 0 at both scrapes."""
        for names, value in self.after.iter_series(metric, **labels):
            before = self.before.get(metric, names)
            if before and value:
                yield names, before, value


MAX_LISTED = 8  # partitions, streams or routes that one line of evidence names


class Thresholds(NamedTuple):
    """The least effect that makes something a cause.

    Attributes:
        max_loop_share: The share of time for which the event loop may keep others waiting. It is
            measured four times per second, so about half of a pause is seen.
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
    """One cause, its evidence, and the settings or commands to change.

    Attributes:
        find_evidence: Returns a sentence for each piece of evidence; none if there is no cause.
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
    """Return items separated by commas; the number of those above `MAX_LISTED`."""
    found = list(items)
    more = [f"and {len(found) - MAX_LISTED} more"] if len(found) > MAX_LISTED else []
    return ", ".join(found[:MAX_LISTED] + more)


def format_cluster(labels: Mapping[str, str]) -> str:
    """Return ` of cluster NAME`, where the configuration names its clusters."""
    return f" of cluster {labels[CLUSTER]}" if labels.get(CLUSTER) else ""


def format_count(number: float, noun: str) -> str:
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def iter_health(observation: Observation, key: str) -> Iterator[str]:
    yield from (observation.health or {}).get(key, ())
