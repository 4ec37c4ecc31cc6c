"""What sessions should come out: plain Python, event by event, in no hurry.

Times are whole numbers, as is the watermark: of batch N those are late that the watermark of
batch N-1 had passed, and what the watermark of batch N has passed closes at its end.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Event(NamedTuple):
    key: Hashable
    time: int
    value: int = 0


class Session(NamedTuple):
    key: Hashable
    start: int
    end: int
    events: int
    total: int


def compute_sessions(
    events: Iterable[Event], gap: int, max_length: int | None = None
) -> list[Session]:
    """Of all events, as if they had come in the order of time."""
    found: list[list[Event]] = []
    for event in sorted(events, key=lambda event: (str(event.key), event.time)):
        run = found[-1] if found else []
        goes_on = bool(run) and run[0].key == event.key and event.time - run[-1].time <= gap
        if goes_on and (max_length is None or event.time - run[0].time < max_length):
            run.append(event)
        else:
            found.append([event])
    return sorted(map(_build_session, found), key=lambda session: (str(session.key), session.start))


@dataclass
class SparkSessionModel:
    """Spark's operator: a row is late when its own session would be over (time + gap), so one that
    the watermark has passed may still extend an open session, or begin one of its own."""

    gap: int
    watermark_delay: int
    open_runs: list[list[Event]] = field(default_factory=list)
    late_events: list[Event] = field(default_factory=list)
    watermark: int = 0  # of the batch before

    def process_batch(
        self, events: Sequence[Event], latest_time: int | None = None
    ) -> list[Session]:
        """What closes. latest: time of the newest event before this batch, for its watermark."""
        for event in events:
            (
                self.late_events if event.time + self.gap <= self.watermark else self._start_run()
            ).append(event)
        if latest_time is not None:
            self.watermark = max(self.watermark, latest_time - self.watermark_delay)
        self.open_runs = list(_merge_runs(self.open_runs, self.gap))
        closed = [run for run in self.open_runs if run[-1].time + self.gap <= self.watermark]
        self.open_runs = [run for run in self.open_runs if run not in closed]
        return sorted(map(_build_session, closed), key=str)

    def _start_run(self) -> list[Event]:
        self.open_runs.append([])
        return self.open_runs[-1]


def _merge_runs(runs: Iterable[list[Event]], gap: int) -> Iterator[list[Event]]:
    current: list[Event] = []
    for run in sorted(runs, key=lambda run: (str(run[0].key), run[0].time)):
        if current and current[0].key == run[0].key and run[0].time - current[-1].time <= gap:
            current = sorted([*current, *run], key=lambda event: event.time)
            continue
        if current:
            yield current
        current = run
    if current:
        yield current


def _build_session(run: Sequence[Event]) -> Session:
    total = sum(event.value for event in run)
    return Session(run[0].key, run[0].time, run[-1].time, len(run), total)
