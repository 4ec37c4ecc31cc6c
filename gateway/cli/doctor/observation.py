"""Hold what the doctor learned of a gateway: two scrapes, and answers of its admin API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.telemetry.catalog import Metric

from .scrape import Scrape


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen of one gateway. The collection creates it; the rules read it.

    Attributes:
        url: Where it was asked.
        seconds: The time between the two scrapes.
        now: When it ended, in seconds since 1970.
        after: The second one.
        routes: `GET /routes` of the admin API; None if it was not answered.
        streams: The first streams of `GET /streams`; None if it was not answered.
        health: `GET /health` of the admin API; None if it was not answered.
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
        """Return by how much the series of a counter with these labels grew, all together."""
        return sum(grown for _, grown in self.iter_growth(metric, suffix, **labels))

    def iter_growth(
        self, metric: Metric, suffix: str = "", **labels: str
    ) -> Iterator[tuple[dict[str, str], float]]:
        """Iterate over the series of a counter that grew.

        A worker that was restarted counts from 0 again; then all that it has by now is new.

        Yields:
            The labels of a series, and by how much it grew.
        """
        for names, value in self.after.iter_series(metric, suffix, **labels):
            before = self.before.get(metric, names, suffix) or 0.0
            grown = value - before if value >= before else value
            if grown > 0:
                yield names, grown

    def iter_lasting(
        self, metric: Metric, **labels: str
    ) -> Iterator[tuple[dict[str, str], float, float]]:
        """Iterate over the series of a gauge that were above 0 at both scrapes.

        Yields:
            The labels of a series, its value before, and its value now.
        """
        for names, value in self.after.iter_series(metric, **labels):
            before = self.before.get(metric, names)
            if before and value:
                yield names, before, value
