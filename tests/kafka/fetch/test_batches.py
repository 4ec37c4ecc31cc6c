from __future__ import annotations

import asyncio
import struct
import threading
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.budgets import peak_memory
from support.record_sets import (
    ABORT,
    COMMIT,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Item,
    batch,
    damaged,
    marker,
    message,
    varint,
)
from support.until import until

from gateway.core.log.record import Entry, Gap, Reason, Record, Skip, TopicPartition
from gateway.kafka.fetch.batches import decode, gather, slices
from gateway.kafka.fetch.decoding import Decoded, Decoding
from gateway.kafka.fetch.decompression import MAX_INFLATED, Inflation

TP = TopicPartition("orders", 3)


def offsets(decoded: Decoded) -> list[int]:
    return [entry.offset for entry in decoded.entries if isinstance(entry, Record)]


def corrupt(offset: int, to: int, epoch: int = 0) -> Gap:
    return Gap(TP, offset, to, epoch, Reason.CORRUPT)


def test_a_record_keeps_all_its_fields():
    item = Item(7, b"value", b"key", 1700, headers=[(b"h", b"1"), (b"none", None)])
    decoded = decode(TP, batch([item], epoch=5), 7)
    assert decoded.entries == [
        Record(TP, 7, 5, 1700, b"key", b"value", (("h", b"1"), ("none", None)))
    ]
    assert (decoded.next_offset, decoded.last_epoch, decoded.error) == (8, 5, None)


def test_a_null_value_is_not_an_empty_one():
    decoded = decode(TP, batch([Item(0, None, b""), Item(1, b"", None)]), 0)
    assert [entry[4:6] for entry in decoded.entries] == [(b"", None), (None, b"")]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_codec_is_read(codec: int):
    items = [Item(10 + index, b"abc" * 100) for index in range(50)]
    decoded = decode(TP, batch(items, codec=codec), 10)
    assert offsets(decoded) == list(range(10, 60))
    assert {entry[5] for entry in decoded.entries} == {b"abc" * 100}


def test_records_before_the_fetch_offset_are_left_out():
    decoded = decode(TP, batch([0, 1, 2]) + batch([3, 4]), 2)
    assert offsets(decoded) == [2, 3, 4]


def test_log_append_time_is_that_of_the_batch():
    data = batch([Item(0, timestamp=5)], attributes=LOG_APPEND_TIME, max_timestamp=99)
    assert decode(TP, data, 0).entries[0][3] == 99


def test_a_batch_cut_at_the_end_is_left_for_the_next_fetch():
    whole = batch([0, 1])
    decoded = decode(TP, whole + batch([2])[:-1], 0)
    assert (offsets(decoded), decoded.next_offset, decoded.bytes) == ([0, 1], 2, len(whole))
    assert decoded.error is None


def test_nothing_fetched_moves_nothing():
    assert decode(TP, b"", 5) == Decoded([], 5, -1, 0)


def test_a_hole_left_by_compaction_is_under_the_record_after_it():
    decoded = decode(TP, batch([4, 9], base=0, last=9), 0)
    assert offsets(decoded) == [4, 9]
    assert len(decoded.entries) == 2


def test_a_compacted_end_and_empty_batches_are_one_skip():
    data = batch([0], last=3, epoch=1) + batch([], base=4, last=8, epoch=2)
    decoded = decode(TP, data, 0)
    assert decoded.entries[1:] == [Skip(TP, 1, 9, 2)]
    assert (decoded.next_offset, decoded.last_epoch) == (9, 2)


def test_control_batches_are_skipped_and_advance_the_position():
    data = batch([0], attributes=TRANSACTIONAL, producer=7) + marker(1, 7, COMMIT)
    decoded = decode(TP, data, 0)
    assert decoded.entries[1:] == [Skip(TP, 1, 2, 0)]


def test_aborted_records_are_holes_and_the_producers_next_transaction_is_not():
    data = (
        batch([0, 1], attributes=TRANSACTIONAL, producer=7)
        + batch([2], attributes=TRANSACTIONAL, producer=8)
        + marker(3, 7, ABORT)
        + batch([4], attributes=TRANSACTIONAL, producer=7)
        + marker(5, 7, COMMIT)
        + marker(6, 8, COMMIT)
    )
    decoded = decode(TP, data, 0, aborted=[(7, 0)])
    assert offsets(decoded) == [2, 4]
    assert decoded.entries[-1] == Skip(TP, 5, 7, 0)


def test_an_aborted_transaction_later_in_the_data_does_not_touch_what_is_before():
    data = (
        batch([0], attributes=TRANSACTIONAL, producer=7)
        + marker(1, 7, COMMIT)
        + batch([2], attributes=TRANSACTIONAL, producer=7)
        + marker(3, 7, ABORT)
    )
    assert offsets(decode(TP, data, 0, aborted=[(7, 2)])) == [0]


def test_reading_uncommitted_shows_aborted_records():
    data = batch([0], attributes=TRANSACTIONAL, producer=7) + marker(1, 7, ABORT)
    assert offsets(decode(TP, data, 0, aborted=[(7, 0)], read_committed=False)) == [0]


def test_records_outside_transactions_of_an_aborting_producer_pass():
    assert offsets(decode(TP, batch([0], producer=7), 0, aborted=[(7, 0)])) == [0]


def test_a_batch_with_a_wrong_checksum_is_one_gap_and_the_next_one_is_read():
    data = batch([0, 1]) + damaged(batch([2, 3, 4], epoch=6)) + batch([5])
    decoded = decode(TP, data, 0)
    assert [entry for entry in decoded.entries if isinstance(entry, Gap)] == [corrupt(2, 5, 6)]
    assert offsets(decoded) == [0, 1, 5]
    assert [type(entry) for entry in decoded.entries] == [Record, Record, Gap, Record]


def test_a_gap_starts_where_the_reader_stands():
    assert decode(TP, damaged(batch([0, 1, 2])), 1, end=10).entries == [corrupt(1, 3)]


def test_a_damaged_end_of_a_batch_is_bounded_by_the_next_batch():
    bad = bytearray(batch([2, 3]))
    struct.pack_into(">i", bad, 23, 1_000_000)  # last offset delta
    decoded = decode(TP, bytes(bad) + batch([4]), 2)
    assert decoded.entries[0] == corrupt(2, 4)
    assert offsets(decoded) == [4]


def test_a_damaged_end_of_the_last_batch_is_bounded_by_the_high_watermark():
    bad = bytearray(batch([2, 3]))
    struct.pack_into(">i", bad, 23, 1_000_000)
    assert decode(TP, bytes(bad), 2, end=4).entries == [corrupt(2, 4)]


def test_a_negative_extent_still_makes_progress():
    bad = bytearray(batch([2, 3]))
    struct.pack_into(">i", bad, 23, -5)
    assert decode(TP, bytes(bad), 2).next_offset == 3


def test_an_undecodable_batch_is_one_gap():
    """The codec's bytes are broken though the checksum over them is right."""
    data = batch([Item(0, b"x")], codec=0)
    header = bytearray(data)
    broken = batch([Item(1, b"x" * 50)], attributes=0x04)  # says zstd, is not
    decoded = decode(TP, bytes(header) + broken + batch([2]), 0)
    assert [type(entry) for entry in decoded.entries] == [Record, Gap, Record]
    assert decoded.entries[1] == corrupt(1, 2)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_one_broken_record_is_one_gap_and_the_others_of_its_batch_are_read(codec: int):
    items = [Item(0), Item(1, raw=b"\0\0" + varint(1) + varint(900) + b"short"), Item(2)]
    decoded = decode(TP, batch(items, codec=codec) + batch([3]), 0)
    assert decoded.entries[1] == corrupt(1, 2)
    assert offsets(decoded) == [0, 2, 3]


def test_a_broken_record_at_the_end_of_a_batch_is_a_gap_to_its_end():
    items = [Item(0), Item(1, raw=b"\xff\xff")]
    assert decode(TP, batch(items, last=1), 0).entries[1:] == [corrupt(1, 2)]


def test_a_header_name_that_is_not_utf8_costs_no_record():
    item = Item(0, headers=[(b"\xff", b"1")])
    assert decode(TP, batch([item]), 0).entries[0][6] == [("�", b"1")]


def test_a_length_that_makes_no_sense_ends_decoding_with_what_was_read():
    bad = bytearray(batch([1]))
    struct.pack_into(">i", bad, 8, 3)
    decoded = decode(TP, batch([0]) + bytes(bad), 0)
    assert (offsets(decoded), decoded.next_offset) == ([0], 1)
    assert decoded.error is not None and "offset 1" in decoded.error


def test_a_first_batch_that_never_ends_is_an_error():
    decoded = decode(TP, batch([0])[:-1], 0)
    assert (decoded.entries, decoded.next_offset) == ([], 0)
    assert decoded.error is not None


def test_a_lost_abort_marker_does_not_hide_what_the_producer_commits_later():
    """The set of aborting producers is only right if every marker was read: ask again."""
    data = (
        batch([0], attributes=TRANSACTIONAL, producer=7)
        + damaged(marker(1, 7, ABORT))
        + batch([2], attributes=TRANSACTIONAL, producer=7)
        + marker(3, 7, COMMIT)
    )
    first = decode(TP, data, 0, aborted=[(7, 0)])
    assert (first.entries, first.next_offset) == ([corrupt(1, 2)], 2)
    assert offsets(decode(TP, data[first.bytes :], 2)) == [2]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_read(magic: int):
    data = message(5, b"a", magic=magic, timestamp=9) + message(6, None, magic=magic)
    decoded = decode(TP, data, 5)
    stamps = (-1, -1) if magic == 0 else (9, 0)
    assert decoded.entries == [
        Record(TP, 5, -1, stamps[0], None, b"a"),
        Record(TP, 6, -1, stamps[1], None, None),
    ]
    assert decoded.last_epoch == -1


def test_a_compressed_set_of_old_messages_has_relative_offsets():
    import gzip

    inner = b"".join(message(index, b"%d" % index) for index in range(3))
    decoded = decode(TP, message(12, gzip.compress(inner), attributes=1), 11)
    assert [(entry.offset, entry[5]) for entry in decoded.entries] == [(11, b"1"), (12, b"2")]


def test_a_damaged_old_message_is_a_gap_of_its_offset():
    data = message(0, b"a") + damaged(message(1, b"b")) + message(2, b"c")
    decoded = decode(TP, data, 0)
    assert decoded.entries[1] == corrupt(1, 2, -1)
    assert offsets(decoded) == [0, 2]


holey = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(holey, st.integers(0, 4), st.integers(0, 40), st.data())
def test_every_offset_is_covered_once_whatever_is_damaged(
    steps: list[int], codec: int, start: int, data: st.DataObject
):
    """Records are exact; entries never overlap or go back; damage is told, not hidden."""
    batches, truth, offset = [], {}, 0
    for step in steps:
        offset += step
        items = [Item(offset + index, b"%d" % (offset + index)) for index in range(step + 1)]
        truth |= {item.offset: item.value for item in items}
        batches.append(batch(items, codec=codec))
        offset += step + 1
    start = min(start, offset)
    hurt = data.draw(st.sets(st.integers(0, len(batches) - 1)))
    kept = [b for b in batches if _last(b) >= start]
    raw = b"".join(
        damaged(one, data.draw(st.integers(21, len(one) - 1))) if index in hurt else one
        for index, one in enumerate(kept)
    )
    position, seen = start, set[int]()
    rest = raw
    for _ in range(len(kept) + 1):
        decoded = decode(TP, rest, position, end=offset)
        for entry in decoded.entries:
            assert entry.offset >= position
            assert entry.next > entry.offset
            if isinstance(entry, Record):
                assert truth[entry.offset] == entry.value
            if isinstance(entry, Skip):
                assert not covered(entry) & truth.keys()
            seen |= covered(entry)
            position = entry.next
        assert position == decoded.next_offset
        rest = rest[decoded.bytes :]
        if not rest:
            break
    assert {at for at in truth if at >= start} <= seen


def covered(entry: Entry) -> set[int]:
    return {entry.offset} if isinstance(entry, Record) else set(range(entry.offset, entry.next))


def _last(data: bytes) -> int:
    return int.from_bytes(data[:8]) + int.from_bytes(data[23:27])


@given(st.binary(max_size=300), st.integers(0, 100))
def test_no_bytes_make_it_raise_or_go_back(data: bytes, start: int):
    decoded = decode(TP, data, start)
    assert decoded.next_offset >= start


@given(st.binary(min_size=1, max_size=40))
def test_no_damage_within_a_checked_record_makes_it_raise(junk: bytes):
    """A producer's nonsense with a right checksum."""
    items = [Item(0, b"a" * 20), Item(1, raw=junk), Item(2, b"b" * 20)]
    decoded = decode(TP, batch(items), 0)
    assert decoded.next_offset == 3
    assert {0, 1, 2} <= set().union(*(covered(entry) for entry in decoded.entries))


# Slices, and what is large


def slices_of(data: bytes, fetch_offset: int = 0, records: int = 5_000) -> list[Decoded]:
    decoding = Decoding(TP, data, fetch_offset)
    found = []
    while not decoding.done:
        if decoding.is_large:
            decoding.inflate()
        found.append(decoding.read(records))
    return found


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("records", [1, 7, 1000])
def test_slices_come_to_what_is_read_at_once(codec: int, records: int):
    data = batch(list(range(40)), codec=codec) + batch([45, 50], codec=codec, last=55)
    found = slices_of(data, 3, records)
    assert [entry for each in found for entry in each.entries] == decode(TP, data, 3).entries
    assert [each.next_offset for each in found] == sorted(each.next_offset for each in found)
    assert found[-1].next_offset == 56
    assert all(len(each.entries) <= records + 1 for each in found)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_broken_record_in_a_later_slice_is_one_gap(codec: int):
    items = [Item(n) for n in range(20)]
    items[12] = Item(12, raw=b"\0\0" + varint(12) + varint(900) + b"short")
    data = batch(items, codec=codec) + batch([20])
    for records in (1, 5, 19, 100):
        entries = [entry for each in slices_of(data, 0, records) for entry in each.entries]
        assert [entry.offset for entry in entries] == list(range(21))
        assert [entry for entry in entries if isinstance(entry, Gap)] == [corrupt(12, 13)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_does_not_fit_into_a_small_buffer_waits_to_be_inflated(codec: int):
    items = [Item(1 + n, b"x" * 100_000) for n in range(30)]
    decoding = Decoding(TP, batch([0]) + batch(items, codec=codec), 0)
    assert offsets(decoding.read()) == [0]
    assert decoding.is_large and not decoding.done
    assert decoding.read().entries == []
    decoding.inflate()
    assert decoding.held > 3_000_000
    slices = [decoding.read()]
    while not decoding.done:
        slices.append(decoding.read())
    assert len(slices) == 3  # of a MiB each
    assert sum(len(each.entries) for each in slices) == 30
    assert decoding.held == 0


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_batch_that_holds_more_than_may_be_is_a_gap(codec: int, caplog: pytest.LogCaptureFixture):
    """15 KB of zstd could be decompressed into as much memory as a producer liked."""
    bomb = batch([Item(1, bytes(MAX_INFLATED + 1))], codec=codec, epoch=4)
    small = peak_memory(lambda: None)
    held = peak_memory(lambda: decode(TP, batch([0]) + bomb + batch([2]), 0))
    decoded = decode(TP, batch([0]) + bomb + batch([2]), 0)
    assert offsets(decoded) == [0, 2]
    assert decoded.entries[1] == corrupt(1, 2, 4)
    assert held - small < 8 << 20
    assert "holds more than 128 MiB" in caplog.text


@pytest.mark.parametrize("magic", [0, 1])
def test_a_compressed_old_message_that_is_broken_inside_is_a_gap(magic: int):
    import gzip

    inner = message(0, b"a", magic=magic) + message(1, b"b", magic=magic)[:-3]
    outer = message(1, gzip.compress(inner), magic=magic, attributes=1)
    decoded = decode(TP, outer + message(2, b"c", magic=magic), 0)
    assert decoded.entries[-1].offset == 2
    assert [entry.next for entry in decoded.entries][-2] == 2
    assert isinstance(decoded.entries[-2], Gap)


async def test_large_batches_are_inflated_one_at_a_time():
    items = [Item(n, b"x" * 100_000) for n in range(30)]
    inflation, most = Inflation(), 0

    async def read() -> int:
        nonlocal most
        count, decoding = 0, Decoding(TP, batch(items, codec=4), 0)
        async with aclosing(slices(decoding, inflation)) as some:
            async for each in some:
                most = max(most, inflation.held)
                count += len(each.entries)
                await asyncio.sleep(0)
        return count

    assert await asyncio.gather(*(read() for _ in range(4))) == [30] * 4
    assert 3_000_000 < most < 3_100_000
    assert inflation.held == 0


async def test_who_is_cancelled_waits_for_the_thread_that_works_for_it():
    """The turn was given away while the thread went on: six batches of 120 MiB were decompressed
    at once for readers who had left."""
    at_once, most, release = 0, 0, threading.Event()

    class Slow(Decoding):
        def inflate(self) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            release.wait(30)
            super().inflate()
            at_once -= 1

    inflation = Inflation()
    data = batch([Item(n, b"x" * 100_000) for n in range(30)], codec=4)
    readers = [asyncio.create_task(gather(Slow(TP, data, 0), inflation)) for _ in range(3)]
    await until(lambda: at_once)
    readers[0].cancel()
    await asyncio.sleep(0)
    assert inflation.turn.locked() and not readers[0].done()
    release.set()
    found = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [len(each.entries) for each in found[1:]] == [30, 30]  # type: ignore[union-attr]
    assert most == 1


async def test_what_is_gathered_at_once_is_bounded_by_its_bytes():
    items = [Item(n, b"x" * 1_000_000) for n in range(40)]
    data = batch(items, codec=4)
    first = await gather(Decoding(TP, data, 0), Inflation())
    assert 16 <= len(first.entries) <= 18
    rest = await gather(Decoding(TP, data, first.next_offset), Inflation())
    assert rest.entries[0].offset == first.next_offset
