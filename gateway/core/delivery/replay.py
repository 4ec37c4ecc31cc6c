"""Describe replays: records of a topic that are read once more, and their progress.

A replay is an immutable value, stored in a topic: a process that reads the latest one can go on
with it. Which of several processes does is decided here, too. A process that hears nothing about a
running replay for `silence_timeout_s` seconds takes it over, under the replay's transactional id,
which fences the former owner, so that of two processes that take over at the same time only one
goes on. Sans-I/O: `now` is in seconds of any monotonic clock, times within a replay are
milliseconds since 1970.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from gateway.core.log.record import TopicPartition

MAX_REPLAYS = 1000  # that a process knows, unless more than these run
RATE_WINDOW_S = 10.0  # seconds over which the rate of a running replay is measured


class ReplayState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Destination(StrEnum):
    TOPIC = "topic"
    BACKEND = "backend"


class Span(NamedTuple):
    start: int
    end: int
    next_offset: int

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.end


RETENTION, TOO_LARGE = "retention", "too-large"  # why records were not replayed
MAX_MISSING_RANGES = 1000  # of one replay: its state is one record of Kafka


class MissingRange(NamedTuple):
    """Records that were not replayed: the offsets from `offset` to before `next_offset`.

    Attributes:
        reason: RETENTION if Kafka no longer had them; TOO_LARGE if the topic does not take them.
    """

    partition: int
    offset: int
    next_offset: int
    reason: str = RETENTION


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay, as it is stored in its topic. The field names are those of the stored JSON.

    Attributes:
        target: The topic to write to, for that destination.
        group: The group whose back end gets the records, for that destination.
        owner: The process that works on it; empty if any may take it.
        records: How many records were written or answered.
        dead: How many of them failed.
        lacks: What was not replayed.
        error: Why it failed, or what keeps it waiting now.
        topic_ids: Of `topic` and `target` when it was started, where brokers have ids.
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
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        return self.state is ReplayState.RUNNING

    @property
    def is_done(self) -> bool:
        return all(span.is_done for span in self.spans.values())

    @property
    def progress(self) -> float:
        """Return the share of the offsets that are done, from 0 to 1."""
        total = sum(max(0, span.end - span.start) for span in self.spans.values())
        done = sum(
            max(0, min(span.next_offset, span.end) - span.start) for span in self.spans.values()
        )
        return done / total if total else 1.0

    def list_remaining(self) -> list[tuple[TopicPartition, Span]]:
        tps = sorted(
            (TopicPartition(self.topic, partition), span) for partition, span in self.spans.items()
        )
        return [(tp, span) for tp, span in tps if not span.is_done]

    def with_owner(self, owner: str, at: int) -> Replay:
        return replace(self, owner=owner, updated=at)

    def with_progress(
        self, partition: int, next_offset: int, records: int, bytes: int, at: int, dead: int = 0
    ) -> Replay:
        spans = {**self.spans, partition: self.spans[partition]._replace(next_offset=next_offset)}
        return replace(
            self,
            spans=spans,
            records=self.records + records,
            bytes=self.bytes + bytes,
            dead=self.dead + dead,
            updated=at,
            # Whatever it waited for has come.
            error="",
        )

    def with_missing(self, partition: int, next_offset: int, at: int) -> Replay:
        span = self.spans[partition]
        # Retention may have gone beyond the end of the span, and what is there is not of the
        # replay.
        missing = MissingRange(partition, span.next_offset, min(next_offset, span.end))
        spans = {**self.spans, partition: span._replace(next_offset=missing.next_offset)}
        return replace(self, spans=spans, lacks=(*self.lacks, missing), updated=at)

    def with_refused(self, partition: int, offsets: Iterable[int]) -> Replay:
        """Return the replay after records, in order, turned out to be too large for its target."""
        lacks = list(self.lacks)
        for offset in offsets:
            start = offset
            if lacks and lacks[-1] == (partition, lacks[-1].offset, offset, TOO_LARGE):
                start = lacks.pop().offset  # one range with the offset before
            lacks.append(MissingRange(partition, start, offset + 1, TOO_LARGE))
        return replace(self, lacks=tuple(lacks))

    def with_end(self, state: ReplayState, at: int, error: str = "") -> Replay:
        return replace(self, state=state, owner="", updated=at, error=error)

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "spans": {str(partition): list(span) for partition, span in self.spans.items()},
            "lacks": [list(missing) for missing in self.lacks],
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Replay:
        """Return a replay; KeyError, TypeError or ValueError if a field is wrong."""
        fields = dict(stored)
        fields["spans"] = {
            int(partition): Span(*span) for partition, span in stored["spans"].items()
        }
        fields["lacks"] = tuple(MissingRange(*missing) for missing in stored["lacks"])
        fields["state"] = ReplayState(stored["state"])
        fields["destination"] = Destination(stored["destination"])
        return cls(**fields)


@dataclass(slots=True, eq=False)
class _TrackedReplay:
    replay: Replay
    heard_at: float
    timeout_s: float
    progress: deque[tuple[float, int]]


@dataclass(slots=True)
class Replays:
    """All known replays, by their latest state.

    Each process has one and applies the records of the replays' topic to it. After
    `silence_timeout_s` seconds without news a running replay is taken over. Each process waits up
    to half as long again, so that not all of them take over at once. Of more than `max_replays`,
    those that ended first are forgotten.
    """

    silence_timeout_s: float = 5.0
    random: Callable[[], float] = random.random
    max_replays: int = MAX_REPLAYS
    _tracked: dict[str, _TrackedReplay] = field(default_factory=dict)  # the last to change is last

    def apply_record(self, id: str, replay: Replay | None, now: float) -> None:
        if replay is None:
            self._tracked.pop(id, None)
            return
        tracked = self._tracked.pop(id, None)
        steps: deque[tuple[float, int]] = tracked.progress if tracked is not None else deque()
        steps.append((now, replay.records))
        # Two steps are kept however old they are: a slow replay has a rate, too.
        while len(steps) > 2 and now - steps[0][0] > RATE_WINDOW_S:
            steps.popleft()
        # Drawn again for each change, so that no process is always the first to take over.
        timeout_s = self.silence_timeout_s * (1 + self.random() / 2)
        self._tracked[id] = _TrackedReplay(replay, now, timeout_s, steps)
        if len(self._tracked) > self.max_replays:
            ended = (id for id, each in self._tracked.items() if not each.replay.is_running)
            self._tracked.pop(next(ended, ""), None)

    def get(self, id: str) -> Replay | None:
        tracked = self._tracked.get(id)
        return tracked.replay if tracked is not None else None

    def __iter__(self) -> Iterator[Replay]:
        return iter(sorted((tracked.replay for tracked in self._tracked.values()), key=_sort_key))

    def list_abandoned(self, now: float) -> list[str]:
        """Return the ids of the running replays that apparently nobody works on, oldest first."""
        abandoned = [
            tracked.replay
            for tracked in self._tracked.values()
            if tracked.replay.is_running
            and (not tracked.replay.owner or now - tracked.heard_at > tracked.timeout_s)
        ]
        return [replay.id for replay in sorted(abandoned, key=_sort_key)]

    def get_rate(self, id: str, now: float) -> float:
        """Return the records per second: recently while it runs, over its whole time afterwards."""
        tracked = self._tracked.get(id)
        if tracked is None:
            return 0.0
        replay = tracked.replay
        if not replay.is_running:
            seconds = (replay.updated - replay.created) / 1000
            return replay.records / seconds if seconds > 0 else 0.0
        since, records = tracked.progress[0]
        seconds = now - since
        return (replay.records - records) / seconds if seconds > 0 else 0.0


def _sort_key(replay: Replay) -> tuple[int, str]:
    return replay.created, replay.id
