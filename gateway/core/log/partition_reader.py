"""One read of one partition, from a start on, through everything Kafka does to it.

    resolving -> streaming <-> recovering(cause, retry at)
                     |  ^
                     v  |
              validating / resetting

The driver asks `todo` what is due, does it, and hands the answer back; what comes out are
entries, in order, without a hole that is not told. Rules that the seed of this project
and its peers got wrong, and where they are kept:

- A gap is declared once per advance, at the first fetch that succeeds after it: chasing a
  moving log start is one gap (`_jump`).
- Out of range asks ListOffsets at most once per attempt. Above the end of the log it
  first believes in a stale broker, then asks the epochs (KIP-320), and only then says
  truncated.
- A live start is an offset, not a time: see `_resolve`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias

from .position import NO_EPOCH, Place
from .record import BACK, Entry, Fault, Gap, Ready, Reason, TopicPartition
from .recovery import RULES, Action, Backoff, Cause

EARLIEST, LATEST = -2, -1
# An end that was asked for longer ago than this does not count as the end at the connect.
FRESH_END = 1.0  # seconds
NO_PROGRESS = 5.0  # seconds

_new = tuple.__new__  # of named tuples, where every fetch of a partition makes one: 0.2 us less


class OutOfRange(StrEnum):
    """What decides where to go on when Kafka no longer has the offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


class Live(NamedTuple):
    """Start at the end of the log as it was when the client connected.

    since:      wall clock of connecting, in milliseconds.
    born:       the same instant on the monotonic clock, in seconds.
    epoch:      the leader epoch known then, NO_EPOCH if none.
    leaderless: there was no leader then, so nothing could be produced before the next epoch.
    skew:       how far producers' clocks may be behind, in milliseconds.
    """

    since: int
    born: float
    epoch: int = NO_EPOCH
    leaderless: bool = False
    skew: int = 60_000


class At(NamedTuple):
    """Start at an offset that was received before. `epoch` is that of the record before it."""

    offset: int
    epoch: int = NO_EPOCH


class Since(NamedTuple):
    """Start at the first record of a time (milliseconds), or at EARLIEST."""

    timestamp: int


Start: TypeAlias = Live | At | Since


class Fetch(NamedTuple):
    offset: int


class ListOffset(NamedTuple):
    """Ask the leader for an offset. `stable`: no further than the last stable offset."""

    timestamp: int
    stable: bool = True


class EpochEnd(NamedTuple):
    """Ask the leader where an epoch ended (OffsetForLeaderEpoch)."""

    epoch: int


Todo: TypeAlias = Fetch | ListOffset | EpochEnd


class State(Enum):
    RESOLVING = "resolving"
    VALIDATING = "validating"
    RESETTING = "resetting"
    STREAMING = "streaming"


class Fetched(NamedTuple):
    """What a fetch brought, decoded. `next` is the offset to fetch next."""

    entries: Sequence[Entry]
    next: int
    epoch: int
    high_watermark: int
    last_stable_offset: int
    log_start: int


@dataclass(slots=True)
class Reading:
    """See the module. All times in seconds of one monotonic clock."""

    tp: TopicPartition
    start: Start
    policy: OutOfRange
    backoff: Backoff
    topic_id: str = ""
    leader: int | None = None
    leader_epoch: int = NO_EPOCH
    place: Place = field(default=Place(None))
    state: State = State.RESOLVING
    cause: Cause | None = None
    retry_at: float = 0.0
    is_ready: bool = False
    heard_at: float = 0.0
    progress_at: float | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start: int = -1
    resets: int = 0
    lineage: int = 0
    promised: bool = False
    _upto: Place | None = None
    _validated: int = NO_EPOCH
    _above: bool = False
    _end: int | None = None
    _gaps: list[Gap] = field(default_factory=list)
    _stood: Place = field(default=Place(None))  # before the first of `_gaps`
    _told: Cause | None = None

    def __post_init__(self) -> None:
        if isinstance(self.start, At):
            self.place = Place(self.start.offset, self.start.epoch)
            self.state = State.STREAMING
        elif isinstance(self.start, Live):
            self.place = Place(None, self.start.epoch)

    @property
    def unsettled(self) -> bool:
        """Would a fetch that brings nothing still say something?"""
        return not self.is_ready or self.cause is not None or bool(self._gaps)

    def promise(self) -> None:
        """A client was begun and told that this partition is pending: what is written from now
        on must reach it, so an end that is heard later is not where to start."""
        self.promised = True

    def stands_on(self, epoch: int) -> bool:
        """Is the place known to be in the present leader's log, and the epoch one of its past?

        Only then can a place that a client brought be held against that log (and `lineage`
        noted with the question): what the leader says would otherwise be of a log that the
        shared read has not come to see yet.
        """
        if self.leader is None or self.state is not State.STREAMING or self._gaps:
            return False
        return epoch <= self.leader_epoch and not self._must_validate()

    def stalled(self, now: float) -> bool:
        """Records are known to be ahead, fetches succeed, and yet nothing comes."""
        at = self.place.offset
        ahead = at is not None and self.last_stable_offset > at and self.state is State.STREAMING
        if self.progress_at is None or not ahead:
            self.progress_at = now
        return now - self.progress_at > NO_PROGRESS

    # what is due

    def todo(self, now: float) -> Todo | None:
        """What to ask the leader for now; None while there is nothing to do."""
        if self.leader is None or now < self.retry_at:
            return None
        if self.state is State.RESOLVING:
            return self._resolve()
        if self.state is State.RESETTING:
            return self._reset()
        assert self.place.offset is not None
        if self._must_validate():
            self.state = State.VALIDATING
            return EpochEnd(self.place.epoch)
        self.state = State.STREAMING
        return _new(Fetch, (self.place.offset,))

    def _resolve(self) -> Todo:
        """(b) the leader answers: its end. (c) leaderless at the connect: the end of the epoch
        known then, exact. (d) neither: by time, minus what the producers' clocks may lag."""
        start = self.start
        if isinstance(start, Since) and (self._upto or start.timestamp == EARLIEST):
            return ListOffset(start.timestamp)
        if isinstance(start, Live):
            if start.leaderless and start.epoch != NO_EPOCH:
                return EpochEnd(start.epoch)
            if self._upto is not None:
                return ListOffset(max(0, start.since - start.skew))
        return ListOffset(LATEST)

    def _reset(self) -> Todo:
        if self._above:
            return ListOffset(LATEST, stable=False)
        return ListOffset(LATEST if self.policy is OutOfRange.LATEST else EARLIEST)

    def _must_validate(self) -> bool:
        if self.state is State.VALIDATING:
            return True
        return NO_EPOCH != self.place.epoch < self.leader_epoch != self._validated

    # what the driver learned

    def on_leader(self, leader: int | None, epoch: int, now: float) -> list[Entry]:
        """Metadata names another leader, or none. `epoch` is its leader epoch."""
        if epoch < self.leader_epoch or (leader, epoch) == (self.leader, self.leader_epoch):
            return []
        self.leader, self.leader_epoch = leader, epoch
        if leader is None:
            self.is_ready, self.cause = False, Cause.NO_LEADER
        else:
            self.retry_at = min(self.retry_at, now)
        return []

    def on_topic(self, topic_id: str) -> None:
        """The topic's id as metadata has it: another one means that it was created anew."""
        if topic_id and self.topic_id and topic_id != self.topic_id:
            self.leader, self.leader_epoch, self._validated = None, NO_EPOCH, NO_EPOCH
            if self.place.offset is None:  # whatever the new topic has came after the start
                self.place = Place(0)
            self._jump(0, NO_EPOCH, Reason.RECREATED)
            self.state = State.STREAMING
        self.topic_id = topic_id or self.topic_id

    def on_listed(self, offset: int | None, epoch: int, now: float) -> list[Entry]:
        """ListOffsets answered; None when no record is as young as was asked for."""
        if self.state is State.RESETTING:
            self._on_reset(offset or 0, epoch, now)
            return []
        if self.state is not State.RESOLVING:
            return []
        self.backoff.succeeded()
        if self._upto is None and self._is_by_time(now):
            # The end comes first: asked for after a time that no record is as young as, it
            # would be past those written between the two answers.
            self._upto = Place(offset, epoch if epoch != NO_EPOCH else self.leader_epoch)
            return []
        approximate = isinstance(self.start, Live) and self._upto is not None
        if offset is None:
            assert self._upto is not None and self._upto.offset is not None
            offset, epoch = self._upto.offset, self._upto.epoch
        return self._resolved(offset, epoch, approximate)

    def _is_by_time(self, now: float) -> bool:
        """Is the end of the log not where to start?"""
        if isinstance(self.start, Since):
            return self.start.timestamp != EARLIEST
        # a frozen or hidden leader woke up, or a client was begun: its end is too late
        return isinstance(self.start, Live) and (self.promised or now - self.start.born > FRESH_END)

    def on_epoch_end(self, epoch: int, end: int, now: float) -> list[Entry]:
        """OffsetForLeaderEpoch answered; `end` is -1 when the broker cannot tell."""
        if self.state is State.RESOLVING:
            self.backoff.succeeded()
            if end < 0:  # the broker knows no epochs: by time
                assert isinstance(self.start, Live)
                self.start = self.start._replace(leaderless=False)
                return []
            return self._resolved(end, epoch, approximate=False)
        if self.state is State.VALIDATING:
            self._on_validated(epoch, end, now)
        return []

    def on_fetched(self, fetched: Fetched, now: float) -> list[Entry]:
        """A fetch from the place succeeded. What to append, in order."""
        self.backoff.succeeded()
        self.high_watermark, self.log_start = fetched.high_watermark, fetched.log_start
        self.last_stable_offset = fetched.last_stable_offset
        self.state, self._above, self._end = State.STREAMING, False, None
        offset = self.place.offset
        assert offset is not None
        out = self._readied(approximate=False)
        if self._gaps:
            out += self._gaps
            self.lineage += sum(gap.reason in BACK for gap in self._gaps)
            self._gaps = []
        out += fetched.entries
        if fetched.next > offset:
            self.progress_at = now
            self.place = _new(Place, (fetched.next, fetched.epoch, 0))
        return out

    def retry(self, now: float) -> None:
        """What it waits for may be over: do not wait for the end of the delay."""
        self.retry_at = min(self.retry_at, now)

    def on_error(self, cause: Cause, now: float, delay: float | None = None) -> list[Entry]:
        """The leader answered with an error, or did not answer. `delay` in seconds, where the
        broker's own backoff has decided; two that add up would come back late."""
        if cause is Cause.OUT_OF_RANGE and self.state is State.STREAMING:
            self.resets += 1
            self.state = State.RESETTING
        self.cause, self.is_ready = cause, self.is_ready and cause is Cause.OUT_OF_RANGE
        own = self.backoff.delay(cause)
        self.retry_at = now + (own if delay is None else delay)
        if RULES[cause].action in (Action.TELL, Action.WATCH) and self._told is not cause:
            self._told = cause
            offset = self.place.offset or 0
            return [Fault(self.tp, offset, offset, self.place.epoch, str(cause))]
        return []

    # where to go on

    def _resolved(self, offset: int, epoch: int, approximate: bool) -> list[Entry]:
        self.state = State.STREAMING
        self.place = Place(offset, epoch if epoch != NO_EPOCH else self.leader_epoch)
        return self._readied(approximate)

    def _readied(self, approximate: bool) -> list[Entry]:
        self.cause, self._told = None, None
        if self.is_ready:
            return []
        self.is_ready = True
        offset, epoch, _ = self._stood if self._gaps else self.place
        assert offset is not None
        return [Ready(self.tp, offset, offset, epoch, approximate)]

    def _on_reset(self, offset: int, epoch: int, now: float) -> None:
        at = self.place.offset
        assert at is not None
        self.state = State.STREAMING
        if self._above and offset < at:
            self._end = offset
            self._diverged(offset, now)
        elif self._above:  # inside the leader's log after all: a stale broker answered
            self._above = False
        elif self.policy is OutOfRange.LATEST and offset > at:
            self._jump(offset, epoch, Reason.SKIPPED)
        elif self.policy is not OutOfRange.LATEST and offset > at:
            self._jump(offset, epoch, Reason.RETENTION)
        else:
            self._above = True

    def _diverged(self, end: int, now: float) -> None:
        """Beyond the end of the leader's log: the epochs know where it went back to."""
        if self.place.epoch == NO_EPOCH:
            self._jump(end, NO_EPOCH, Reason.TRUNCATED)
        else:
            self.state = State.VALIDATING

    def _on_validated(self, epoch: int, end: int, now: float) -> None:
        at = self.place.offset
        assert at is not None
        self._validated = self.leader_epoch
        self.state = State.STREAMING
        if end < 0 and self._end is not None:
            end = self._end
        if 0 <= end < at:
            self._jump(end, epoch, Reason.TRUNCATED)
        elif self._end is not None:  # the two answers contradict each other: ask again later
            self.retry_at = now + self.backoff.delay(Cause.OUT_OF_RANGE)
        self._above, self._end = False, None

    def _jump(self, offset: int, epoch: int, reason: Reason) -> None:
        """Go on elsewhere. Told at the next fetch that succeeds, from where it first stood;
        jumps in one direction are one gap."""
        stood = self.place
        if reason is Reason.TRUNCATED and self._gaps and self._gaps[-1].reason not in BACK:
            # nothing was read where the untold gap leads: what it jumped over may be back
            stood = self._before(self._gaps.pop())
            if stood.offset is not None and stood.offset <= offset:
                self.place = stood
                return
        elif self._gaps and (reason in BACK) == (self._gaps[-1].reason in BACK):
            stood = self._before(self._gaps.pop())
        if reason is Reason.RECREATED and self._gaps:
            stood = self._stood
            self._gaps = []
        if not self._gaps:
            self._stood = stood
        assert stood.offset is not None
        self._gaps.append(Gap(self.tp, stood.offset, offset, epoch, reason))
        self.place = Place(offset, epoch)

    def _before(self, gap: Gap) -> Place:
        """The place at which an untold gap, taken from the end of `_gaps`, begins."""
        return Place(gap.offset, self._gaps[-1].epoch) if self._gaps else self._stood
