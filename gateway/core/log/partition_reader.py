"""Read one partition from a start on, through everything that Kafka does to it.

    RESOLVING --offset found--> STREAMING <--offset found-- RESETTING <--out of range-- STREAMING
                                 |     ^                        |
              leader epoch rose  v     |  log agrees, or jump   |  above the leader's end
                                VALIDATING <--------------------+

While there is no leader, or before `retry_at` after an error, the reader waits in whichever state
it is. `PartitionReader` lists the transitions.

The driver (`gateway.kafka.fetch`) asks `next_command` what to ask the leader, sends it, and hands
the answer back to one of the `on_` methods. These return entries: each partition's in order,
without a hole that no entry reports. Three rules that are easily broken, and where they are kept:

- A gap is declared once per advance of the position, at the first fetch that succeeds after it:
  chasing a log start that moves away is one gap (`_jump`).
- An offset out of range leads to at most one ListOffsets per attempt. If the position is above the
  end of the log, the reader first assumes that the broker which answered is stale, then asks where
  the epoch ended (KIP-320), and only then reports a truncation (`_on_reset`).
- A live start is an offset, not a time: records carry the clocks of their producers
  (`_resolve_command`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple, TypeAlias, assert_never

from .record import (
    NO_EPOCH,
    REWIND_REASONS,
    Entry,
    Fault,
    Gap,
    GapReason,
    PartitionPosition,
    Ready,
    TopicPartition,
)
from .recovery import RECOVERY_RULES, Backoff, Cause, RecoveryAction, find_divergence

EARLIEST, LATEST = -2, -1  # the special timestamps of Kafka's ListOffsets
# An end that arrives longer after the connect than this does not count as the end at the connect.
MAX_END_AGE_S = 1.0  # seconds
STALL_TIMEOUT_S = 5.0  # seconds without a record, though Kafka has some ahead
REPORT_AFTER_S = 3.0  # seconds for which a partition cannot be read before clients are told

# Not through the named tuple's own constructor: 0.2 us less for each fetch of a partition.
_tuple_new = tuple.__new__


class OutOfRangePolicy(StrEnum):
    """Where to go on when Kafka no longer has the offset (`offsetOutOfRange` of a topic).

    FAIL goes on like EARLIEST; the channels end the clients that the gap concerns.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


class LiveStart(NamedTuple):
    """Start at the end of the log as it was when the client connected.

    Attributes:
        connected_at: The time of connecting on the monotonic clock, in seconds.
        epoch: The leader epoch that was known then; NO_EPOCH if none was.
        was_leaderless: There was no leader then, so nothing was produced before the next epoch.
        clock_skew_ms: How far the producers' clocks may be behind, in milliseconds.
    """

    connected_at_ms: int
    connected_at: float
    epoch: int = NO_EPOCH
    was_leaderless: bool = False
    clock_skew_ms: int = 60_000


class OffsetStart(NamedTuple):
    """Start at an offset that was received before, behind a record of this leader epoch."""

    offset: int
    epoch: int = NO_EPOCH


class TimestampStart(NamedTuple):
    """Start at the first record at or after a time in ms since 1970, or at EARLIEST."""

    timestamp: int


Start: TypeAlias = LiveStart | OffsetStart | TimestampStart


class FetchCommand(NamedTuple):
    offset: int


class ListOffsetCommand(NamedTuple):
    timestamp: int
    is_stable: bool = True


class EpochEndCommand(NamedTuple):
    epoch: int


Command: TypeAlias = FetchCommand | ListOffsetCommand | EpochEndCommand


class ReaderState(Enum):
    RESOLVING = "resolving"
    VALIDATING = "validating"
    RESETTING = "resetting"
    STREAMING = "streaming"


class FetchResult(NamedTuple):
    """The decoded answer to a fetch: entries in order, without holes.

    If nothing came, `next_offset` is the fetched one, and `epoch` that of the position.
    """

    entries: Sequence[Entry]
    next_offset: int
    epoch: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


@dataclass(slots=True)
class PartitionReader:
    """The state machine of one partition's read.

    The hub creates one for each partition that it reads and for each backfill, and the fetcher of
    `gateway.kafka.fetch` drives it. Nothing is read while `leader` is None or before `retry_at`.
    States and transitions:

    - RESOLVING: the first offset is not known yet. `on_list_offsets` or `on_epoch_end` leads to
      STREAMING. By timestamp it takes two answers: first the end, then the offset of the time.
    - STREAMING: fetch from `position`. OFFSET_OUT_OF_RANGE leads to RESETTING, a leader epoch above
      that of the position to VALIDATING.
    - RESETTING: the offset of the position is out of range. `on_list_offsets` leads to STREAMING,
      at the same offset or another, or to VALIDATING if the position is above the leader's end.
    - VALIDATING: the log may have been truncated. `on_epoch_end` leads to STREAMING, at the same
      offset or at the one where the logs part.

    A topic that was created again leads to STREAMING at offset 0 from every state. Errors leave the
    state as it is, except for OFFSET_OUT_OF_RANGE. True between calls:

    - `position.offset` is known in all states but RESOLVING.
    - `_pending_gaps` lead without a hole from `_position_before_gaps` to `position`. They are empty
      unless the position jumped and no fetch has succeeded since.
    - The answer to a command is ignored if the state has changed in the meantime.

    All times are seconds of one monotonic clock, except `LiveStart.connected_at_ms`.

    Attributes:
        position: Its lineage is not kept here: see `lineage`.
        cause: Why the partition cannot be read now; None if it can.
        is_ready: `Ready` was returned, and no error since but OFFSET_OUT_OF_RANGE.
        last_progress_at: When the position last moved, or when nothing was known to be ahead.
        held_since: Since when an open transaction holds the last stable offset at one place, below
            the high watermark.
        resets: How often the offset was out of range.
        lineage: How many gaps that go back were returned, to compare with that of the log.
    """

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
    held_since: float | None = None
    resets: int = 0
    lineage: int = 0
    is_start_pinned: bool = False
    # The end of the log, where the start is found by timestamp: asked for first.
    _end_position: PartitionPosition | None = None
    # The leader epoch in which the position was last validated, to do it once per epoch.
    _validated_epoch: int = NO_EPOCH
    # RESETTING: the offset is not below the log, so the real end of the log is asked for.
    _is_above_end: bool = False
    # The end of the leader's log, once it is known to be below the position.
    _leader_end_offset: int | None = None
    _pending_gaps: list[Gap] = field(default_factory=list)  # to be returned at the next fetch
    _position_before_gaps: PartitionPosition = field(default=PartitionPosition(None))
    _failing_since: float | None = None  # when the first attempt in a row failed
    _reported_cause: Cause | None = None  # of the last `Fault`, to return one per cause

    def __post_init__(self) -> None:
        if isinstance(self.start, OffsetStart):
            self.position = PartitionPosition(self.start.offset, self.start.epoch)
            self.state = ReaderState.STREAMING
        elif isinstance(self.start, LiveStart):
            self.position = PartitionPosition(None, self.start.epoch)
        elif not isinstance(self.start, TimestampStart):
            assert_never(self.start)

    @property
    def has_unreported_change(self) -> bool:
        """Return whether a fetch that brings no records would return entries or clear an error."""
        return not self.is_ready or self.cause is not None or bool(self._pending_gaps)

    @property
    def reported_state(self) -> str:
        if self.leader is None:
            return "leaderless"
        if self.cause is not None and self.state is ReaderState.STREAMING:
            return "recovering"
        return self.state.value

    def pin_start(self) -> None:
        """Exclude the end of the log as the start, if that is answered later than now.

        A client has begun and was informed that this partition is pending. Records that are written
        from now on must reach it, so the start is found by timestamp instead.
        """
        self.is_start_pinned = True

    def can_validate(self, epoch: int) -> bool:
        """Return whether a client's position can be validated against the present leader's log.

        The reader's own position has to be in this log, and the epoch one of its past. Otherwise
        the leader's answer would be about a log that the shared read has not seen yet. The driver
        notes `lineage` together with the question.
        """
        if self.leader is None or self.state is not ReaderState.STREAMING or self._pending_gaps:
            return False
        return epoch <= self.leader_epoch and not self._must_validate()

    def is_stalled(self, now: float) -> bool:
        """Return whether known records have not come for STALL_TIMEOUT_S. Call it regularly."""
        offset = self.position.offset
        has_more = (
            offset is not None
            and self.last_stable_offset > offset
            and self.state is ReaderState.STREAMING
        )
        if self.last_progress_at is None or not has_more:
            self.last_progress_at = now
        return now - self.last_progress_at > STALL_TIMEOUT_S

    # What to ask the leader next.

    def next_command(self, now: float) -> Command | None:
        if self.leader is None or now < self.retry_at:
            return None
        if self.state is ReaderState.RESOLVING:
            return self._resolve_command()
        if self.state is ReaderState.RESETTING:
            return self._reset_command()
        # STREAMING or VALIDATING. The question of KIP-320 comes before the first fetch from a
        # leader of a later epoch: it may have truncated what the position has already passed.
        assert self.position.offset is not None
        if self._must_validate():
            self.state = ReaderState.VALIDATING
            return EpochEndCommand(self.position.epoch)
        self.state = ReaderState.STREAMING
        return _tuple_new(FetchCommand, (self.position.offset,))

    def _resolve_command(self) -> Command:
        """Return the command that finds the start.

        A live start is found in one of three ways: (1) the leader answers soon after the connect:
        the end of the log. (2) There was no leader at the connect, but its epoch was known: the end
        of that epoch, which is exact. (3) Neither: the first record of the time of the connect,
        minus the skew of the producers' clocks, which may send some older records but loses none.
        """
        start = self.start
        if isinstance(start, TimestampStart):
            # Unless EARLIEST is asked for, the end is asked for first (LATEST below), to have an
            # offset in case that no record is as young as the timestamp.
            if self._end_position or start.timestamp == EARLIEST:
                return ListOffsetCommand(start.timestamp)
        elif isinstance(start, LiveStart):
            if start.was_leaderless and start.epoch != NO_EPOCH:
                return EpochEndCommand(start.epoch)
            if self._end_position is not None:
                return ListOffsetCommand(max(0, start.connected_at_ms - start.clock_skew_ms))
        elif not isinstance(start, OffsetStart):
            assert_never(start)
        return ListOffsetCommand(LATEST)

    def _reset_command(self) -> Command:
        if self._is_above_end:
            return ListOffsetCommand(LATEST, is_stable=False)
        return ListOffsetCommand(LATEST if self.policy is OutOfRangePolicy.LATEST else EARLIEST)

    def _must_validate(self) -> bool:
        if self.state is ReaderState.VALIDATING:
            return True
        return NO_EPOCH != self.position.epoch < self.leader_epoch != self._validated_epoch

    # What the driver learned.

    def on_leader_change(self, leader: int | None, epoch: int, now: float) -> list[Entry]:
        """Record another leader, or none. An older epoch is from a stale broker and is ignored."""
        if epoch < self.leader_epoch or (leader, epoch) == (self.leader, self.leader_epoch):
            return []
        self.leader, self.leader_epoch = leader, epoch
        if leader is None:
            self.is_ready, self.cause = False, Cause.NO_LEADER
        else:
            self.retry_at = min(self.retry_at, now)
        return []

    def forget_leader(self) -> None:
        """Forget the leader and its epoch, as the epochs of a new topic begin at 0."""
        self.leader, self.leader_epoch, self._validated_epoch = None, NO_EPOCH, NO_EPOCH

    def on_topic_id(self, topic_id: str) -> None:
        """Record the topic's id. Another one leads to offset 0: all its records are new."""
        if topic_id and self.topic_id and topic_id != self.topic_id:
            self.forget_leader()
            if self.position.offset is None:
                self.position = PartitionPosition(0)
            self._jump(0, NO_EPOCH, GapReason.RECREATED)
            self.state = ReaderState.STREAMING
        self.topic_id = topic_id or self.topic_id

    def on_list_offsets(self, offset: int | None, epoch: int, now: float) -> list[Entry]:
        """Take the answer to a `ListOffsetCommand`; None means that no record is as late."""
        if self.state is ReaderState.RESETTING:
            self._on_reset(offset or 0, epoch, now)
            return []
        if self.state is not ReaderState.RESOLVING:
            return []
        self.backoff.reset()
        if self._end_position is None and self._should_resolve_by_time(now):
            # The end is asked for first and the timestamp second. The other way round, records
            # written between the two answers would be lost: the timestamp would find none, and
            # the end would lie behind them.
            self._end_position = PartitionPosition(
                offset, epoch if epoch != NO_EPOCH else self.leader_epoch
            )
            return []
        is_approximate = isinstance(self.start, LiveStart) and self._end_position is not None
        if offset is None:
            assert self._end_position is not None and self._end_position.offset is not None
            offset, epoch = self._end_position.offset, self._end_position.epoch
        return self._start_streaming(offset, epoch, is_approximate)

    def _should_resolve_by_time(self, now: float) -> bool:
        if isinstance(self.start, TimestampStart):
            return self.start.timestamp != EARLIEST
        # A frozen or unreachable leader came back, or a client has begun without the partition:
        # the present end lies behind records that the client must get.
        return isinstance(self.start, LiveStart) and (
            self.is_start_pinned or now - self.start.connected_at > MAX_END_AGE_S
        )

    def on_epoch_end(self, epoch: int, end: int, now: float) -> list[Entry]:
        """Take the answer to an `EpochEndCommand`; an end of -1 says that the broker has none."""
        if self.state is ReaderState.RESOLVING:
            self.backoff.reset()
            if end < 0:  # the broker knows no such epoch: find the start by timestamp instead
                assert isinstance(self.start, LiveStart)
                self.start = self.start._replace(was_leaderless=False)
                return []
            return self._start_streaming(end, epoch, is_approximate=False)
        if self.state is ReaderState.VALIDATING:
            self._on_validated(epoch, end, now)
        return []

    def on_fetch(self, result: FetchResult, now: float) -> list[Entry]:
        """Take a successful fetch from the position, and return the entries to append, in order.

        Pending gaps come out here and not when the position jumps, so that several jumps in a row
        are one gap.
        """
        self.backoff.reset()
        if result.high_watermark <= result.last_stable_offset:
            self.held_since = None
        elif self.held_since is None or result.last_stable_offset != self.last_stable_offset:
            self.held_since = now
        self.high_watermark, self.log_start_offset = result.high_watermark, result.log_start_offset
        self.last_stable_offset = result.last_stable_offset
        self.state, self._is_above_end, self._leader_end_offset = ReaderState.STREAMING, False, None
        offset = self.position.offset
        assert offset is not None
        out = self._mark_ready(is_approximate=False)
        if self._pending_gaps:
            # From here on clients know of the gaps, so the lineage moves with them.
            out += self._pending_gaps
            self.lineage += sum(gap.reason in REWIND_REASONS for gap in self._pending_gaps)
            self._pending_gaps = []
        out += result.entries
        if result.next_offset > offset:
            self.last_progress_at = now
            self.position = _tuple_new(PartitionPosition, (result.next_offset, result.epoch, 0))
        return out

    def retry_now(self, now: float) -> None:
        self.retry_at = min(self.retry_at, now)

    def on_error(self, cause: Cause, now: float, delay: float | None = None) -> list[Entry]:
        """Record an error or a missing answer; return a `Fault` if clients are to be informed now.

        A delay of the broker's own backoff is not added to the reader's.
        """
        if cause is Cause.OUT_OF_RANGE and self.state is ReaderState.STREAMING:
            self.resets += 1
            self.state = ReaderState.RESETTING
        self.cause, self.is_ready = cause, self.is_ready and cause is Cause.OUT_OF_RANGE
        # The backoff counts the attempt even where its delay is not used.
        own_delay = self.backoff.next_delay(cause)
        self.retry_at = now + (own_delay if delay is None else delay)
        if cause is Cause.OUT_OF_RANGE:
            return []
        if self._failing_since is None:
            self._failing_since = now
        if RECOVERY_RULES[cause].action in (RecoveryAction.REPORT, RecoveryAction.WATCH_METADATA):
            is_due = self._reported_cause is not cause  # once, not with every retry
        else:  # a cause that passes mostly, and may alternate with others
            is_due = self._reported_cause is None and now - self._failing_since >= REPORT_AFTER_S
        if not is_due:
            return []
        self._reported_cause = cause
        offset = self.position.offset or 0
        return [Fault(self.tp, offset, offset, self.position.epoch, str(cause))]

    # Where to go on.

    def _start_streaming(self, offset: int, epoch: int, is_approximate: bool) -> list[Entry]:
        self.state = ReaderState.STREAMING
        self.position = PartitionPosition(offset, epoch if epoch != NO_EPOCH else self.leader_epoch)
        return self._mark_ready(is_approximate)

    def _mark_ready(self, is_approximate: bool) -> list[Entry]:
        self.cause, self._reported_cause, self._failing_since = None, None, None
        if self.is_ready:
            return []
        self.is_ready = True
        offset, epoch, _ = self._position_before_gaps if self._pending_gaps else self.position
        assert offset is not None
        return [Ready(self.tp, offset, offset, epoch, is_approximate)]

    def _on_reset(self, offset: int, epoch: int, now: float) -> None:
        """Go on from the offset that ListOffsets answered, after an offset out of range.

        The first answer is the start (or by the policy the end) of the log. If it is not above the
        position, the position must be above the end of the log, so the end is asked for next, not
        limited to the last stable offset.
        """
        position_offset = self.position.offset
        assert position_offset is not None
        self.state = ReaderState.STREAMING
        if self._is_above_end and offset < position_offset:
            self._leader_end_offset = offset
            self._on_divergence(offset, now)
        elif self._is_above_end:  # inside the leader's log after all: a stale broker answered
            self._is_above_end = False
        elif self.policy is OutOfRangePolicy.LATEST and offset > position_offset:
            self._jump(offset, epoch, GapReason.SKIPPED)
        elif self.policy is not OutOfRangePolicy.LATEST and offset > position_offset:
            self._jump(offset, epoch, GapReason.RETENTION)
        else:
            # Fetch once more: a stale follower is current by then. If the offset is out of range
            # again, `_reset_command` asks for the end.
            self._is_above_end = True

    def _on_divergence(self, end: int, now: float) -> None:
        """Find where the log went back to, as the position is beyond the end of the leader's log.

        Without an epoch the end of the log is the only answer; with one, the epochs are exact. An
        epoch that is still to come is of an earlier topic, where there is no topic id to tell.
        """
        if not self.topic_id and NO_EPOCH != self.leader_epoch < self.position.epoch:
            self._jump(0, NO_EPOCH, GapReason.RECREATED)
        elif self.position.epoch == NO_EPOCH:
            self._jump(end, NO_EPOCH, GapReason.TRUNCATED)
        else:
            self.state = ReaderState.VALIDATING

    def _on_validated(self, epoch: int, end: int, now: float) -> None:
        position_offset = self.position.offset
        assert position_offset is not None
        self._validated_epoch = self.leader_epoch
        self.state = ReaderState.STREAMING
        divergence = find_divergence(position_offset, end, self._leader_end_offset)
        if divergence is not None:
            self._jump(divergence, epoch, GapReason.TRUNCATED)
        elif self._leader_end_offset is not None:
            # The two answers contradict each other: the log ends below the position, but its
            # epoch does not. The log is changing, so fetch again later.
            self.retry_at = now + self.backoff.next_delay(Cause.OUT_OF_RANGE)
        self._is_above_end, self._leader_end_offset = False, None

    def _jump(self, offset: int, epoch: int, reason: GapReason) -> None:
        """Move the position elsewhere and note the gap, for the next fetch that succeeds.

        Two jumps in a row in the same direction, forward or back, become one gap from where the
        first began. A topic that was created again replaces all pending gaps.
        """
        origin = self.position
        if (
            reason is GapReason.TRUNCATED
            and self._pending_gaps
            and self._pending_gaps[-1].reason not in REWIND_REASONS
        ):
            # A forward jump is pending, so nothing was read where it led to. The truncation may
            # have brought back what it jumped over: take the jump back instead.
            origin = self._position_before(self._pending_gaps.pop())
            if origin.offset is not None and origin.offset <= offset:
                self.position = origin
                return
        elif self._pending_gaps and (reason in REWIND_REASONS) == (
            self._pending_gaps[-1].reason in REWIND_REASONS
        ):
            origin = self._position_before(self._pending_gaps.pop())
        if reason is GapReason.RECREATED and self._pending_gaps:
            origin = self._position_before_gaps
            self._pending_gaps = []
        if not self._pending_gaps:
            self._position_before_gaps = origin
        assert origin.offset is not None
        self._pending_gaps.append(Gap(self.tp, origin.offset, offset, epoch, reason))
        self.position = PartitionPosition(offset, epoch)

    def _position_before(self, gap: Gap) -> PartitionPosition:
        return (
            PartitionPosition(gap.offset, self._pending_gaps[-1].epoch)
            if self._pending_gaps
            else self._position_before_gaps
        )
