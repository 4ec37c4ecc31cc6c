"""What a client must have been told, judged event by event against the simulated logs.

Each slot of a log knows its predecessor, so a record that arrives is followed back to where
the client stood: whatever is passed on that way and was to be delivered has been lost, and
not to arrive where the client's own last slot was means that the log went back untold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from support.sse import Event

from gateway.core.log.record import Ready
from gateway.core.token.resume_token import decode

from .simulation import Kafka, Partition, Slot

NEVER = 1 << 62


class Wrong(AssertionError):
    """The stream breaks a promise."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a client stands in one partition.

    offset: the least offset that it has not been given; None before the first.
    begin:  slots with a greater serial were written after the connect.
    last:   the slot before `offset`, if it got one.
    fresh:  it got nothing of this life of the topic yet, so it may be a later one.
    """

    life: int
    offset: int | None
    begin: int
    last: Slot | None = None
    fresh: bool = True


class Oracle:
    """Judges one client's stream over all its connections.

    key:   what its filter lets through, None for everything.
    skips: it may be told `skipped`.
    conflates: of what it is too slow for it gets the latest of each key.
    """

    def __init__(
        self, kafka: Kafka, key: bytes | None, skips: bool, conflates: bool = False
    ) -> None:
        self.kafka, self.key, self.skips, self.conflates = kafka, key, skips, conflates
        self.stands: dict[int, Stand] = {}
        self.seen: dict[int, None] = {}  # serials, in the order of arrival
        self.kept: tuple[str, dict[int, Stand], int] = ("", {}, 0)
        self.ids: dict[int, int | None] = {}
        self.lowered: set[int] = set()
        self.begun = NEVER

    # connecting

    def starts(self, earliest: bool, partitions: int) -> None:
        """A fresh client: everything written from now on is to arrive, or simply everything.
        partitions: as many as its gateway knows."""
        begin = 0 if earliest else self.kafka.serial
        self.begun = NEVER
        self.seen.clear()
        self.ids.clear()
        self.stands.clear()
        for p in range(partitions):
            self.stands[p] = Stand(self._first_life(p), 0 if earliest else None, begin)

    def resumes(self, last_event_id: str) -> None:
        """It knows no more than what went with the id that it has."""
        known, stands, count = self.kept
        if known == last_event_id:
            self.stands = dict(stands)
            for serial in list(self.seen)[count:]:
                del self.seen[serial]
        self.lowered.clear()
        (topic,) = decode(last_event_id).topics
        self.ids = dict(enumerate(topic.offsets))

    def began(self) -> None:
        """BEGIN went out: who writes because of it must be heard, whatever is pending."""
        self.begun = min(self.begun, self.kafka.serial)

    def resolved(self, ready: Ready, life: int) -> None:
        """A live start was not known at the connect. The end of the log right after it counts
        as that of the connect; one found by time cannot know what retention took before."""
        p = ready.tp.partition
        stand = self.stands.get(p)
        if stand is None or stand.offset is not None:
            return
        partition = self.kafka.lives[life][p]
        upto = partition.start if ready.approximate else ready.next
        if 0 < upto <= partition.end:
            serial = partition.slots[upto - 1].serial
            begin = max(stand.begin, serial if ready.approximate else min(serial, self.begun))
            self.stands[p] = replace(stand, begin=begin)
            known, stands, count = self.kept
            if p in stands:
                self.kept = known, {**stands, p: replace(stands[p], begin=begin)}, count

    # events

    def event(self, event: Event) -> None:
        data = event.raw.split()
        match event.type, data[0]:
            case "message", b"r":
                self._record(int(data[1]), int(data[2]), data[3])
            case "gap", b"g":
                p, at, to = map(int, data[1:4])
                self._gap(p, at, to, data[4].decode())
        if event.last_event_id:
            self._id(event.last_event_id)

    def _record(self, p: int, offset: int, value: bytes) -> None:
        slot = self.kafka.written.get(value)
        if slot is None:
            raise Wrong(f"partition {p}: {value!r} at {offset} was never written")
        if slot.offset != offset or slot.control:
            raise Wrong(f"partition {p}: {value!r} is at {slot.offset}, not {offset}")
        if slot.transaction is not None and slot.transaction.state != "committed":
            raise Wrong(f"partition {p}: {value!r} at {offset} was never committed")
        if self.key is not None and slot.key != self.key:
            raise Wrong(f"partition {p}: {value!r} at {offset} does not pass the filter")
        floor = self.kafka.lives[slot.life][p]
        if slot.serial in self.seen and not (floor.cuts and offset < floor.start):
            raise Wrong(f"partition {p}: {value!r} at {offset} came twice")
        stand = self._stand(p)
        if slot.life != stand.life and not (stand.fresh and slot.life > stand.life):
            raise Wrong(f"partition {p}: {value!r} at {offset} is of another topic, untold")
        if stand.offset is not None and offset < stand.offset:
            raise Wrong(f"partition {p}: {offset} came, but the stream stood at {stand.offset}")
        stand = replace(stand, life=slot.life)
        self._passed(p, stand, slot.prev, f"{value!r} at {offset}")
        self.stands[p] = replace(stand, offset=offset + 1, last=slot, fresh=False)
        self.seen[slot.serial] = None

    def _passed(self, p: int, stand: Stand, slot: Slot | None, at: str) -> None:
        """Follow the log back to where the client stood."""
        partition = self._partition(p, stand)
        # Where the log was cut and retention then took the place of the cut, no answer of
        # Kafka's tells that it happened.
        floor = partition.start if partition.cuts else 0
        least = -1 if stand.offset is None else stand.offset
        while slot is not None and slot.offset >= least:
            if slot.serial <= stand.begin or slot.offset < floor:
                return
            if self.wants(slot) and slot.serial not in self.seen and not self._is_newer(slot):
                raise Wrong(f"partition {p}: lost {slot.value!r} at {slot.offset}, before {at}")
            slot = slot.prev
        last = stand.last
        if last is None or last.offset + 1 != stand.offset or last.offset < floor:
            return
        if slot is not None and slot is not last and slot.offset == last.offset:
            raise Wrong(f"partition {p}: the log went back below {stand.offset}, untold; {at}")

    def _is_newer(self, slot: Slot) -> bool:
        """Was it replaced, for a client that hears of the latest only? That one must come then."""
        return self.conflates and any(
            each.key == slot.key and each.delivers and each.serial > slot.serial
            for each in self.kafka.written.values()
            if each.life == slot.life and each.offset > slot.offset
        )

    def wants(self, slot: Slot) -> bool:
        return slot.delivers and (self.key is None or slot.key == self.key)

    def _gap(self, p: int, at: int, to: int, reason: str) -> None:
        stand = self._stand(p)
        what = f"partition {p}: gap {at} -> {to} ({reason})"
        if stand.offset is not None and at < stand.offset:
            raise Wrong(f"{what}, but the stream stood at {stand.offset}")
        if reason == "recreated":
            if stand.life + 1 >= len(self.kafka.lives) or to != 0:
                raise Wrong(f"{what}, but it was not created anew")
            self.stands[p] = Stand(stand.life + 1, 0, 0)
            self.lowered.add(p)
            return
        partition = self._partition(p, stand)
        if reason == "truncated":
            self._truncated(p, stand, partition, at, to, what)
            return
        if to < at:
            raise Wrong(f"{what} goes back")
        if stand.offset is not None and at > stand.offset and not stand.fresh:
            self._upto(p, stand, partition, at, what)
        if reason == "retention" and not self._retained(p, stand, to):
            raise Wrong(f"{what}, but the log starts at {partition.start}")
        if reason == "skipped" and not self.skips:
            raise Wrong(f"{what}, but this client skips nothing")
        self.stands[p] = replace(stand, offset=to, last=None)

    def _retained(self, p: int, stand: Stand, to: int) -> bool:
        lives = self.kafka.lives[stand.life :] if stand.fresh else [self.kafka.lives[stand.life]]
        return any(to <= life[p].start for life in lives if p < len(life))

    def _truncated(
        self, p: int, stand: Stand, partition: Partition, at: int, to: int, what: str
    ) -> None:
        if to > at:
            raise Wrong(f"{what} goes forward")
        if to == at:
            raise Wrong(f"{what} is none")
        slot = stand.last
        while slot is not None and slot.offset >= to:
            slot = slot.prev
        offset = None if stand.offset is None else min(to, stand.offset)
        if to <= partition.start:  # what was there between is gone, and so is the proof of it
            offset, slot = to, None
        self.stands[p] = replace(stand, offset=offset, last=slot)
        self.lowered.add(p)

    def _upto(self, p: int, stand: Stand, partition: Partition, at: int, what: str) -> None:
        """Nothing may be missing between where the client stood and where the gap begins."""
        if at <= partition.end and at > 0:
            slot = partition.slots[at - 1]
            if stand.last is None or _has(slot, stand.last):
                self._passed(p, stand, slot, what)

    def _id(self, last_event_id: str) -> None:
        """No component goes back, but where the log did; what was got is kept with the id."""
        if last_event_id == self.kept[0]:  # an event without an id of its own
            return
        (topic,) = decode(last_event_id).topics
        for p, offset in enumerate(topic.offsets):
            before = self.ids.get(p)
            if before is not None and p not in self.lowered and (offset is None or offset < before):
                raise Wrong(f"partition {p}: the id went back from {before} to {offset}")
            self.ids[p] = offset
            if offset is not None and p in self.stands:
                self._claims(p, self.stands[p], offset)
        self.lowered.clear()
        self.kept = last_event_id, dict(self.stands), len(self.seen)

    def _claims(self, p: int, stand: Stand, offset: int) -> None:
        """A client that comes back with this id gets nothing twice, and misses nothing."""
        if stand.offset is None or offset == stand.offset:
            return
        if offset < stand.offset:
            raise Wrong(f"partition {p}: the id says {offset}, the stream stood at {stand.offset}")
        partition = self._partition(p, stand)
        if stand.life == self.kafka.life and partition.cuts == 0 and not stand.fresh:
            for slot in partition.slots[stand.offset : offset]:
                if slot.serial > stand.begin and self.wants(slot):
                    raise Wrong(f"partition {p}: the id says {offset}, past {slot.value!r}")

    # the end

    def complete(self) -> None:
        """Everything is quiet: whatever was to arrive has."""
        for p, partition in enumerate(self.kafka.partitions):
            stand = self._stand(p)
            if stand.life != partition.life and not stand.fresh:
                raise Wrong(f"partition {p}: the topic was created anew, untold")
            slot = partition.slots[-1] if partition.slots else None
            floor = partition.start if stand.offset is None or partition.cuts else 0
            while slot is not None and slot.offset >= floor:
                if slot.serial <= stand.begin or (
                    stand.offset is not None and slot.offset < stand.offset
                ):
                    break
                if self.wants(slot) and slot.serial not in self.seen:
                    raise Wrong(f"partition {p}: {slot.value!r} at {slot.offset} never arrived")
                slot = slot.prev

    # small things

    def _stand(self, p: int) -> Stand:
        if p not in self.stands:  # it came into being since
            self.stands[p] = Stand(self._first_life(p), 0, 0)
        return self.stands[p]

    def _first_life(self, p: int) -> int:
        return next(n for n, life in enumerate(self.kafka.lives) if p < len(life))

    def _partition(self, p: int, stand: Stand) -> Partition:
        return self.kafka.lives[stand.life][p]


def _has(slot: Slot | None, wanted: Slot) -> bool:
    while slot is not None and slot.offset > wanted.offset:
        slot = slot.prev
    return slot is wanted
