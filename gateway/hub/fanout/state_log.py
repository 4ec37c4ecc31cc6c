"""Log each change of a client's state at debug: why it does not have all that was published.

The lines have the client's route and number as their context. `state` is one of the words that
metrics and the admin API use, or `live`:

    stream began topics=orders pending=orders-2
    stream reads privately partitions=orders-0@12 cause=start
    stream joined shared catch-up
    stream left shared catch-up cause=caught-up
    stream follows again partitions=orders-0
    stream state=slow

Callers ask `log.isEnabledFor` first, and only where a state may have changed: a client whose
connection is full and drained thousands of times a second costs no more than that question. Nothing
is asked for each client of a round.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from gateway.core.client.subscription import Subscription
from gateway.core.log.record import UNVERIFIED_LINEAGE, PartitionPosition, Position, TopicPartition
from gateway.telemetry.logs import log_context
from gateway.telemetry.traffic import NO_CREDIT, SLOW, THROTTLED

log = logging.getLogger(__name__)

LIVE = "live"
MAX_LISTED_PARTITIONS = 20  # partitions that a line names; the others are counted


class StateLog:
    """Log what changed about one client since the last line.

    Its client creates it when it first logs, which may be long after BEGIN: levels change
    at run time. The first look then logs the present state.
    """

    __slots__ = ("_context", "_private_partitions", "_state")

    def __init__(self, context: Mapping[str, object]) -> None:
        self._context = context
        self._state = ""
        self._private_partitions: Collection[TopicPartition] = ()

    def log_begin(
        self, topics: Iterable[str], pending: Iterable[TopicPartition], private: Position
    ) -> None:
        """Log BEGIN with its pending partitions, and the partitions that are read privately."""
        self._write(f"began topics={','.join(topics)} pending={_list_partitions(pending)}")
        self._log_private(private, "start")

    def log_joined(self) -> None:
        self._write("joined shared catch-up")

    def log_left(self, cause: str, private: Position) -> None:
        self._write(f"left shared catch-up cause={cause}")
        self._log_private(private, "left-catch-up")

    def log_state(self, state: str, subscription: Subscription) -> None:
        """Log how a client that is in no shared catch-up differs from the last line."""
        private = subscription.private_positions
        self._log_private(private, self._find_cause(subscription))
        self.log_waiting(state)

    def log_waiting(self, state: str) -> None:
        if state != self._state:
            self._state = state
            self._write(f"state={state}")

    def _log_private(self, private: Position, cause: str) -> None:
        before = self._private_partitions
        if private.keys() == before:
            return
        self._private_partitions = frozenset(private)
        detached = {tp: private[tp] for tp in sorted(private.keys() - before)}
        attached = sorted(set(before) - private.keys())
        if detached:
            self._write(f"reads privately partitions={_list_positions(detached)} cause={cause}")
        if attached:
            self._write(f"follows again partitions={_list_partitions(attached)}")

    def _find_cause(self, subscription: Subscription) -> str:
        """Return why a client that had begun reads partitions privately.

        The core does not say. It follows from the state until now: a client that waits for its
        connection or for credit falls out of the ring for that.
        """
        if self._state in (SLOW, NO_CREDIT, THROTTLED):
            return self._state
        if subscription.is_bounded:
            return "until"
        if subscription.credit is not None:  # too little for a whole chunk
            return NO_CREDIT
        unverified = [
            position.lineage == UNVERIFIED_LINEAGE
            for position in subscription.private_positions.values()
        ]
        return "token" if unverified and all(unverified) else "ring-dropped"

    def _write(self, text: str) -> None:
        with log_context(**self._context):
            log.debug("stream %s", text)


def _list_partitions(partitions: Iterable[TopicPartition]) -> str:
    return _join([str(tp) for tp in partitions])


def _list_positions(positions: Mapping[TopicPartition, PartitionPosition]) -> str:
    return _join(
        [
            f"{tp}@{'pending' if position.offset is None else position.offset}"
            for tp, position in positions.items()
        ]
    )


def _join(names: list[str]) -> str:
    listed = ",".join(names[:MAX_LISTED_PARTITIONS]) or "none"
    more = len(names) - MAX_LISTED_PARTITIONS
    return f"{listed},+{more}" if more > 0 else listed
