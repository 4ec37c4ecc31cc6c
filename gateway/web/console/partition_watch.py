"""Watch the partitions that a process reads, and find out which of them changed, and since when.

`PartitionReader` knows its present state and not since when. `PartitionWatch` looks at all of them
about twice a second while somebody watches, and once a second otherwise, so that an operator who
comes later still learns when it began. Sans-I/O: callers pass the readers and the time. A look at
2,000 partitions takes 1.3 ms while they are at rest.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from gateway.core.log.partition_reader import PartitionReader, ReaderState
from gateway.core.log.recovery import Cause
from gateway.hub.reads.shared_reads import STALE_S

STREAMING_S = 5.0  # seconds after its last record for which a partition counts as streaming
MAX_REMOVED = 1000  # remembered partitions that are no longer read

PartitionKey: TypeAlias = tuple[str, str, int]
"""The cluster, the topic and the number of a partition."""


class PartitionState(StrEnum):
    """How the reading of a partition fares, the worst first.

    Attributes:
        RECOVERING: It cannot be read; its cause says why.
        STALLED: Its leader does not answer.
        RESOLVING: The offset to read from is still looked for.
        READY: It can be read, and had no record within the last seconds.
        STREAMING: It can be read, and had a record within the last seconds.
    """

    LEADERLESS = "leaderless"
    RECOVERING = "recovering"
    STALLED = "stalled"
    RESOLVING = "resolving"
    READY = "ready"
    STREAMING = "streaming"


SEVERITIES: Mapping[str, int] = {state: rank for rank, state in enumerate(PartitionState)}
"""The rank of each state; the worst has the lowest."""

TROUBLED_STATES: Collection[PartitionState] = frozenset(
    {PartitionState.LEADERLESS, PartitionState.RECOVERING, PartitionState.STALLED}
)


class PartitionRow(NamedTuple):
    """A partition as one worker reads it; times are in seconds since 1970.

    `cluster` is empty if the configuration has one without a name; `lag` is that of the gateway, in
    offsets.
    """

    cluster: str
    topic: str
    partition: int
    state: str
    cause: str | None
    since: float
    retry_at: float | None
    lag: int | None
    leader: int | None

    @property
    def key(self) -> PartitionKey:
        return self.cluster, self.topic, self.partition


class Transition(NamedTuple):
    """Partitions of a topic that got into the same state at the same look."""

    cluster: str
    topic: str
    partitions: tuple[int, ...]
    state: str
    cause: str | None


@dataclass(slots=True)
class _WatchedPartition:
    """The last look at a partition; `version` is the look at which the row changed.

    `inputs` are the values that the row was built from, to build none from the same. Only of a
    partition that is not in trouble: the time of the next attempt is a part of the others.
    """

    row: PartitionRow
    version: int
    offset: int | None
    moved_at: float = -math.inf
    inputs: tuple[object, ...] = ()


class PartitionWatch:
    """The partitions of a process as they were at the last look.

    Every change has the number of the look that found it, so that any number of readers can ask for
    the changes since a version. Versions of another `instance` mean nothing here.
    """

    def __init__(self) -> None:
        self.instance = secrets.token_hex(8)
        self.version = 0
        self._partitions: dict[PartitionKey, _WatchedPartition] = {}
        self._removed: dict[PartitionKey, int] = {}

    def look(
        self, readers: Iterable[tuple[str, PartitionReader]], now: float, wall_time: float
    ) -> list[Transition]:
        """Look at all partitions, and return those that got into trouble or out of it.

        `now`, by the loop's clock, and `wall_time`, since 1970, are the same moment.
        """
        version, present = self.version + 1, set[PartitionKey]()
        moves: dict[tuple[str, str, str, str | None], list[int]] = {}
        for cluster, reader in readers:
            topic, partition = reader.tp
            key = cluster, topic, partition
            present.add(key)
            watched = self._partitions.get(key)
            old_state = None if watched is None else watched.row.state
            if watched is None:
                row = _build_row(cluster, reader, False, now, wall_time, None)
                self._partitions[key] = _WatchedPartition(row, version, reader.position.offset)
                self._removed.pop(key, None)
            else:
                self._look_at(watched, cluster, reader, version, now, wall_time)
                row = watched.row
            if (row.state in TROUBLED_STATES) != (old_state in TROUBLED_STATES):
                # Whether records come is no difference to somebody who waits for a partition.
                is_back = row.state == PartitionState.STREAMING
                state = str(PartitionState.READY) if is_back else row.state
                moves.setdefault((cluster, topic, state, row.cause), []).append(partition)
            if watched is None or watched.version == version:
                self.version = version
        self._forget_missing(present, version)
        return [
            Transition(cluster, topic, tuple(sorted(partitions)), state, cause)
            for (cluster, topic, state, cause), partitions in moves.items()
        ]

    def list_changes(self, version: int) -> tuple[list[PartitionRow], list[PartitionKey]]:
        """Return the rows that changed after a look, 0 for all, and the partitions gone since."""
        rows = [each.row for each in self._partitions.values() if each.version > version]
        return rows, [key for key, removed in self._removed.items() if removed > version]

    def _look_at(
        self,
        watched: _WatchedPartition,
        cluster: str,
        reader: PartitionReader,
        version: int,
        now: float,
        wall_time: float,
    ) -> None:
        offset = reader.position.offset
        if offset != watched.offset:
            watched.offset, watched.moved_at = offset, now
        is_moving = now - watched.moved_at <= STREAMING_S
        inputs = (
            reader.leader, reader.cause, reader.state, reader.is_ready, offset,
            reader.last_stable_offset, is_moving, now - reader.last_response_at > STALE_S,
        )  # fmt: skip
        if inputs == watched.inputs and watched.row.state not in TROUBLED_STATES:
            return
        watched.inputs = inputs
        row = _build_row(cluster, reader, is_moving, now, wall_time, watched.row)
        if row != watched.row:
            watched.row, watched.version = row, version

    def _forget_missing(self, present: Collection[PartitionKey], version: int) -> None:
        for key in self._partitions.keys() - present:
            del self._partitions[key]
            self._removed[key] = self.version = version
        if len(self._removed) > MAX_REMOVED:
            # Whoever watches gets all rows again, which say the same.
            self._removed.clear()
            self.instance = secrets.token_hex(8)


def _build_row(
    cluster: str,
    reader: PartitionReader,
    is_moving: bool,
    now: float,
    wall_time: float,
    before: PartitionRow | None,
) -> PartitionRow:
    state = _get_state(reader, is_moving, now)
    # An offset out of range is no trouble: the reader finds another one at once.
    cause = None if reader.cause is Cause.OUT_OF_RANGE else reader.cause
    offset, end = reader.position.offset, reader.last_stable_offset
    is_troubled = state in TROUBLED_STATES
    is_unchanged = before is not None and (before.state, before.cause) == (state, cause)
    return PartitionRow(
        cluster,
        *reader.tp,
        str(state),
        None if cause is None else str(cause),
        before.since if before is not None and is_unchanged else wall_time,
        # Whole seconds: shorter waits would change the row at every look.
        float(math.ceil(wall_time + reader.retry_at - now))
        if is_troubled and reader.retry_at > now
        else None,
        max(0, end - offset) if offset is not None and end >= 0 else None,
        reader.leader,
    )


def _get_state(reader: PartitionReader, is_moving: bool, now: float) -> PartitionState:
    if reader.leader is None:
        # Before metadata has named a leader for the first time, nothing is wrong yet.
        is_lost = reader.cause is not None or reader.leader_epoch >= 0
        return PartitionState.LEADERLESS if is_lost else PartitionState.RESOLVING
    if reader.cause not in (None, Cause.OUT_OF_RANGE):
        return PartitionState.RECOVERING
    if reader.state is not ReaderState.STREAMING or not reader.is_ready:
        return PartitionState.RESOLVING
    # A leader that froze reports nothing, it only does not answer.
    if now - reader.last_response_at > STALE_S:
        return PartitionState.STALLED
    return PartitionState.STREAMING if is_moving else PartitionState.READY
