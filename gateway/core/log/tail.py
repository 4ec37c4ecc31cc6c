"""The live end of a topic set: one merged order of what its partitions bring.

Arrival order across partitions, offset order within one. What became ready in one turn of
the loop is one Turn; after each of its entries the position is known, and its token's
shared text is written at most once, however many channels send it. Positions of the last
turns can be found again (`position_before`), for clients that fell behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from gateway.core.token.resume_token import TokenWriter, TopicPlaces, overlay

from .partition_log import Log, size_of
from .position import NO_EPOCH, RETIRED, UNVERIFIED, Place, Position
from .readiness import Readiness
from .record import BACK, Entry, Fault, Gap, Ready, Reason, TopicPartition

MARK = 8 * 1024  # bytes of entries from one text to the next where ids come in batches
EXACT_TOKEN = 512  # characters; longer ones are not sent with every event

_new = tuple.__new__  # not through the named tuple: records are encoded 1.13 times as fast


class Item(NamedTuple):
    """One entry of a turn, and the token text after it; where ids come in batches most are
    None."""

    entry: Entry
    text: bytes | None


class Turn(NamedTuple):
    """What became ready in one turn of the loop. `text` is the token text at its end."""

    seq: int
    items: Sequence[Item]
    text: bytes


class Reader(Protocol):
    """Who reads some partitions alone, up to where the tail stands."""

    @property
    def own(self) -> Mapping[TopicPartition, Place]: ...

    @property
    def backlog(self) -> int:
        """Bytes of records that wait for it to take them."""

    def wake(self) -> None: ...


class Tail:
    """The merged order of some topics.

    logs:    one per partition, opened or not; shared with other tails. The owner appends
             to them first and hands the same entries to `turn` in the same breath.
    ids:     topic ids by name, empty text where the cluster has none.
    conflates: it moves in steps: turns are many entries, of which only the latest of each key
             are sent, so they have no texts of their own.
    """

    def __init__(
        self, cluster: str, logs: Iterable[Log], ids: Mapping[str, str], *, conflates: bool = False
    ) -> None:
        self.cluster = cluster
        self.conflates = conflates
        self.ids = dict(ids)
        self.logs: dict[TopicPartition, Log] = {log.tp: log for log in logs}
        self.readiness = Readiness(set(self.logs))
        self.seq = 0
        self.since: dict[TopicPartition, int] = {}
        self.readers: set[Reader] = set()
        self._retiring: set[TopicPartition] = set()
        self._places: Position = {tp: log.place for tp, log in self.logs.items()}
        self._writer = TokenWriter(cluster, self._topics())
        self._moves: deque[Position] = deque()
        self._base: Position = dict(self._places)
        self._found: tuple[int, int, Position] | None = None  # by `position_before`: turn, logs
        self._oldest = 0

    @property
    def position(self) -> Mapping[TopicPartition, Place]:
        """Where the tail stands now."""
        return self._places

    @property
    def text(self) -> bytes:
        return self._writer.text()

    @property
    def exact(self) -> bool:
        """Are ids short enough to go with every event?"""
        return len(self._writer.text()) <= EXACT_TOKEN

    @property
    def oldest(self) -> int:
        """The first turn whose position can still be found."""
        return self._oldest

    def add(self, log: Log, place: Place) -> None:
        """A partition came into being, or is to be waited for since the connect."""
        self.logs[log.tp] = log
        self.readiness.partitions.add(log.tp)
        self._move(log.tp, log.place if log.next is not None else place)
        self._base.setdefault(log.tp, self._places[log.tp])

    def identify(self, topic: str, id: str) -> None:
        """The topic's id as metadata has it. One that follows another is in tokens from now
        on; until the gap of a partition tells of it, its place is marked as the earlier's."""
        before = self.ids[topic]
        if not id or id == before:
            return
        self.ids[topic] = id
        self._writer.identify(topic, id)
        for tp in self.logs if before else ():
            if tp.topic == topic:
                self._retiring.add(tp)
                self._move(tp, self._places[tp])

    def await_since(self, tp: TopicPartition, epoch: int, since: int) -> None:
        """Nobody knows the end of this partition yet: it will be found as of `since`, in
        seconds of the epoch, or exactly, as the end of `epoch`."""
        if tp not in self.since:  # the first who waits: no later epoch or time would do
            self.since[tp] = since
            self._move(tp, Place(None, epoch))

    def issue(self, now: int) -> None:
        """Note the time, in seconds of the epoch. While a partition is pending it stays at the
        time as of which its end will be found: a token must not forget that."""
        self._writer.issue(min(self.since.values(), default=now))

    def turn(self, entries: Iterable[Entry], now: int) -> Turn:
        """Take over what the logs took over. `now` in seconds of the epoch."""
        exact, unmarked = self.exact and not self.conflates, 0
        self.issue(now)
        items: list[Item] = []
        moves: Position = {}
        for entry in entries:
            self._take(entry, moves)
            text = self._writer.text() if exact else None
            if not (exact or self.conflates) and (unmarked := unmarked + size_of(entry)) >= MARK:
                text, unmarked = self._writer.text(), 0
            items.append(_new(Item, (entry, text)))
        self._moves.append(moves)
        turn = Turn(self.seq, items, self._writer.text())
        self.seq += 1
        return turn

    def wake_readers(self) -> None:
        """Let those go on who read alone what the last turn moved: they wait for it also where
        none of it is seen in their channel."""
        moved = self._moves[-1].keys()
        for reader in self.readers:
            if not moved.isdisjoint(reader.own):
                reader.wake()

    def position_before(self, seq: int) -> Position:
        """The position just before a turn that is not older than `oldest`."""
        # Many followers fall from the same turns: a walk from the oldest takes 0.2 ms.
        start, logs, found = self._found or (-1, 0, self._base)
        if logs != len(self.logs) or not self._oldest <= start <= seq:
            start, found = self._oldest, self._base
        position = dict(found)
        for moves in islice(self._moves, start - self._oldest, seq - self._oldest):
            position.update(moves)
        self._found = seq, len(self.logs), dict(position)
        return position

    def forget(self, before: int) -> None:
        """Positions before turns older than this one will not be asked for any more."""
        while self._oldest < before:
            self._base.update(self._moves.popleft())
            self._oldest += 1

    def writer(self, places: Mapping[TopicPartition, Place]) -> TokenWriter:
        """A token of its own: this position, with some partitions elsewhere."""
        writer = TokenWriter(self.cluster, self._topics())
        writer.issue(self._writer.issued)
        for tp, place in self.marked(places).items():
            writer.move(tp, place.offset, place.epoch)
        return writer

    def overlay(
        self, text: bytes, places: Mapping[TopicPartition, Place], issued: int | None = None
    ) -> bytes:
        """One of its texts with some partitions elsewhere (`marked`), and perhaps another time of
        issue."""
        return overlay(text, self._writer.names, places, issued)

    def marked(self, places: Mapping[TopicPartition, Place]) -> Position:
        """Places as they go into a token: it has one id for a topic, so those of an earlier
        topic of the name, whose gap is not told yet, are marked."""
        return {
            tp: place._replace(epoch=RETIRED) if self._is_retired(tp, place) else place
            for tp, place in places.items()
        }

    def is_retiring(self, tp: TopicPartition) -> bool:
        """Was the topic created anew, and this partition's gap not told yet? What could be
        read from Kafka now is not what its places speak of."""
        return tp in self._retiring

    def epoch(self, tp: TopicPartition, place: Place) -> int:
        """The epoch that a place of the log's present lineage has in a token."""
        return RETIRED if tp in self._retiring else place.epoch

    def _is_retired(self, tp: TopicPartition, place: Place) -> bool:
        """One that was not held against the log yet may be of either topic: its owner knows."""
        if place.lineage == UNVERIFIED or tp not in self.logs:
            return False
        return tp in self._retiring or self.logs[tp].retired(place)

    def _take(self, entry: Entry, moves: Position) -> None:
        tp = entry.tp
        if type(entry) is Fault:
            self.readiness.lost(tp)
            return
        if type(entry) is Ready:
            self.readiness.ready(tp)
            self.since.pop(tp, None)
        lineage = self._places[tp].lineage
        if type(entry) is Gap and entry.reason in BACK:
            lineage += 1
            if entry.reason is Reason.RECREATED:
                self._retiring.discard(tp)
        moves[tp] = place = _new(Place, (entry.next, entry.epoch, lineage))
        self._move(tp, place)

    def _move(self, tp: TopicPartition, place: Place) -> None:
        self._places[tp] = place
        self._writer.move(tp, place.offset, self.epoch(tp, place))

    def _topics(self) -> list[TopicPlaces]:
        counts: dict[str, int] = dict.fromkeys(self.ids, 0)
        for tp in self.logs:
            counts[tp.topic] = max(counts[tp.topic], tp.partition + 1)
        return [self._topic(name, count) for name, count in counts.items()]

    def _topic(self, name: str, count: int) -> TopicPlaces:
        unknown = Place(None, NO_EPOCH)
        tps = [TopicPartition(name, p) for p in range(count)]
        places = self.marked({tp: self._places.get(tp, unknown) for tp in tps}).values()
        offsets, epochs = [p.offset for p in places], [p.epoch for p in places]
        return TopicPlaces(name, self.ids[name], offsets, epochs)
