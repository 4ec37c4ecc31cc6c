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

from .position import NO_EPOCH, PartitionPosition
from .record import REWIND_REASONS, Entry, Fault, Gap, GapReason, Ready, TopicPartition
from .recovery import RECOVERY_RULES, Backoff, Cause, RecoveryAction

EARLIEST, LATEST = -2, -1
# An end that was asked for longer ago than this does not count as the end at the connect.
MAX_END_AGE_S = 1.0  # seconds
STALL_TIMEOUT_S = 5.0  # seconds

_tuple_new = (
    tuple.__new__
)  # of named tuples, where every fetch of a partition makes one: 0.2 us less


class OutOfRangePolicy(StrEnum):
    """What decides where to go on when Kafka no longer has the offset."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


class LiveStart(NamedTuple):
    """Start at the end of the log as it was when the client connected.

    since:      wall clock of connecting, in milliseconds.
    born:       the same instant on the monotonic clock, in seconds.
    epoch:      the leader epoch known then, NO_EPOCH if none.
    leaderless: there was no leader then, so nothing could be produced before the next epoch.
    skew:       how far producers' clocks may be behind, in milliseconds.
    """

    connected_at_ms: int
    connected_at: float
    epoch: int = NO_EPOCH
    was_leaderless: bool = False
    clock_skew_ms: int = 60_000


class OffsetStart(NamedTuple):
    """Start at an offset that was received before. `epoch` is that of the record before it."""

    offset: int
    epoch: int = NO_EPOCH


class TimestampStart(NamedTuple):
    """Start at the first record of a time (milliseconds), or at EARLIEST."""

    timestamp: int


Start: TypeAlias = LiveStart | OffsetStart | TimestampStart


class FetchCommand(NamedTuple):
    offset: int


class ListOffsetCommand(NamedTuple):
    """Ask the leader for an offset. `stable`: no further than the last stable offset."""

    timestamp: int
    is_stable: bool = True


class EpochEndCommand(NamedTuple):
    """Ask the leader where an epoch ended (OffsetForLeaderEpoch)."""

    epoch: int


Command: TypeAlias = FetchCommand | ListOffsetCommand | EpochEndCommand


class ReaderState(Enum):
    RESOLVING = "resolving"
    VALIDATING = "validating"
    RESETTING = "resetting"
    STREAMING = "streaming"


class FetchResult(NamedTuple):
    """What a fetch brought, decoded. `next` is the offset to fetch next."""

    entries: Sequence[Entry]
    next_offset: int
    epoch: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@dataclass(slots=True)
class PartitionReader:
    """See the module. All times in seconds of one monotonic clock."""

    tp: TopicPartition
    start: Start
    policy: OutOfRangePolicy
    backoff: Backoff
    topic_id: str = ""
    leader: int | None = None
    leader_epoch: int = NO_EPOCH
    position: PartitionPosition = field(default=PartitionPosition(None))
    state: ReaderState = ReaderState.RESOLVING
    cause: Cause | None = None
    retry_at: float = 0.0
    is_ready: bool = False
    last_response_at: float = 0.0
    last_progress_at: float | None = None
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    resets: int = 0
    lineage: int = 0
    is_start_pinned: bool = False
    _end_position: PartitionPosition | None = None
    _validated_epoch: int = NO_EPOCH
    _is_above_end: bool = False
    _leader_end_offset: int | None = None
    _pending_gaps: list[Gap] = field(default_factory=list)
    _position_before_gaps: PartitionPosition = field(
        default=PartitionPosition(None)
    )  # before the first of `_gaps`
    _reported_cause: Cause | None = None

    def __post_init__(self) -> None:
        if isinstance(self.start, OffsetStart):
            self.position = PartitionPosition(self.start.offset, self.start.epoch)
            self.state = ReaderState.STREAMING
        elif isinstance(self.start, LiveStart):
            self.position = PartitionPosition(None, self.start.epoch)

    @property
    def has_unreported_change(self) -> bool:
        """Would a fetch that brings nothing still say something?"""
        return not self.is_ready or self.cause is not None or bool(self._pending_gaps)

    def pin_start(self) -> None:
        """A client was begun and told that this partition is pending: what is written from now
        on must reach it, so an end that is heard later is not where to start."""
        self.is_start_pinned = True

    def can_validate(self, epoch: int) -> bool:
        """Is the place known to be in the present leader's log, and the epoch one of its past?

        Only then can a place that a client brought be held against that log (and `lineage`
        noted with the question): what the leader says would otherwise be of a log that the
        shared read has not come to see yet.
        """
        if self.leader is None or self.state is not ReaderState.STREAMING or self._pending_gaps:
            return False
        return epoch <= self.leader_epoch and not self._must_validate()

    def is_stalled(self, now: float) -> bool:
        """Records are known to be ahead, fetches succeed, and yet nothing comes."""
        at = self.position.offset
        ahead = (
            at is not None and self.last_stable_offset > at and self.state is ReaderState.STREAMING
        )
        if self.last_progress_at is None or not ahead:
            self.last_progress_at = now
        return now - self.last_progress_at > STALL_TIMEOUT_S

    # what is due

    def next_command(self, now: float) -> Command | None:
        """What to ask the leader for now; None while there is nothing to do."""
        if self.leader is None or now < self.retry_at:
            return None
        if self.state is ReaderState.RESOLVING:
            return self._resolve_command()
        if self.state is ReaderState.RESETTING:
            return self._reset_command()
        assert self.position.offset is not None
        if self._must_validate():
            self.state = ReaderState.VALIDATING
            return EpochEndCommand(self.position.epoch)
        self.state = ReaderState.STREAMING
        return _tuple_new(FetchCommand, (self.position.offset,))

    def _resolve_command(self) -> Command:
        """(b) the leader answers: its end. (c) leaderless at the connect: the end of the epoch
        known then, exact. (d) neither: by time, minus what the producers' clocks may lag."""
        start = self.start
        if isinstance(start, TimestampStart) and (
            self._end_position or start.timestamp == EARLIEST
        ):
            return ListOffsetCommand(start.timestamp)
        if isinstance(start, LiveStart):
            if start.was_leaderless and start.epoch != NO_EPOCH:
                return EpochEndCommand(start.epoch)
            if self._end_position is not None:
                return ListOffsetCommand(max(0, start.connected_at_ms - start.clock_skew_ms))
        return ListOffsetCommand(LATEST)

    def _reset_command(self) -> Command:
        if self._is_above_end:
            return ListOffsetCommand(LATEST, is_stable=False)
        return ListOffsetCommand(LATEST if self.policy is OutOfRangePolicy.LATEST else EARLIEST)

    def _must_validate(self) -> bool:
        if self.state is ReaderState.VALIDATING:
            return True
        return NO_EPOCH != self.position.epoch < self.leader_epoch != self._validated_epoch

    # what the driver learned

    def on_leader_change(self, leader: int | None, epoch: int, now: float) -> list[Entry]:
        """Metadata names another leader, or none. `epoch` is its leader epoch."""
        if epoch < self.leader_epoch or (leader, epoch) == (self.leader, self.leader_epoch):
            return []
        self.leader, self.leader_epoch = leader, epoch
        if leader is None:
            self.is_ready, self.cause = False, Cause.NO_LEADER
        else:
            self.retry_at = min(self.retry_at, now)
        return []

    def on_topic_id(self, topic_id: str) -> None:
        """The topic's id as metadata has it: another one means that it was created anew."""
        if topic_id and self.topic_id and topic_id != self.topic_id:
            self.leader, self.leader_epoch, self._validated_epoch = None, NO_EPOCH, NO_EPOCH
            if self.position.offset is None:  # whatever the new topic has came after the start
                self.position = PartitionPosition(0)
            self._jump(0, NO_EPOCH, GapReason.RECREATED)
            self.state = ReaderState.STREAMING
        self.topic_id = topic_id or self.topic_id

    def on_list_offsets(self, offset: int | None, epoch: int, now: float) -> list[Entry]:
        """ListOffsets answered; None when no record is as young as was asked for."""
        if self.state is ReaderState.RESETTING:
            self._on_reset(offset or 0, epoch, now)
            return []
        if self.state is not ReaderState.RESOLVING:
            return []
        self.backoff.reset()
        if self._end_position is None and self._should_resolve_by_time(now):
            # The end comes first: asked for after a time that no record is as young as, it
            # would be past those written between the two answers.
            self._end_position = PartitionPosition(
                offset, epoch if epoch != NO_EPOCH else self.leader_epoch
            )
            return []
        approximate = isinstance(self.start, LiveStart) and self._end_position is not None
        if offset is None:
            assert self._end_position is not None and self._end_position.offset is not None
            offset, epoch = self._end_position.offset, self._end_position.epoch
        return self._start_streaming(offset, epoch, approximate)

    def _should_resolve_by_time(self, now: float) -> bool:
        """Is the end of the log not where to start?"""
        if isinstance(self.start, TimestampStart):
            return self.start.timestamp != EARLIEST
        # a frozen or hidden leader woke up, or a client was begun: its end is too late
        return isinstance(self.start, LiveStart) and (
            self.is_start_pinned or now - self.start.connected_at > MAX_END_AGE_S
        )

    def on_epoch_end(self, epoch: int, end: int, now: float) -> list[Entry]:
        """OffsetForLeaderEpoch answered; `end` is -1 when the broker cannot tell."""
        if self.state is ReaderState.RESOLVING:
            self.backoff.reset()
            if end < 0:  # the broker knows no epochs: by time
                assert isinstance(self.start, LiveStart)
                self.start = self.start._replace(was_leaderless=False)
                return []
            return self._start_streaming(end, epoch, approximate=False)
        if self.state is ReaderState.VALIDATING:
            self._on_validated(epoch, end, now)
        return []

    def on_fetch(self, result: FetchResult, now: float) -> list[Entry]:
        """A fetch from the place succeeded. What to append, in order."""
        self.backoff.reset()
        self.high_watermark, self.log_start_offset = result.high_watermark, result.log_start_offset
        self.last_stable_offset = result.last_stable_offset
        self.state, self._is_above_end, self._leader_end_offset = ReaderState.STREAMING, False, None
        offset = self.position.offset
        assert offset is not None
        out = self._mark_ready(approximate=False)
        if self._pending_gaps:
            out += self._pending_gaps
            self.lineage += sum(gap.reason in REWIND_REASONS for gap in self._pending_gaps)
            self._pending_gaps = []
        out += result.entries
        if result.next_offset > offset:
            self.last_progress_at = now
            self.position = _tuple_new(PartitionPosition, (result.next_offset, result.epoch, 0))
        return out

    def retry_now(self, now: float) -> None:
        """What it waits for may be over: do not wait for the end of the delay."""
        self.retry_at = min(self.retry_at, now)

    def on_error(self, cause: Cause, now: float, delay: float | None = None) -> list[Entry]:
        """The leader answered with an error, or did not answer. `delay` in seconds, where the
        broker's own backoff has decided; two that add up would come back late."""
        if cause is Cause.OUT_OF_RANGE and self.state is ReaderState.STREAMING:
            self.resets += 1
            self.state = ReaderState.RESETTING
        self.cause, self.is_ready = cause, self.is_ready and cause is Cause.OUT_OF_RANGE
        own = self.backoff.next_delay(cause)
        self.retry_at = now + (own if delay is None else delay)
        if (
            RECOVERY_RULES[cause].action in (RecoveryAction.REPORT, RecoveryAction.WATCH_METADATA)
            and self._reported_cause is not cause
        ):
            self._reported_cause = cause
            offset = self.position.offset or 0
            return [Fault(self.tp, offset, offset, self.position.epoch, str(cause))]
        return []

    # where to go on

    def _start_streaming(self, offset: int, epoch: int, approximate: bool) -> list[Entry]:
        self.state = ReaderState.STREAMING
        self.position = PartitionPosition(offset, epoch if epoch != NO_EPOCH else self.leader_epoch)
        return self._mark_ready(approximate)

    def _mark_ready(self, approximate: bool) -> list[Entry]:
        self.cause, self._reported_cause = None, None
        if self.is_ready:
            return []
        self.is_ready = True
        offset, epoch, _ = self._position_before_gaps if self._pending_gaps else self.position
        assert offset is not None
        return [Ready(self.tp, offset, offset, epoch, approximate)]

    def _on_reset(self, offset: int, epoch: int, now: float) -> None:
        at = self.position.offset
        assert at is not None
        self.state = ReaderState.STREAMING
        if self._is_above_end and offset < at:
            self._leader_end_offset = offset
            self._on_divergence(offset, now)
        elif self._is_above_end:  # inside the leader's log after all: a stale broker answered
            self._is_above_end = False
        elif self.policy is OutOfRangePolicy.LATEST and offset > at:
            self._jump(offset, epoch, GapReason.SKIPPED)
        elif self.policy is not OutOfRangePolicy.LATEST and offset > at:
            self._jump(offset, epoch, GapReason.RETENTION)
        else:
            self._is_above_end = True

    def _on_divergence(self, end: int, now: float) -> None:
        """Beyond the end of the leader's log: the epochs know where it went back to."""
        if self.position.epoch == NO_EPOCH:
            self._jump(end, NO_EPOCH, GapReason.TRUNCATED)
        else:
            self.state = ReaderState.VALIDATING

    def _on_validated(self, epoch: int, end: int, now: float) -> None:
        at = self.position.offset
        assert at is not None
        self._validated_epoch = self.leader_epoch
        self.state = ReaderState.STREAMING
        if end < 0 and self._leader_end_offset is not None:
            end = self._leader_end_offset
        if 0 <= end < at:
            self._jump(end, epoch, GapReason.TRUNCATED)
        elif (
            self._leader_end_offset is not None
        ):  # the two answers contradict each other: ask again later
            self.retry_at = now + self.backoff.next_delay(Cause.OUT_OF_RANGE)
        self._is_above_end, self._leader_end_offset = False, None

    def _jump(self, offset: int, epoch: int, reason: GapReason) -> None:
        """Go on elsewhere. Told at the next fetch that succeeds, from where it first stood;
        jumps in one direction are one gap."""
        stood = self.position
        if (
            reason is GapReason.TRUNCATED
            and self._pending_gaps
            and self._pending_gaps[-1].reason not in REWIND_REASONS
        ):
            # nothing was read where the untold gap leads: what it jumped over may be back
            stood = self._position_before(self._pending_gaps.pop())
            if stood.offset is not None and stood.offset <= offset:
                self.position = stood
                return
        elif self._pending_gaps and (reason in REWIND_REASONS) == (
            self._pending_gaps[-1].reason in REWIND_REASONS
        ):
            stood = self._position_before(self._pending_gaps.pop())
        if reason is GapReason.RECREATED and self._pending_gaps:
            stood = self._position_before_gaps
            self._pending_gaps = []
        if not self._pending_gaps:
            self._position_before_gaps = stood
        assert stood.offset is not None
        self._pending_gaps.append(Gap(self.tp, stood.offset, offset, epoch, reason))
        self.position = PartitionPosition(offset, epoch)

    def _position_before(self, gap: Gap) -> PartitionPosition:
        """The place at which an untold gap, taken from the end of `_gaps`, begins."""
        return (
            PartitionPosition(gap.offset, self._pending_gaps[-1].epoch)
            if self._pending_gaps
            else self._position_before_gaps
        )
