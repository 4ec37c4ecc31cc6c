from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.channel.conflation import buffered_size
from gateway.core.client.snapshot import (
    REFERENCE_BYTES,
    SNAPSHOT_BYTES,
    KeyTable,
    RecordHistory,
)
from gateway.core.log.record import (
    Entry,
    Gap,
    GapReason,
    PartitionPosition,
    Record,
    Skip,
    TopicPartition,
)

A = TopicPartition("prices", 0)


def record(offset: int, key: bytes | None, value: bytes | None = b"v") -> Record:
    return Record(A, offset, 3, 0, key, value)


def build_table(*entries: Entry) -> KeyTable:
    made = KeyTable(A, PartitionPosition(0))
    assert made.apply(entries)
    return made


def test_the_latest_of_each_key_is_there_in_the_order_of_offsets():
    made = build_table(record(0, b"a"), record(1, b"b"), record(2, b"a"), Skip(A, 3, 5, 3))
    edition = made.take_snapshot()
    assert edition.entries == [record(1, b"b"), record(2, b"a")]
    assert edition.end_position == PartitionPosition(5, 3)
    assert made.bytes == buffered_size(record(1, b"b")) + buffered_size(record(2, b"a"))


def test_a_deleted_key_is_not_there_and_records_without_a_key_all_are():
    made = build_table(record(0, b"a"), record(1, None), record(2, None), record(3, b"a", None))
    assert made.take_snapshot().entries == [record(1, None), record(2, None)]


def test_what_could_not_be_decoded_is_told_and_what_retention_took_is_not():
    corrupt = Gap(A, 4, 5, 3, GapReason.CORRUPT)
    made = build_table(Gap(A, 0, 4, 3, GapReason.RETENTION), corrupt, record(5, b"a"))
    assert made.take_snapshot().entries == [corrupt, record(5, b"a")]


def test_an_edition_stays_as_it_was_while_the_table_goes_on():
    made = build_table(record(0, b"a"), record(1, b"b"))
    edition = made.take_snapshot()
    assert made.take_snapshot() is edition, "those who come while nothing changed share one"
    made.apply([record(2, b"a", b"new")])
    assert edition.entries == [record(0, b"a"), record(1, b"b")]
    assert edition.end_position.offset == 2
    assert made.take_snapshot().entries == [record(1, b"b"), record(2, b"a", b"new")]


@pytest.mark.parametrize("reason", [GapReason.TRUNCATED, GapReason.RECREATED])
def test_a_log_that_went_back_makes_it_useless(reason: GapReason):
    made = build_table(record(0, b"a"), record(1, b"b"))
    assert not made.apply([Gap(A, 2, 1, 4, reason)])


def test_what_kafka_no_longer_has_is_let_go():
    made = build_table(record(0, b"a"), record(1, b"b"), record(2, b"c"))
    made.prune(2)
    assert made.take_snapshot().entries == [record(2, b"c")]
    assert (len(made), made.bytes) == (1, buffered_size(record(2, b"c")))
    made = build_table(record(1, b"a")._replace(headers=[("h", bytes(1000))]))
    assert made.bytes > 1000


keys = st.sampled_from([None, b"a", b"b", b"c", b"d"])
values = st.sampled_from([None, b"", b"1"])


@given(st.lists(st.tuples(keys, values), max_size=20), st.integers(1, 400), st.data())
def test_whoever_reads_an_edition_in_pieces_gets_all_of_it_once(written, most, data):
    """Also after a cut, at any place that it was told."""
    records = [record(offset, key, value) for offset, (key, value) in enumerate(written)]
    edition = build_table(*records).take_snapshot()
    known = {r.key: r for r in records if r.key is not None}
    wanted = [r for r in records if r.key is None or (known[r.key] is r and r.value is not None)]
    got: list[Record] = []
    at = 0
    while at < len(records):
        entries = edition.read(at, most)
        if data.draw(st.booleans()):
            entries = entries[:1]
        got += [entry for entry in entries if isinstance(entry, Record)]
        at = entries[-1].next_offset
    assert got == wanted
    assert edition.read(at, most) == []


def test_an_edition_of_some_keys_has_those_and_what_all_must_hear():
    corrupt = Gap(A, 3, 4, 3, GapReason.CORRUPT)
    made = build_table(record(0, b"a"), record(1, b"b"), record(2, None), corrupt)
    assert made.select_keys([b"b", b"nobody"]) == [record(1, b"b"), corrupt]
    made.prune(4)
    assert made.select_keys([b"b"]) == []


def test_editions_that_somebody_reads_count_as_far_as_the_table_has_replaced_them():
    """They counted nothing."""
    made, size = build_table(record(0, b"a"), record(1, b"b")), buffered_size(record(0, b"a"))
    editions = [made.take_snapshot()]
    assert made.releasable_bytes == 0
    made.apply([record(2, b"a")])
    editions.append(made.take_snapshot())
    made.apply([record(3, b"b")])
    lists = 2 * (SNAPSHOT_BYTES + 2 * REFERENCE_BYTES)
    assert made.releasable_bytes == 2 * size + lists  # both lack one record, and share another
    made.apply(record(n, b"a") for n in range(4, 100))
    assert made.releasable_bytes == 4 * size + lists  # no more than they have
    made.release_half()
    assert (editions[0].is_released, editions[0].entries) == (True, ())
    editions.clear()
    assert made.releasable_bytes == 0


def test_the_latest_of_one_key_is_looked_up_whatever_came_behind_it():
    latest = record(2, b"a")
    made = build_table(
        record(0, b"a"), record(1, b"b"), latest, record(3, b"b", None), record(4, None)
    )
    assert [made.get(key) for key in (b"a", b"b", b"c")] == [latest, None, None]


def build_history(*entries: Entry) -> RecordHistory:
    made = RecordHistory(A, PartitionPosition(0))
    assert made.apply(entries)
    return made


def test_a_history_keeps_what_was_replaced_until_a_tombstone_or_retention_takes_it():
    made = build_history(record(0, b"a"), record(1, b"b"), record(2, b"a"), record(3, None))
    assert [entry.offset for entry in made.take_snapshot().entries] == [0, 1, 2, 3]
    assert [entry.offset for entry in made.select_keys([b"a", b"nobody"])] == [0, 2]
    made.apply([record(4, b"a", None), record(5, b"a", b"new")])
    assert [entry.offset for entry in made.take_snapshot().entries] == [1, 3, 5]
    made.prune(2)
    assert made.take_snapshot().entries == [record(3, None), record(5, b"a", b"new")]
    assert made.bytes == sum(buffered_size(entry) for entry in made.take_snapshot().entries)
    assert made.select_keys([b"b"]) == []


records_of_keys = st.tuples(
    st.sampled_from([b"a", b"b", None]), st.sampled_from([b"x", b"y", None])
)


@given(st.lists(records_of_keys, max_size=30), st.integers(0, 30))
def test_a_history_has_all_records_of_a_key_since_its_last_tombstone(written, start):
    records = [record(n, key, value) for n, (key, value) in enumerate(written)]
    made = build_history(*records)
    made.prune(start)
    for key in (b"a", b"b"):
        mine = [each for each in records if each.key == key and each.offset >= start]
        gone = max((e.offset for e in records if e.key == key and e.value is None), default=-1)
        assert made.select_keys([key]) == [each for each in mine if each.offset > gone]
    assert made.bytes == sum(buffered_size(entry) for entry in made.take_snapshot().entries)
