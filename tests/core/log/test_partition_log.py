from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st
from support.budgets import peak_memory

from gateway.core.log.partition_log import OVERHEAD, Log
from gateway.core.log.position import NO_EPOCH, Place
from gateway.core.log.record import Gap, Reason, Record, Skip, TopicPartition

TP = TopicPartition("orders", 0)


def record(offset: int, epoch: int = 0) -> Record:
    return Record(TP, offset, epoch, 0, None, b"v")


def cut(at: int, to: int, epoch: int = 0, reason: Reason = Reason.TRUNCATED) -> Gap:
    return Gap(TP, at, to, epoch, reason)


def opened(at: int = 0, max_bytes: int = 1 << 20) -> Log:
    log = Log(TP, max_bytes, max_age=10.0)
    log.open(at, 0)
    return log


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1), st.integers(1, 2000))
def test_what_is_covered_reads_as_it_was_appended(steps: list[tuple[int, bool]], bound: int):
    log, entries, at = opened(max_bytes=bound), [], 0
    for width, is_skip in steps:
        entry = Skip(TP, at, at + width, 0) if is_skip else record(at + width - 1)
        entries.append(entry)
        log.append(entry, now=0.0)
        at = entry.next
    assert log.place == Place(at, 0, 0)
    assert log.bytes <= max(bound, OVERHEAD + 1)
    for offset in range(at + 1):
        if log.covers(Place(offset)):
            assert list(log.read(offset)) == [e for e in entries if e.next > offset]
    assert not log.covers(Place(log.start - 1))


def test_the_newest_entry_stays_however_large_it_is():
    log = opened(max_bytes=1)
    for offset in range(3):
        log.append(record(offset), now=0.0)
    assert (len(log), log.start) == (1, 2)


def test_what_is_older_than_its_age_goes():
    log = opened()
    log.append(record(0), now=0.0)
    log.append(record(1), now=8.0)
    log.expire(now=12.0)
    assert list(log.read(1)) == [record(1)]
    assert not log.covers(Place(0))
    log.shrink(0)
    assert (log.bytes, len(log), log.start) == (0, 0, 2)


def test_a_gap_that_begins_before_the_reader_is_told_from_where_it_stands():
    log = opened()
    log.append(cut(0, 10, reason=Reason.RETENTION), now=0.0)
    assert list(log.read(4)) == [cut(4, 10, reason=Reason.RETENTION)]


def test_a_log_that_goes_back_starts_anew_and_old_places_are_led_over():
    log = opened()
    for offset in range(10):
        log.append(record(offset), now=0.0)
    log.append(cut(10, 6, epoch=1), now=0.0)
    assert log.place == Place(6, 1, 1)
    assert not log.covers(Place(6, 0, 0))
    assert log.rebase(Place(6, 0, 0)) == (None, Place(6, 0, 1))
    assert log.rebase(Place(8, 0, 0)) == (cut(8, 6, epoch=1), Place(6, 1, 1))


def test_a_place_that_slept_through_several_cuts_is_told_one_gap():
    log = opened()
    log.append(record(0), now=0.0)
    log.append(cut(30, 20, epoch=1), now=0.0)
    log.append(cut(20, 10, epoch=2), now=0.0)
    assert log.rebase(Place(25, 0, 0)) == (cut(25, 10, epoch=2), Place(10, 2, 2))
    log.append(cut(10, 0, NO_EPOCH, Reason.RECREATED), now=0.0)
    gap, place = log.rebase(Place(25, 0, 0))
    assert gap == cut(25, 0, NO_EPOCH, Reason.RECREATED)
    assert place == Place(0, NO_EPOCH, 3)
    assert log.retired(Place(25, 0, 0))
    assert not log.retired(place)


def test_a_client_ahead_learns_from_later_epochs_that_the_log_was_cut_before_it():
    """It stood at 10, the shared read at 5; the log was cut to 7 and grew again: neither the
    shared read nor its lineage notices."""
    log = opened()
    for offset in range(7):
        log.append(record(offset, epoch=1), now=0.0)
    assert log.parted(Place(10, 1)) == (None, True)
    log.append(record(7, epoch=2), now=0.0)
    assert log.parted(Place(10, 1)) == (Place(7, 1, 0), True)
    assert log.parted(Place(7, 1)) == (None, True)
    assert log.parted(Place(10, 2)) == (None, True)
    assert log.parted(Place(10, NO_EPOCH)) == (None, True)


def test_where_the_log_parted_is_unsure_when_nothing_of_before_is_held():
    log = opened(at=3)
    log.append(record(3, epoch=2), now=0.0)
    assert log.parted(Place(9, 1)) == (Place(3, NO_EPOCH, 0), False)


def test_the_epoch_of_a_gap_proves_nothing():
    log = opened()
    log.append(cut(0, 5, epoch=4, reason=Reason.SKIPPED), now=0.0)
    log.append(record(5, epoch=2), now=0.0)
    assert log.parted(Place(6, 2)) == (None, True)


def test_what_a_private_read_brings_of_a_later_epoch_is_not_of_this_lineage():
    log = opened()
    for offset in range(4):
        log.append(record(offset), now=0.0)
    assert log.admits(record(2))
    assert not log.admits(record(2, epoch=1))
    assert log.admits(record(4, epoch=1))
    assert not log.admits(cut(3, 1))
    assert log.admits(cut(1, 4, epoch=1, reason=Reason.SKIPPED))


def test_what_is_dropped_is_let_go_at_once():
    """Dropped records were held until a thousand of them were cut off together: 900 MB of them."""
    log = opened(max_bytes=1 << 20)

    def appended() -> None:
        for n in range(100):
            log.append(record(n)._replace(value=bytes(1 << 16)), now=0.0)

    assert peak_memory(appended) < 2 << 20


def test_what_is_held_costs_the_garbage_collector_nothing():
    """Named tuples are tracked for as long as they live; with a full cache a full collection took
    a third of a second."""
    log = Log(TP, 1 << 20, 60.0)
    log.open(0, 0)
    headers = tuple((name, b"x") for name in ("a", "b"))
    for offset in range(100):
        log.append(Record(TP, offset, 0, 0, b"%d" % offset, b"value", headers), 0.0)
    for _ in range(3):  # one for each level of what is nested
        gc.collect()
    assert not any(map(gc.is_tracked, log._held))
    assert list(log.read(98)) == [
        Record(TP, offset, 0, 0, b"%d" % offset, b"value", headers) for offset in (98, 99)
    ]
