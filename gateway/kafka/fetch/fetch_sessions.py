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
    """The partitions to fetch from one broker, and those that the broker remembers.

    A `FetchRound` owns one for all of its fetches; other callers create a sessionless one for each
    fetch. Only one fetch may be under way at a time, because each has its epoch in the session.
    Between fetches `_sent` is the broker's knowledge, unless the epoch says that it has none, and
    `_changed` names every partition in which `wants` and `_sent` may differ.

    Attributes:
        id: The session id that the broker chose; 0 if there is none.
        epoch: The epoch of the next fetch.
        wants: Changed by `set_want` and `forget` only, so that a fetch need not compare all of it.
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
        """Create one of which the broker remembers nothing, so that all fetches are full."""
        session = cls(epoch=_NO_SESSION_EPOCH)
        for tp, want in (wants or {}).items():
            session.set_want(tp, want)
        return session

    @property
    def can_use_topic_ids(self) -> bool:
        """Return whether every topic has an id. A request names all topics by id or none."""
        return not self._without_topic_id

    def set_want(self, tp: TopicPartition, want: FetchTarget) -> None:
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
        del self.wants[tp]
        self._without_topic_id.discard(tp)
        self._changed[tp] = None

    def take_changes(self) -> tuple[Mapping[TopicPartition, FetchTarget], list[ForgottenPartition]]:
        """Return the new or changed targets (in a full fetch all), and the partitions to drop.

        The caller sends them, or calls `reset`.
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
        """Record an answer. The session id is 0 if the broker keeps no (more) sessions."""
        if self.epoch == _NO_SESSION_EPOCH:
            return
        if session_id == 0:
            self.id, self.epoch = 0, _INITIAL_EPOCH
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """Start over with a full fetch. The id stays, so that the broker closes the old session."""
        if self.epoch != _NO_SESSION_EPOCH:
            self.epoch = _INITIAL_EPOCH
