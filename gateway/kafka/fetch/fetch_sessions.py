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
from gateway.kafka.protocol.fetch_messages import Forgotten, Want

SESSION_ERRORS = frozenset(
    {
        70,  # FETCH_SESSION_ID_NOT_FOUND
        71,  # INVALID_FETCH_SESSION_EPOCH
        106,  # FETCH_SESSION_TOPIC_ID_ERROR
    }
)
_NONE = -1
_NEW = 0
_LAST = 2**31 - 1


@dataclass(slots=True)
class FetchSession:
    """What to fetch of one broker, and what it remembers of that. One fetch at a time.

    wants: changed by `want` and `forget` only, so that a fetch need not look at all of them.
    names: of the ids that an answer may have.
    """

    id: int = 0
    epoch: int = _NEW
    wants: dict[TopicPartition, Want] = field(default_factory=dict)
    names: dict[UUID, str] = field(default_factory=dict)
    _sent: dict[TopicPartition, Want] = field(default_factory=dict)
    _touched: dict[TopicPartition, None] = field(default_factory=dict)
    _nameless: set[TopicPartition] = field(default_factory=set)  # their topics have no id
    _by_id: bool = True

    @classmethod
    def forgetful(cls, wants: Mapping[TopicPartition, Want] | None = None) -> Self:
        """The broker is to remember nothing: each fetch names all, each answer tells of all."""
        session = cls(epoch=_NONE)
        for tp, want in (wants or {}).items():
            session.want(tp, want)
        return session

    @property
    def by_id(self) -> bool:
        """May topics go by id?"""
        return not self._nameless

    def want(self, tp: TopicPartition, want: Want) -> None:
        """Fetch this of the partition from now on."""
        before = self.wants.get(tp)
        self.wants[tp] = want
        self._touched[tp] = None
        if before is not None and before.topic_id is want.topic_id:
            return
        if want.topic_id is None:
            self._nameless.add(tp)
        else:
            self._nameless.discard(tp)
            self.names[want.topic_id] = tp.topic

    def forget(self, tp: TopicPartition) -> None:
        del self.wants[tp]
        self._nameless.discard(tp)
        self._touched[tp] = None

    def ask(self) -> tuple[Mapping[TopicPartition, Want], list[Forgotten]]:
        """What to send so that the broker fetches exactly `wants`: wants, and forgotten."""
        touched, self._touched = self._touched, {}
        if self.epoch == _NONE:
            return self.wants, []
        if self.by_id != self._by_id:  # a session cannot change that
            self._by_id, self.epoch = self.by_id, _NEW
        if self.epoch == _NEW:
            self._sent = dict(self.wants)
            return self._sent, []
        changed: dict[TopicPartition, Want] = {}
        forgotten: list[Forgotten] = []
        for tp in touched:
            before, want = self._sent.get(tp), self.wants.get(tp)
            if before == want:
                continue
            if before is not None and (want is None or want.is_of_another_topic(before)):
                forgotten.append(Forgotten(tp, before.topic_id))  # also recreated, KIP-516
            if want is None:
                del self._sent[tp]
            else:
                changed[tp] = self._sent[tp] = want
        return changed, forgotten

    def answered(self, session_id: int) -> None:
        """An answer came. Id 0: the broker keeps no session, the next fetch is full again."""
        if self.epoch == _NONE:
            return
        if session_id == 0:
            self.id, self.epoch = 0, _NEW
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _LAST else self.epoch + 1

    def lost(self) -> None:
        """The broker's memory is not known any more: close it and begin a new one."""
        if self.epoch != _NONE:
            self.epoch = _NEW
