"""Keep an incremental fetch session with a broker, so that a fetch sends only changes (KIP-227).

The first fetch of a session names every partition. The broker remembers them, so later fetches name
only those whose offset or epoch changed, and responses leave out partitions without news. If the
broker has forgotten the session, or a response was lost, the session starts over with a full fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from gateway.core.error_code import ErrorCode
from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.fetch_messages import FetchTarget, ForgottenPartition

SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
_NO_SESSION_EPOCH = -1  # a full fetch, of which the broker remembers nothing
_INITIAL_EPOCH = 0  # a full fetch that opens a session and closes the one whose id is sent
_MAX_EPOCH = 2**31 - 1  # followed by 1, since 0 would open another session


@dataclass(slots=True)
class FetchSession:
    """What to fetch from one broker, and what the broker remembers of it.

    A `FetchRound` owns one for all of its fetches; other callers create a sessionless one for each
    fetch. Only one fetch may be under way at a time, because each has its epoch in the session.
    Between fetches `_sent` is what the broker remembers, unless the epoch says that it remembers
    nothing, and `_changed` names every partition in which `wants` and `_sent` may differ.

    Attributes:
        id: The session id that the broker chose; 0 if there is none.
        epoch: The epoch of the next fetch.
        wants: What to fetch. Changed by `set_want` and `forget` only, so that a fetch need not
            compare all of it.
        topic_names: The topic of each id that a response may contain.
    """

    id: int = 0
    epoch: int = _INITIAL_EPOCH
    wants: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    _sent: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    _changed: dict[TopicPartition, None] = field(default_factory=dict)
    # Partitions of topics that have no id (brokers before KIP-516).
    _without_topic_id: set[TopicPartition] = field(default_factory=set)
    _sent_by_id: bool = True  # whether the session was opened with topic ids

    @classmethod
    def create_sessionless(cls, wants: Mapping[TopicPartition, FetchTarget] | None = None) -> Self:
        """Create one of which the broker remembers nothing.

        Each fetch then names all partitions, and each response has all of them.

        Args:
            wants: What to fetch; None for nothing yet.
        """
        session = cls(epoch=_NO_SESSION_EPOCH)
        for tp, want in (wants or {}).items():
            session.set_want(tp, want)
        return session

    @property
    def can_use_topic_ids(self) -> bool:
        """Return whether every topic has an id. A request names all topics by id or none."""
        return not self._without_topic_id

    def set_want(self, tp: TopicPartition, want: FetchTarget) -> None:
        """Set what to fetch of a partition from the next fetch on."""
        previous = self.wants.get(tp)
        self.wants[tp] = want
        self._changed[tp] = None
        # The usual case: only the offset moved on, and the topic id is the same object.
        if previous is not None and previous.topic_id is want.topic_id:
            return
        if want.topic_id is None:
            self._without_topic_id.add(tp)
        else:
            self._without_topic_id.discard(tp)
            self.topic_names[want.topic_id] = tp.topic

    def forget(self, tp: TopicPartition) -> None:
        """Do not fetch a partition any more."""
        del self.wants[tp]
        self._without_topic_id.discard(tp)
        self._changed[tp] = None

    def take_changes(self) -> tuple[Mapping[TopicPartition, FetchTarget], list[ForgottenPartition]]:
        """Return what to send so that the broker fetches exactly `wants`.

        The caller sends it, or calls `reset`: from now on the broker counts as knowing it.

        Returns:
            The targets that are new or changed (all of them in a full fetch), and the partitions
            that the broker is to drop from the session.
        """
        touched, self._changed = self._changed, {}
        if self.epoch == _NO_SESSION_EPOCH:
            return self.wants, []
        if self.can_use_topic_ids != self._sent_by_id:  # fixed for the life of a session
            self._sent_by_id, self.epoch = self.can_use_topic_ids, _INITIAL_EPOCH
        if self.epoch == _INITIAL_EPOCH:
            self._sent = dict(self.wants)
            return self._sent, []
        changed: dict[TopicPartition, FetchTarget] = {}
        forgotten: list[ForgottenPartition] = []
        for tp in touched:
            sent, want = self._sent.get(tp), self.wants.get(tp)
            if sent == want:
                continue
            # A recreated topic is another one to the broker (KIP-516), so the old id is dropped.
            if sent is not None and (want is None or want.has_other_topic_id(sent)):
                forgotten.append(ForgottenPartition(tp, sent.topic_id))
            if want is None:
                del self._sent[tp]
            else:
                changed[tp] = self._sent[tp] = want
        return changed, forgotten

    def on_response(self, session_id: int) -> None:
        """Record that the broker answered a fetch without an error for the whole request.

        Args:
            session_id: The session that the broker keeps; 0 if it keeps none (it bounds how many
                it has), so that the next fetch is full again.
        """
        if self.epoch == _NO_SESSION_EPOCH:
            return
        if session_id == 0:
            self.id, self.epoch = 0, _INITIAL_EPOCH
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """Start over with a full fetch, as it is not known what the broker remembers.

        The id stays, so that the broker closes the old session when it opens the new one.
        """
        if self.epoch != _NO_SESSION_EPOCH:
            self.epoch = _INITIAL_EPOCH
