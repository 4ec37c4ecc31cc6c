"""What a client must have been told, judged event by event against the simulated logs.

Each slot of a log knows its predecessor, so a record that arrives is followed back to where
the client stood: whatever is passed on that way and was to be delivered has been lost, and
not to arrive where the client's own last slot was means that the log went back untold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from support.sse import SseEvent

from gateway.core.log.record import Ready
from gateway.core.token.resume_token import parse_token

from .simulation import Partition, SimulatedBrokers, Slot

NEVER_SERIAL = 1 << 62


class BrokenPromise(AssertionError):
    """The stream breaks a promise."""


@dataclass(frozen=True, slots=True)
class ClientPosition:
    """Where a client stands in one partition.

    offset: the least offset that it has not been given; None before the first.
    begin:  slots with a greater serial were written after the connect.
    last:   the slot before `offset`, if it got one.
    fresh:  it got nothing of this life of the topic yet, so it may be a later one.
    truncations_told: how many of the partition's truncations it has been told of, at least.
    """

    incarnation: int
    offset: int | None
    begin_serial: int
    last_slot: Slot | None = None
    is_fresh: bool = True
    truncations_told: int = 0


class Oracle:
    """Judges one client's stream over all its connections.

    key:   what its filter lets through, None for everything.
    skips: it may be told `skipped`.
    conflates: of what it is too slow for it gets the latest of each key.
    """

    def __init__(
        self, kafka: SimulatedBrokers, key: bytes | None, skips: bool, conflates: bool = False
    ) -> None:
        self.kafka, self.key, self.may_skip, self.conflates = kafka, key, skips, conflates
        self.positions: dict[int, ClientPosition] = {}
        self.seen_serials: dict[int, None] = {}  # serials, in the order of arrival
        self.saved_state: tuple[str, dict[int, ClientPosition], int] = ("", {}, 0)
        self.id_offsets: dict[int, int | None] = {}
        self.lowered_partitions: set[int] = set()
        self.begin_serial = NEVER_SERIAL

    # connecting

    def on_start(self, is_earliest: bool, partitions: int) -> None:
        """A fresh client: everything written from now on is to arrive, or simply everything.
        partitions: as many as its gateway knows."""
        begin = 0 if is_earliest else self.kafka.serial
        self.begin_serial = NEVER_SERIAL
        self.seen_serials.clear()
        self.id_offsets.clear()
        self.positions.clear()
        for p in range(partitions):
            self.positions[p] = ClientPosition(
                self._find_first_incarnation(p), 0 if is_earliest else None, begin
            )

    def on_resume(self, last_event_id: str) -> None:
        """It knows no more than what went with the id that it has."""
        known, stands, count = self.saved_state
        if known == last_event_id:
            self.positions = dict(stands)
            for serial in list(self.seen_serials)[count:]:
                del self.seen_serials[serial]
        self.lowered_partitions.clear()
        (topic,) = parse_token(last_event_id).topics
        self.id_offsets = dict(enumerate(topic.offsets))

    def on_begin(self) -> None:
        """BEGIN went out: who writes because of it must be heard, whatever is pending."""
        self.begin_serial = min(self.begin_serial, self.kafka.serial)

    def on_resolved(self, ready: Ready, life: int) -> None:
        """A live start was not known at the connect. The end of the log right after it counts
        as that of the connect; one found by time cannot know what retention took before."""
        p = ready.tp.partition
        stand = self.positions.get(p)
        if stand is None or stand.offset is not None:
            return
        partition = self.kafka.incarnations[life][p]
        upto = partition.log_start if ready.approximate else ready.next_offset
        if 0 < upto <= partition.end_offset:
            serial = partition.slots[upto - 1].serial
            begin = max(
                stand.begin_serial, serial if ready.approximate else min(serial, self.begin_serial)
            )
            self.positions[p] = replace(stand, begin_serial=begin)
            known, stands, count = self.saved_state
            if p in stands:
                self.saved_state = (
                    known,
                    {**stands, p: replace(stands[p], begin_serial=begin)},
                    count,
                )

    # events

    def check_event(self, event: SseEvent) -> None:
        data = event.raw_data.split()
        match event.event_type, data[0]:
            case "message", b"r":
                self._check_record(int(data[1]), int(data[2]), data[3])
            case "gap", b"g":
                p, at, to = map(int, data[1:4])
                self._check_gap(p, at, to, data[4].decode())
        if event.last_event_id:
            self._check_id(event.last_event_id)

    def _check_record(self, p: int, offset: int, value: bytes) -> None:
        slot = self.kafka.slots_by_value.get(value)
        if slot is None:
            raise BrokenPromise(f"partition {p}: {value!r} at {offset} was never written")
        if slot.offset != offset or slot.is_control:
            raise BrokenPromise(f"partition {p}: {value!r} is at {slot.offset}, not {offset}")
        if slot.transaction is not None and slot.transaction.state != "committed":
            raise BrokenPromise(f"partition {p}: {value!r} at {offset} was never committed")
        if self.key is not None and slot.key != self.key:
            raise BrokenPromise(f"partition {p}: {value!r} at {offset} does not pass the filter")
        floor = self.kafka.incarnations[slot.incarnation][p]
        if slot.serial in self.seen_serials and not (
            floor.truncations and offset < floor.log_start
        ):
            raise BrokenPromise(f"partition {p}: {value!r} at {offset} came twice")
        stand = self._get_position(p)
        if slot.incarnation != stand.incarnation and not (
            stand.is_fresh and slot.incarnation > stand.incarnation
        ):
            raise BrokenPromise(f"partition {p}: {value!r} at {offset} is of another topic, untold")
        if stand.offset is not None and offset < stand.offset:
            raise BrokenPromise(
                f"partition {p}: {offset} came, but the stream stood at {stand.offset}"
            )
        if slot.incarnation != stand.incarnation:
            stand = replace(stand, incarnation=slot.incarnation, truncations_told=0)
        if broken := self._find_broken_promise(p, stand, slot.previous, f"{value!r} at {offset}"):
            raise BrokenPromise(broken)
        self.positions[p] = replace(stand, offset=offset + 1, last_slot=slot, is_fresh=False)
        self.seen_serials[slot.serial] = None

    def _find_broken_promise(
        self, p: int, stand: ClientPosition, slot: Slot | None, at: str
    ) -> str | None:
        """Follow the log back from a slot to where the client stood, and say what is wrong."""
        partition = self._get_partition(p, stand)
        # Where the log was cut and retention then took the place of the cut, no answer of
        # Kafka's tells that it happened.
        floor = partition.log_start if partition.truncations else 0
        least = -1 if stand.offset is None else stand.offset
        while slot is not None and slot.offset >= least:
            if slot.serial <= stand.begin_serial or slot.offset < floor:
                return None
            if (
                self.should_deliver(slot)
                and slot.serial not in self.seen_serials
                and not self._is_newer(slot)
            ):
                return f"partition {p}: lost {slot.value!r} at {slot.offset}, before {at}"
            slot = slot.previous
        last = stand.last_slot
        if last is None or last.offset + 1 != stand.offset or last.offset < floor:
            return None
        if slot is not None and slot is not last and slot.offset == last.offset:
            return f"partition {p}: the log went back below {stand.offset}, untold; {at}"
        return None

    def _is_newer(self, slot: Slot) -> bool:
        """Was it replaced, for a client that hears of the latest only? That one must come then."""
        return self.conflates and any(
            each.key == slot.key and each.must_deliver and each.serial > slot.serial
            for each in self.kafka.slots_by_value.values()
            if each.incarnation == slot.incarnation and each.offset > slot.offset
        )

    def should_deliver(self, slot: Slot) -> bool:
        return slot.must_deliver and (self.key is None or slot.key == self.key)

    def _check_gap(self, p: int, at: int, to: int, reason: str) -> None:
        stand = self._get_position(p)
        what = f"partition {p}: gap {at} -> {to} ({reason})"
        if stand.offset is not None and at < stand.offset:
            raise BrokenPromise(f"{what}, but the stream stood at {stand.offset}")
        if reason == "recreated":
            if stand.incarnation + 1 >= len(self.kafka.incarnations) or to != 0:
                raise BrokenPromise(f"{what}, but it was not created anew")
            self.positions[p] = ClientPosition(stand.incarnation + 1, 0, 0)
            self.lowered_partitions.add(p)
            return
        partition = self._get_partition(p, stand)
        if reason == "truncated":
            self._check_truncated(p, stand, partition, at, to, what)
            return
        if to < at:
            raise BrokenPromise(f"{what} goes back")
        if stand.offset is not None and at > stand.offset and not stand.is_fresh:
            self._check_up_to(p, stand, partition, at, what)
        if reason == "retention" and not self._is_retained(p, stand, to):
            raise BrokenPromise(f"{what}, but the log starts at {partition.log_start}")
        if reason == "skipped" and not self.may_skip:
            raise BrokenPromise(f"{what}, but this client skips nothing")
        self.positions[p] = replace(stand, offset=to, last_slot=None)

    def _is_retained(self, p: int, stand: ClientPosition, to: int) -> bool:
        lives = (
            self.kafka.incarnations[stand.incarnation :]
            if stand.is_fresh
            else [self.kafka.incarnations[stand.incarnation]]
        )
        return any(to <= life[p].log_start for life in lives if p < len(life))

    def _check_truncated(
        self, p: int, stand: ClientPosition, partition: Partition, at: int, to: int, what: str
    ) -> None:
        if to > at:
            raise BrokenPromise(f"{what} goes forward")
        if to == at:
            raise BrokenPromise(f"{what} is none")
        slot = stand.last_slot
        while slot is not None and slot.offset >= to:
            slot = slot.previous
        offset = None if stand.offset is None else min(to, stand.offset)
        if to <= partition.log_start:  # what was there between is gone, and so is the proof of it
            offset, slot = to, None
        told = next(
            (
                number
                for number, slots in enumerate(partition.truncations, 1)
                if number > stand.truncations_told and slots and slots[0].offset == to
            ),
            stand.truncations_told,
        )
        self.positions[p] = replace(stand, offset=offset, last_slot=slot, truncations_told=told)
        self.lowered_partitions.add(p)

    def _check_up_to(
        self, p: int, stand: ClientPosition, partition: Partition, at: int, what: str
    ) -> None:
        """Nothing may be missing between where the client stood and where the gap begins.

        The gateway may not know of a truncation yet, and then means the log as it was before. Of
        what a truncation took that the client was told of, it cannot mean anything any more.
        """
        possible_ends = [
            slot
            for slots in (partition.slots, *partition.truncations[stand.truncations_told :])
            for slot in slots
            if slot.offset == at - 1
            and (stand.last_slot is None or _has_ancestor(slot, stand.last_slot))
        ]
        broken = [self._find_broken_promise(p, stand, slot, what) for slot in possible_ends]
        if broken and all(broken):
            raise BrokenPromise(broken[0])

    def _check_id(self, last_event_id: str) -> None:
        """No component goes back, but where the log did; what was got is kept with the id."""
        if last_event_id == self.saved_state[0]:  # an event without an id of its own
            return
        (topic,) = parse_token(last_event_id).topics
        for p, offset in enumerate(topic.offsets):
            before = self.id_offsets.get(p)
            if (
                before is not None
                and p not in self.lowered_partitions
                and (offset is None or offset < before)
            ):
                raise BrokenPromise(f"partition {p}: the id went back from {before} to {offset}")
            self.id_offsets[p] = offset
            if offset is not None and p in self.positions:
                self._check_claimed_offset(p, self.positions[p], offset)
        self.lowered_partitions.clear()
        self.saved_state = last_event_id, dict(self.positions), len(self.seen_serials)

    def _check_claimed_offset(self, p: int, stand: ClientPosition, offset: int) -> None:
        """A client that comes back with this id gets nothing twice, and misses nothing.

        An id may pass a record that a later one of its key replaced: the last one of them is either
        behind the id, and comes then, or is found here.
        """
        if stand.offset is None or offset == stand.offset:
            return
        if offset < stand.offset:
            raise BrokenPromise(
                f"partition {p}: the id says {offset}, the stream stood at {stand.offset}"
            )
        partition = self._get_partition(p, stand)
        if (
            stand.incarnation == self.kafka.incarnation
            and not partition.truncations
            and not stand.is_fresh
        ):
            for slot in partition.slots[stand.offset : offset]:
                if (
                    slot.serial > stand.begin_serial
                    and self.should_deliver(slot)
                    and not self._is_newer(slot)
                ):
                    raise BrokenPromise(f"partition {p}: the id says {offset}, past {slot.value!r}")

    # the end

    def check_complete(self) -> None:
        """Everything is quiet: whatever was to arrive has."""
        for p, partition in enumerate(self.kafka.partitions):
            stand = self._get_position(p)
            if stand.incarnation != partition.incarnation and not stand.is_fresh:
                raise BrokenPromise(f"partition {p}: the topic was created anew, untold")
            slot = partition.slots[-1] if partition.slots else None
            floor = partition.log_start if stand.offset is None or partition.truncations else 0
            while slot is not None and slot.offset >= floor:
                if slot.serial <= stand.begin_serial or (
                    stand.offset is not None and slot.offset < stand.offset
                ):
                    break
                if self.should_deliver(slot) and slot.serial not in self.seen_serials:
                    raise BrokenPromise(
                        f"partition {p}: {slot.value!r} at {slot.offset} never arrived"
                    )
                slot = slot.previous

    # small things

    def _get_position(self, p: int) -> ClientPosition:
        if p not in self.positions:  # it came into being since
            self.positions[p] = ClientPosition(self._find_first_incarnation(p), 0, 0)
        return self.positions[p]

    def _find_first_incarnation(self, p: int) -> int:
        return next(n for n, life in enumerate(self.kafka.incarnations) if p < len(life))

    def _get_partition(self, p: int, stand: ClientPosition) -> Partition:
        return self.kafka.incarnations[stand.incarnation][p]


def _has_ancestor(slot: Slot | None, wanted: Slot) -> bool:
    while slot is not None and slot.offset > wanted.offset:
        slot = slot.previous
    return slot is wanted
