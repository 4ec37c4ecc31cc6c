"""Hold the observation of a gateway: two scrapes, and answers of its admin API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.telemetry.catalog import Metric

from .scrape import Scrape


@dataclass(frozen=True, slots=True)
class Observation:
    """The observation of one gateway. `collection` creates it; the rules read it.

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
