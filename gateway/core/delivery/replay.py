"""A replay: records of a topic that are read once more, and how far that has come.

It is an immutable value, as it lies in its topic: whoever reads the latest one can go on with it.
Which of several processes does is decided here, too: one that hears nothing of a replay that runs
for `silence` seconds takes it over, and what it takes it over with is a fence (its transactional
id), so that two who do it at once are one after that. Sans-I/O: `now` is in seconds of any
monotonic clock, times within a replay are milliseconds since 1970.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.core.log.record import TopicPartition

RATE_WINDOW_S = 10.0  # seconds that the rate is of


class ReplayState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Destination(StrEnum):
    TOPIC = "topic"
    BACKEND = "backend"


class Span(NamedTuple):
    """Of one partition: from `start` to before `end`; `next` is where it goes on."""

    start: int
    end: int
    next_offset: int

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.end


class MissingRange(NamedTuple):
    """Records that Kafka no longer has: from `offset` to before `next`."""

    partition: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Replay:
    """See the module.

    group:   whose back end it is, with that destination.
    owner:   which process works on it; empty: whoever takes it.
    records, bytes, dead: that were written or answered, and those of them that failed.
    error:   why it failed; or what keeps it waiting now.
    """

    id: str
    topic: str
    destination: Destination
    target: str
    group: str
    spans: Mapping[int, Span]
    created: int
    updated: int
    by: str = ""
    owner: str = ""
    state: ReplayState = ReplayState.RUNNING
    records: int = 0
    bytes: int = 0
    dead: int = 0
    lacks: tuple[MissingRange, ...] = ()
    error: str = ""

    @property
    def is_running(self) -> bool:
        return self.state is ReplayState.RUNNING

    @property
    def is_done(self) -> bool:
        """There is nothing left to read."""
        return all(span.is_done for span in self.spans.values())

    @property
    def progress(self) -> float:
        """Share of the offsets, from 0 to 1."""
        of = sum(max(0, span.end - span.start) for span in self.spans.values())
        done = sum(
            max(0, min(span.next_offset, span.end) - span.start) for span in self.spans.values()
        )
        return done / of if of else 1.0

    def list_remaining(self) -> list[tuple[TopicPartition, Span]]:
        """What is still to be read."""
        tps = sorted((TopicPartition(self.topic, each), span) for each, span in self.spans.items())
        return [(tp, span) for tp, span in tps if not span.is_done]

    def with_owner(self, owner: str, at: int) -> Replay:
        return replace(self, owner=owner, updated=at)

    def with_progress(
        self, partition: int, next_offset: int, records: int, bytes: int, at: int, dead: int = 0
    ) -> Replay:
        """It has come so far in a partition, with so many more records."""
        spans = {**self.spans, partition: self.spans[partition]._replace(next_offset=next_offset)}
        return replace(
            self,
            spans=spans,
            records=self.records + records,
            bytes=self.bytes + bytes,
            dead=self.dead + dead,
            updated=at,
            error="",
        )

    def with_missing(self, partition: int, next_offset: int, at: int) -> Replay:
        """Kafka has nothing before `next` any more."""
        span = self.spans[partition]
        lack = MissingRange(partition, span.next_offset, min(next_offset, span.end))
        spans = {**self.spans, partition: span._replace(next_offset=lack.next_offset)}
        return replace(self, spans=spans, lacks=(*self.lacks, lack), updated=at)

    def with_end(self, state: ReplayState, at: int, error: str = "") -> Replay:
        return replace(self, state=state, owner="", updated=at, error=error)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {
            "spans": {str(each): list(span) for each, span in self.spans.items()},
            "lacks": [list(lack) for lack in self.lacks],
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Replay:
        """Raises KeyError, TypeError and ValueError for what is none."""
        fields = dict(written)
        fields["spans"] = {int(each): Span(*span) for each, span in written["spans"].items()}
        fields["lacks"] = tuple(MissingRange(*lack) for lack in written["lacks"])
        fields["state"] = ReplayState(written["state"])
        fields["destination"] = Destination(written["destination"])
        return cls(**fields)


@dataclass(slots=True, eq=False)
class _TrackedReplay:
    replay: Replay
    heard_at: float
    timeout_s: float
    progress: deque[tuple[float, int]]


@dataclass(slots=True)
class Replays:
    """All that are known, by their latest state. silence: seconds. draw: from [0, 1)."""

    silence_timeout_s: float = 5.0
    random: Callable[[], float] = random.random
    _tracked: dict[str, _TrackedReplay] = field(default_factory=dict)

    def apply_record(self, id: str, replay: Replay | None, now: float) -> None:
        """What its topic says of it; None: it is forgotten."""
        if replay is None:
            self._tracked.pop(id, None)
            return
        known = self._tracked.get(id)
        steps: deque[tuple[float, int]] = known.progress if known is not None else deque()
        steps.append((now, replay.records))
        while len(steps) > 2 and now - steps[0][0] > RATE_WINDOW_S:
            steps.popleft()
        patience = self.silence_timeout_s * (1 + self.random() / 2)
        self._tracked[id] = _TrackedReplay(replay, now, patience, steps)

    def get(self, id: str) -> Replay | None:
        known = self._tracked.get(id)
        return known.replay if known is not None else None

    def __iter__(self) -> Iterator[Replay]:
        return iter(sorted((each.replay for each in self._tracked.values()), key=_sort_key))

    def list_abandoned(self, now: float) -> list[str]:
        """Those that run, and that nobody works on, to all appearances; oldest first."""
        found = [
            known.replay
            for known in self._tracked.values()
            if known.replay.is_running
            and (not known.replay.owner or now - known.heard_at > known.timeout_s)
        ]
        return [replay.id for replay in sorted(found, key=_sort_key)]

    def get_rate(self, id: str, now: float) -> float:
        """Records a second: lately while it runs, of all its time when it is over."""
        known = self._tracked[id]
        replay = known.replay
        if not replay.is_running:
            took = (replay.updated - replay.created) / 1000
            return replay.records / took if took > 0 else 0.0
        since, records = known.progress[0]
        took = now - since
        return (replay.records - records) / took if took > 0 else 0.0


def _sort_key(replay: Replay) -> tuple[int, str]:
    return replay.created, replay.id
