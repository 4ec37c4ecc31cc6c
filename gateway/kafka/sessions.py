"""Incremental fetch sessions (KIP-227): a fetch says only what changed.

The first fetch of a session names every partition; the broker remembers them, so the next
ones name those whose offset or epoch is another, and answers leave out what has no news. A
broker that forgot the session, or an answer that was lost, starts over with a full fetch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from gateway.core.record import TopicPartition

from .fetch_messages import Forgotten, Want

SESSION_ERRORS = frozenset(
    {
        70,  # FETCH_SESSION_ID_NOT_FOUND
        71,  # INVALID_FETCH_SESSION_EPOCH
        106,  # FETCH_SESSION_TOPIC_ID_ERROR
    }
)
_NEW = 0
_LAST = 2**31 - 1


@dataclass(slots=True)
class FetchSession:
    """What one broker remembers of one fetching connection. One fetch at a time."""

    id: int = 0
    epoch: int = _NEW
    names: dict[UUID, str] = field(default_factory=dict)
    _sent: dict[TopicPartition, Want] = field(default_factory=dict)
    _by_id: bool = True

    def ask(
        self, wants: Mapping[TopicPartition, Want], by_id: bool
    ) -> tuple[Mapping[TopicPartition, Want], list[Forgotten]]:
        """What to send so that the broker fetches exactly `wants`: wants, and forgotten.

        by_id: topics go by id; a session cannot change that, so a change starts a new one.
        """
        if by_id != self._by_id:
            self._by_id, self.epoch = by_id, _NEW
        if self.epoch == _NEW:
            self._sent = dict(wants)
            self.names = {}
            self._name(wants)
            return wants, []
        sent = self._sent
        changed: dict[TopicPartition, Want] = {}
        forgotten: list[Forgotten] = []
        for tp, want in wants.items():
            before = sent.get(tp)
            if before is want or before == want:
                continue
            if before is not None and before.topic_id != want.topic_id:
                forgotten.append(Forgotten(tp, before.topic_id))  # recreated, KIP-516
            changed[tp] = want
        if changed or len(sent) != len(wants):
            gone = sent.keys() - wants.keys()
            forgotten += [Forgotten(tp, sent.pop(tp).topic_id) for tp in gone]
            sent.update(changed)
            self._name(changed)
        return changed, forgotten

    def answered(self, session_id: int) -> None:
        """An answer came. Id 0: the broker keeps no session, the next fetch is full again."""
        if session_id == 0:
            self.id, self.epoch = 0, _NEW
        else:
            self.id = session_id
            self.epoch = 1 if self.epoch == _LAST else self.epoch + 1

    def lost(self) -> None:
        """The broker's memory is not known any more: close it and begin a new one."""
        self.epoch = _NEW

    def _name(self, wants: Mapping[TopicPartition, Want]) -> None:
        for tp, want in wants.items():
            if want.topic_id is not None:
                self.names[want.topic_id] = tp.topic
