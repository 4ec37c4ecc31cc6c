"""Incremental fetch sessions (KIP-227): a fetch says only what changed.

The first fetch of a session names every partition; the broker remembers them, so the next
ones name those whose offset or epoch is another, and answers leave out what has no news. A
broker that forgot the session, or an answer that was lost, starts over with a full fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from gateway.core.log.record import TopicPartition
from gateway.kafka.protocol.fetch_messages import FetchTarget, ForgottenPartition

SESSION_ERRORS = frozenset(
    {
        70,  # FETCH_SESSION_ID_NOT_FOUND
        71,  # INVALID_FETCH_SESSION_EPOCH
        106,  # FETCH_SESSION_TOPIC_ID_ERROR
    }
)
_NO_SESSION_EPOCH = -1
_INITIAL_EPOCH = 0
_MAX_EPOCH = 2**31 - 1


@dataclass(slots=True)
class FetchSession:
    """What to fetch of one broker, and what it remembers of that. One fetch at a time.

    wants: changed by `want` and `forget` only, so that a fetch need not look at all of them.
    names: of the ids that an answer may have.
    """

    id: int = 0
    epoch: int = _INITIAL_EPOCH
    wants: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    _sent: dict[TopicPartition, FetchTarget] = field(default_factory=dict)
    _changed: dict[TopicPartition, None] = field(default_factory=dict)
    _without_topic_id: set[TopicPartition] = field(default_factory=set)  # their topics have no id
    _sent_by_id: bool = True

    @classmethod
    def create_sessionless(cls, wants: Mapping[TopicPartition, FetchTarget] | None = None) -> Self:
        """The broker is to remember nothing: each fetch names all, each answer tells of all."""
        session = cls(epoch=_NO_SESSION_EPOCH)
        for tp, want in (wants or {}).items():
            session.set_want(tp, want)
        return session

    @property
    def can_use_topic_ids(self) -> bool:
        """May topics go by id?"""
        return not self._without_topic_id

    def set_want(self, tp: TopicPartition, want: FetchTarget) -> None:
        """Fetch this of the partition from now on."""
        before = self.wants.get(tp)
        self.wants[tp] = want
        self._changed[tp] = None
        if before is not None and before.topic_id is want.topic_id:
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
        """What to send so that the broker fetches exactly `wants`: wants, and forgotten."""
        touched, self._changed = self._changed, {}
        if self.epoch == _NO_SESSION_EPOCH:
            return self.wants, []
        if self.can_use_topic_ids != self._sent_by_id:  # a session cannot change that
            self._sent_by_id, self.epoch = self.can_use_topic_ids, _INITIAL_EPOCH
        if self.epoch == _INITIAL_EPOCH:
            self._sent = dict(self.wants)
            return self._sent, []
        changed: dict[TopicPartition, FetchTarget] = {}
        forgotten: list[ForgottenPartition] = []
        for tp in touched:
            before, want = self._sent.get(tp), self.wants.get(tp)
            if before == want:
                continue
            if before is not None and (want is None or want.has_other_topic_id(before)):
                forgotten.append(ForgottenPartition(tp, before.topic_id))  # also recreated, KIP-516
            if want is None:
                del self._sent[tp]
            else:
                changed[tp] = self._sent[tp] = want
        return changed, forgotten

    def on_response(self, session_id: int) -> None:
        """An answer came. Id 0: the broker keeps no session, the next fetch is full again."""
        if self.epoch == _NO_SESSION_EPOCH:
            return
        if session_id == 0:
            self.id, self.epoch = 0, _INITIAL_EPOCH
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _MAX_EPOCH else self.epoch + 1

    def reset(self) -> None:
        """The broker's memory is not known any more: close it and begin a new one."""
        if self.epoch != _NO_SESSION_EPOCH:
            self.epoch = _INITIAL_EPOCH
