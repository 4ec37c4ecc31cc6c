from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st
from support.budgets import measure_peak_memory
from support.key_readers import VALUE, build_index, scan_keys

from gateway.core.log.partition_log import (
    ENTRY_OVERHEAD_BYTES,
    KEY_INDEX_LINGER_S,
    PartitionLog,
)
from gateway.core.log.record import (
    NO_EPOCH,
    Gap,
    GapReason,
    PartitionPosition,
    Record,
    Skip,
    TopicPartition,
)

TP = TopicPartition("orders", 0)


def record(offset: int, epoch: int = 0) -> Record:
    return Record(TP, offset, epoch, 0, None, b"v")


def build_gap(at: int, to: int, epoch: int = 0, reason: GapReason = GapReason.TRUNCATED) -> Gap:
    return Gap(TP, at, to, epoch, reason)


def build_open_log(at: int = 0, max_bytes: int = 1 << 20) -> PartitionLog:
    log = PartitionLog(TP, max_bytes, max_age=10.0)
    log.open(at, 0)
    return log


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=1), st.integers(1, 2000))
def test_what_is_covered_reads_as_it_was_appended(steps: list[tuple[int, bool]], bound: int):
    log, entries, at = build_open_log(max_bytes=bound), [], 0
    for width, is_skip in steps:
        entry = Skip(TP, at, at + width, 0) if is_skip else record(at + width - 1)
        entries.append(entry)
        log.append(entry, now=0.0)
        at = entry.next_offset
    assert log.position == PartitionPosition(at, 0, 0)
    assert log.bytes <= max(bound, ENTRY_OVERHEAD_BYTES + 1)
    for offset in range(at + 1):
        if log.covers(PartitionPosition(offset)):
            assert list(log.iter_entries(offset)) == [e for e in entries if e.next_offset > offset]
    assert not log.covers(PartitionPosition(log.start_offset - 1))


def test_the_newest_entry_stays_however_large_it_is():
    log = build_open_log(max_bytes=1)
    for offset in range(3):
        log.append(record(offset), now=0.0)
    assert (len(log), log.start_offset) == (1, 2)


def test_what_is_older_than_its_age_goes():
    log = build_open_log()
    log.append(record(0), now=0.0)
    log.append(record(1), now=8.0)
    log.expire(now=12.0)
    assert list(log.iter_entries(1)) == [record(1)]
    assert not log.covers(PartitionPosition(0))
    log.shrink(0)
    assert (log.bytes, len(log), log.start_offset) == (0, 0, 2)


def test_a_gap_that_begins_before_the_reader_is_told_from_where_it_stands():
    log = build_open_log()
    log.append(build_gap(0, 10, reason=GapReason.RETENTION), now=0.0)
    assert list(log.iter_entries(4)) == [build_gap(4, 10, reason=GapReason.RETENTION)]


def test_a_log_that_goes_back_starts_anew_and_old_places_are_led_over():
    log = build_open_log()
    for offset in range(10):
        log.append(record(offset), now=0.0)
    log.append(build_gap(10, 6, epoch=1), now=0.0)
    assert log.position == PartitionPosition(6, 1, 1)
    assert not log.covers(PartitionPosition(6, 0, 0))
    assert log.rebase(PartitionPosition(6, 0, 0)) == (None, PartitionPosition(6, 0, 1))
    assert log.rebase(PartitionPosition(8, 0, 0)) == (
        build_gap(8, 6, epoch=1),
        PartitionPosition(6, 1, 1),
    )


def test_a_place_that_slept_through_several_cuts_is_told_one_gap():
    log = build_open_log()
    log.append(record(0), now=0.0)
    log.append(build_gap(30, 20, epoch=1), now=0.0)
    log.append(build_gap(20, 10, epoch=2), now=0.0)
    assert log.rebase(PartitionPosition(25, 0, 0)) == (
        build_gap(25, 10, epoch=2),
        PartitionPosition(10, 2, 2),
    )
    log.append(build_gap(10, 0, NO_EPOCH, GapReason.RECREATED), now=0.0)
    gap, place = log.rebase(PartitionPosition(25, 0, 0))
    assert gap == build_gap(25, 0, NO_EPOCH, GapReason.RECREATED)
    assert place == PartitionPosition(0, NO_EPOCH, 3)
    assert log.is_retired(PartitionPosition(25, 0, 0))
    assert not log.is_retired(place)


def test_a_client_ahead_learns_from_later_epochs_that_the_log_was_cut_before_it():
    """It stood at 10, the shared read at 5; the log was cut to 7 and grew again: neither the
    shared read nor its lineage notices."""
    log = build_open_log()
    for offset in range(7):
        log.append(record(offset, epoch=1), now=0.0)
    assert log.find_divergence(PartitionPosition(10, 1)) == (None, True)
    log.append(record(7, epoch=2), now=0.0)
    for ahead in (8, 10):
        found = log.find_divergence(PartitionPosition(ahead, 1))
        assert found == (PartitionPosition(7, 1, 0), True)
    assert log.find_divergence(PartitionPosition(7, 1)) == (None, True)
    assert log.find_divergence(PartitionPosition(10, 2)) == (None, True)
    assert log.find_divergence(PartitionPosition(10, NO_EPOCH)) == (None, True)


def test_where_the_log_parted_is_unsure_when_nothing_of_before_is_held():
    log = build_open_log(at=3)
    log.append(record(3, epoch=2), now=0.0)
    assert log.find_divergence(PartitionPosition(9, 1)) == (
        PartitionPosition(3, NO_EPOCH, 0),
        False,
    )


def test_the_epoch_of_a_gap_proves_nothing():
    log = build_open_log()
    log.append(build_gap(0, 5, epoch=4, reason=GapReason.SKIPPED), now=0.0)
    log.append(record(5, epoch=2), now=0.0)
    assert log.find_divergence(PartitionPosition(6, 2)) == (None, True)


def test_what_a_private_read_brings_of_a_later_epoch_is_not_of_this_lineage():
    log = build_open_log()
    for offset in range(4):
        log.append(record(offset), now=0.0)
    assert log.matches_lineage(record(2))
    assert not log.matches_lineage(record(2, epoch=1))
    assert log.matches_lineage(record(4, epoch=1))
    assert not log.matches_lineage(build_gap(3, 1))
    assert log.matches_lineage(build_gap(1, 4, epoch=1, reason=GapReason.SKIPPED))


def test_what_is_dropped_is_let_go_at_once():
    """Dropped records were held until a thousand of them were cut off together: 900 MB of them."""
    log = build_open_log(max_bytes=1 << 20)

    def append_records() -> None:
        for n in range(100):
            log.append(record(n)._replace(value=bytes(1 << 16)), now=0.0)

    assert measure_peak_memory(append_records) < 2 << 20


def count_tracked_objects() -> int:
    for _ in range(3):  # one for each level of what is nested
        gc.collect()
    return len(gc.get_objects())


def test_what_is_held_costs_the_garbage_collector_nothing():
    """Named tuples are tracked for as long as they live; with a full cache a full collection took
    a third of a second."""
    log = PartitionLog(TP, 1 << 20, 60.0)
    log.open(0, 0)
    headers = tuple((name, b"x") for name in ("a", "b"))
    before = count_tracked_objects()
    for offset in range(100):
        log.append(Record(TP, offset, 0, 0, b"%d" % offset, b"value", headers), 0.0)
    assert count_tracked_objects() - before < 10
    assert list(log.iter_entries(98)) == [
        Record(TP, offset, 0, 0, b"%d" % offset, b"value", headers) for offset in (98, 99)
    ]


def fill(log: PartitionLog, count: int, key_count: int = 10) -> None:
    for _ in range(count):
        at = log.next_offset or 0
        log.append(Record(TP, at, 0, 0, b"%d" % (at % key_count), VALUE), now=0.0)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abnsg")), min_size=1, max_size=30),
    st.sets(st.sampled_from([b"a", b"b"])),
    st.integers(0, 40),
    st.integers(0, 10),
)
def test_records_of_other_keys_are_passed_over_and_no_offset_is_left_out(
    steps, keys, end, dropped_count
):
    log, at = build_open_log(max_bytes=1 << 30), 0
    for width, kind in steps:
        if kind == "s":
            log.append(Skip(TP, at, at + width, 0), now=0.0)
        elif kind == "g":
            log.append(build_gap(at, at + width, reason=GapReason.RETENTION), now=0.0)
        else:
            key = None if kind == "n" else kind.encode()
            log.append(Record(TP, at + width - 1, 0, 0, key, VALUE), now=0.0)
        at += width
        if len(log) == 5:
            scan_keys(log)
            build_index(log, max_entries=2)
    for _ in range(min(dropped_count, len(log) - 1)):
        log.shrink(log.bytes - 1)
    assert log.start_offset is not None
    for offset in range(log.start_offset, at + 1):
        everything = list(log.iter_entries(offset))
        found = list(log.iter_key_entries(offset, keys, end))
        assert [e for e in found if e.next_offset > end] == [
            e for e in everything if e.next_offset > end
        ]
        found = [e for e in found if e.next_offset <= end]
        everything = [e for e in everything if e.next_offset <= end]
        assert [e for e in found if type(e) is Gap or getattr(e, "key", None) in keys] == [
            e for e in everything if type(e) is Gap or getattr(e, "key", None) in keys
        ]
        assert [(e.next_offset, e.epoch) for e in found[-1:]] == [
            (e.next_offset, e.epoch) for e in everything[-1:]
        ]
        reached = offset
        for entry in found:
            assert type(entry) is not Skip or entry.offset <= reached
            assert reached < entry.next_offset
            reached = entry.next_offset


def test_a_run_of_other_keys_is_one_skip_also_after_slots_were_deleted():
    log = build_open_log(max_bytes=1 << 30)
    fill(log, 2000, key_count=1000)
    scan_keys(log)
    build_index(log)
    for _ in range(10):
        fill(log, 1000, key_count=1000)
        log.shrink(log.bytes * 2 // 3)
        start, end = log.start_offset, log.next_offset
        assert start is not None and end is not None
        entries = list(log.iter_key_entries(start, {b"7"}))
        expected = [offset for offset in range(start, end) if offset % 1000 == 7]
        assert [e.offset for e in entries if type(e) is Record] == expected
        assert len(entries) <= 2 * len(expected) + 1


def test_an_index_is_built_in_slices_of_as_many_entries_as_are_asked_for():
    """It was built at once, which held the event loop up for 0.2 s with 500,000 entries."""
    log = build_open_log(max_bytes=1 << 30)
    fill(log, 10_000)
    assert not log.build_key_index(100)
    scan_keys(log)
    for n in range(1, 120):
        fill(log, 1)  # what comes meanwhile is taken in as well
        assert log.build_key_index(100) == (n <= 101)
        is_built = len(list(log.iter_key_entries(0, {b"3"}))) < len(log)
        assert is_built == (n > 101)


def test_an_index_takes_in_only_what_readers_looked_at_and_later_what_others_need():
    log = build_open_log(max_bytes=1 << 30)
    fill(log, 50_000)
    scan_keys(log, 40_000)
    build_index(log)
    keys = {b"3"}
    assert len(list(log.iter_key_entries(40_000, keys))) == 2001
    assert len(list(log.iter_key_entries(39_000, keys))) == 11_000
    scan_keys(log, 39_000)
    build_index(log)
    assert len(list(log.iter_key_entries(39_000, keys))) == 2201


def test_the_bytes_of_an_index_count_and_are_bounded_with_those_of_entries():
    log = build_open_log(max_bytes=1 << 30)
    fill(log, 10_000)
    bytes_without = log.bytes
    scan_keys(log)
    build_index(log)
    assert bytes_without + 10_000 * 8 < log.bytes < bytes_without + 10_000 * 16
    log.shrink(bytes_without // 2)
    assert log.bytes <= bytes_without // 2
    assert len(log) < 5000
    log.shrink(0)
    assert log.bytes == 0
    log.append(record(log.next_offset or 0), now=0.0)
    assert log.bytes == ENTRY_OVERHEAD_BYTES + 1


def test_a_log_that_is_full_drops_entries_while_its_index_is_built():
    entry_bytes = ENTRY_OVERHEAD_BYTES + 1 + len(VALUE)
    log = build_open_log(max_bytes=1000 * entry_bytes)
    fill(log, 1000)
    scan_keys(log)
    build_index(log, max_entries=10)
    assert 900 * entry_bytes < log.bytes <= log.max_bytes
    fill(log, 5000)
    assert 900 * entry_bytes < log.bytes <= log.max_bytes
    start = log.start_offset
    assert start is not None
    assert len(list(log.iter_key_entries(start, {b"3"}))) < 220


def test_an_index_is_dropped_when_nobody_has_used_it_for_a_while():
    log = PartitionLog(TP, 1 << 30, max_age=1e9)
    log.open(0, 0)
    fill(log, 1000)
    bytes_without = log.bytes
    scan_keys(log)
    build_index(log)
    for now in range(0, 100, 10):
        list(log.iter_key_entries(0, {b"3"}))
        log.expire(now)
        assert log.bytes > bytes_without
    log.expire(90 + KEY_INDEX_LINGER_S)
    assert log.bytes == bytes_without
    assert build_index(log) > 1  # it is freed in slices
    assert len(list(log.iter_key_entries(0, {b"3"}))) == len(log)


def test_a_log_that_goes_back_has_no_index_until_readers_need_it_again():
    log = build_open_log(max_bytes=1 << 30)
    fill(log, 1000)
    scan_keys(log)
    build_index(log)
    log.append(build_gap(1000, 500, epoch=1), now=0.0)
    assert log.bytes == 0
    fill(log, 1000)
    build_index(log)
    assert len(list(log.iter_key_entries(500, {b"3"}))) == 1000
    scan_keys(log)
    build_index(log)
    assert len(list(log.iter_key_entries(500, {b"3"}))) == 201


def test_entries_that_are_dropped_before_an_index_takes_them_in_are_left_out():
    log = build_open_log(max_bytes=1 << 30)
    fill(log, 5000)
    scan_keys(log)
    assert log.build_key_index(100)
    log.shrink(log.bytes // 10)  # slots are deleted
    assert log.build_key_index(100)
    log.shrink(log.bytes // 2)  # slots are empty
    build_index(log)
    start = log.start_offset
    assert start is not None
    assert [e.offset for e in log.iter_key_entries(start, {b"3"}) if type(e) is Record] == [
        offset for offset in range(start, 5000) if offset % 10 == 3
    ]
    assert len(list(log.iter_key_entries(start, {b"3"}))) < len(log) / 2
