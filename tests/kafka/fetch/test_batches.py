from __future__ import annotations

import asyncio
import struct
import threading
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.budgets import measure_peak_memory
from support.record_sets import (
    ABORT_MARKER,
    COMMIT_MARKER,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchRecord,
    build_batch,
    build_marker,
    build_message,
    decode_record_set,
    encode_varint,
    flip_byte,
)
from support.waiting import wait_until

from gateway.core.log.record import Entry, Gap, GapReason, Record, Skip, TopicPartition
from gateway.kafka.client.cluster import DecompressionSlot
from gateway.kafka.fetch.decoding import (
    DecodedSlice,
    RecordSetDecoder,
    gather_slices,
    iter_slices,
)
from gateway.kafka.fetch.record_batch import MAX_DECOMPRESSED_BYTES

TP = TopicPartition("orders", 3)


def get_offsets(decoded: DecodedSlice) -> list[int]:
    return [entry.offset for entry in decoded.entries if isinstance(entry, Record)]


def build_corrupt_gap(offset: int, to: int, epoch: int = 0) -> Gap:
    return Gap(TP, offset, to, epoch, GapReason.CORRUPT)


def test_a_record_keeps_all_its_fields():
    item = BatchRecord(7, b"value", b"key", 1700, headers=[(b"h", b"1"), (b"none", None)])
    decoded = decode_record_set(TP, build_batch([item], leader_epoch=5), 7)
    assert decoded.entries == [
        Record(TP, 7, 5, 1700, b"key", b"value", (("h", b"1"), ("none", None)))
    ]
    assert (decoded.next_offset, decoded.last_epoch, decoded.error) == (8, 5, None)


def test_a_null_value_is_not_an_empty_one():
    decoded = decode_record_set(
        TP, build_batch([BatchRecord(0, None, b""), BatchRecord(1, b"", None)]), 0
    )
    assert [entry[4:6] for entry in decoded.entries] == [(b"", None), (None, b"")]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_every_codec_is_read(codec: int):
    items = [BatchRecord(10 + index, b"abc" * 100) for index in range(50)]
    decoded = decode_record_set(TP, build_batch(items, codec=codec), 10)
    assert get_offsets(decoded) == list(range(10, 60))
    assert {entry[5] for entry in decoded.entries} == {b"abc" * 100}


def test_records_before_the_fetch_offset_are_left_out():
    decoded = decode_record_set(TP, build_batch([0, 1, 2]) + build_batch([3, 4]), 2)
    assert get_offsets(decoded) == [2, 3, 4]


def test_log_append_time_is_that_of_the_batch():
    data = build_batch(
        [BatchRecord(0, timestamp=5)], attributes=LOG_APPEND_TIME_FLAG, max_timestamp=99
    )
    assert decode_record_set(TP, data, 0).entries[0][3] == 99


def test_a_batch_cut_at_the_end_is_left_for_the_next_fetch():
    whole = build_batch([0, 1])
    decoded = decode_record_set(TP, whole + build_batch([2])[:-1], 0)
    assert (get_offsets(decoded), decoded.next_offset, decoded.batch_bytes) == (
        [0, 1],
        2,
        len(whole),
    )
    assert decoded.error is None


def test_nothing_fetched_moves_nothing():
    assert decode_record_set(TP, b"", 5) == DecodedSlice([], 5, -1, 0)


def test_a_hole_left_by_compaction_is_under_the_record_after_it():
    decoded = decode_record_set(TP, build_batch([4, 9], base_offset=0, last_offset=9), 0)
    assert get_offsets(decoded) == [4, 9]
    assert len(decoded.entries) == 2


def test_a_compacted_end_and_empty_batches_are_one_skip():
    data = build_batch([0], last_offset=3, leader_epoch=1) + build_batch(
        [], base_offset=4, last_offset=8, leader_epoch=2
    )
    decoded = decode_record_set(TP, data, 0)
    assert decoded.entries[1:] == [Skip(TP, 1, 9, 2)]
    assert (decoded.next_offset, decoded.last_epoch) == (9, 2)


def test_control_batches_are_skipped_and_advance_the_position():
    data = build_batch([0], attributes=TRANSACTIONAL_FLAG, producer_id=7) + build_marker(
        1, 7, COMMIT_MARKER
    )
    decoded = decode_record_set(TP, data, 0)
    assert decoded.entries[1:] == [Skip(TP, 1, 2, 0)]


def test_aborted_records_are_holes_and_the_producers_next_transaction_is_not():
    data = (
        build_batch([0, 1], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + build_batch([2], attributes=TRANSACTIONAL_FLAG, producer_id=8)
        + build_marker(3, 7, ABORT_MARKER)
        + build_batch([4], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + build_marker(5, 7, COMMIT_MARKER)
        + build_marker(6, 8, COMMIT_MARKER)
    )
    decoded = decode_record_set(TP, data, 0, aborted=[(7, 0)])
    assert get_offsets(decoded) == [2, 4]
    assert decoded.entries[-1] == Skip(TP, 5, 7, 0)


def test_an_abort_whose_records_were_read_before_does_not_hide_the_next_transaction():
    data = (
        build_marker(1, 7, ABORT_MARKER)
        + build_batch([2], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + build_marker(3, 7, COMMIT_MARKER)
    )
    assert get_offsets(decode_record_set(TP, data, 1, aborted=[(7, 0)])) == [2]


def test_an_aborted_transaction_later_in_the_data_does_not_touch_what_is_before():
    data = (
        build_batch([0], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + build_marker(1, 7, COMMIT_MARKER)
        + build_batch([2], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + build_marker(3, 7, ABORT_MARKER)
    )
    assert get_offsets(decode_record_set(TP, data, 0, aborted=[(7, 2)])) == [0]


def test_reading_uncommitted_shows_aborted_records():
    data = build_batch([0], attributes=TRANSACTIONAL_FLAG, producer_id=7) + build_marker(
        1, 7, ABORT_MARKER
    )
    assert get_offsets(decode_record_set(TP, data, 0, aborted=[(7, 0)], read_committed=False)) == [
        0
    ]


def test_records_outside_transactions_of_an_aborting_producer_pass():
    assert get_offsets(
        decode_record_set(TP, build_batch([0], producer_id=7), 0, aborted=[(7, 0)])
    ) == [0]


def test_a_batch_with_a_wrong_checksum_is_one_gap_and_the_next_one_is_read(
    caplog: pytest.LogCaptureFixture,
):
    data = (
        build_batch([0, 1]) + flip_byte(build_batch([2, 3, 4], leader_epoch=6)) + build_batch([5])
    )
    decoded = decode_record_set(TP, data, 0)
    assert [entry for entry in decoded.entries if isinstance(entry, Gap)] == [
        build_corrupt_gap(2, 5, 6)
    ]
    assert get_offsets(decoded) == [0, 1, 5]
    assert [type(entry) for entry in decoded.entries] == [Record, Record, Gap, Record]
    assert f"{TP} is damaged from 2 to 5" in caplog.text


def test_a_gap_starts_where_the_reader_stands():
    assert decode_record_set(
        TP, flip_byte(build_batch([0, 1, 2])), 1, high_watermark=10
    ).entries == [build_corrupt_gap(1, 3)]


def test_a_damaged_end_of_a_batch_is_bounded_by_the_next_batch():
    bad = bytearray(build_batch([2, 3]))
    struct.pack_into(">i", bad, 23, 1_000_000)  # last offset delta
    decoded = decode_record_set(TP, bytes(bad) + build_batch([4]), 2)
    assert decoded.entries[0] == build_corrupt_gap(2, 4)
    assert get_offsets(decoded) == [4]


def test_a_damaged_end_of_the_last_batch_is_bounded_by_the_high_watermark():
    bad = bytearray(build_batch([2, 3]))
    struct.pack_into(">i", bad, 23, 1_000_000)
    assert decode_record_set(TP, bytes(bad), 2, high_watermark=4).entries == [
        build_corrupt_gap(2, 4)
    ]


def test_a_negative_extent_still_makes_progress():
    bad = bytearray(build_batch([2, 3]))
    struct.pack_into(">i", bad, 23, -5)
    assert decode_record_set(TP, bytes(bad), 2).next_offset == 3


def test_an_undecodable_batch_is_one_gap():
    """The codec's bytes are broken though the checksum over them is right."""
    data = build_batch([BatchRecord(0, b"x")], codec=0)
    header = bytearray(data)
    broken = build_batch([BatchRecord(1, b"x" * 50)], attributes=0x04)  # says zstd, is not
    decoded = decode_record_set(TP, bytes(header) + broken + build_batch([2]), 0)
    assert [type(entry) for entry in decoded.entries] == [Record, Gap, Record]
    assert decoded.entries[1] == build_corrupt_gap(1, 2)


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_one_broken_record_is_one_gap_and_the_others_of_its_batch_are_read(codec: int):
    items = [
        BatchRecord(0),
        BatchRecord(1, encoded_fields=b"\0\0" + encode_varint(1) + encode_varint(900) + b"short"),
        BatchRecord(2),
    ]
    decoded = decode_record_set(TP, build_batch(items, codec=codec) + build_batch([3]), 0)
    assert decoded.entries[1] == build_corrupt_gap(1, 2)
    assert get_offsets(decoded) == [0, 2, 3]


def test_a_broken_record_at_the_end_of_a_batch_is_a_gap_to_its_end():
    items = [BatchRecord(0), BatchRecord(1, encoded_fields=b"\xff\xff")]
    assert decode_record_set(TP, build_batch(items, last_offset=1), 0).entries[1:] == [
        build_corrupt_gap(1, 2)
    ]


def test_a_header_name_that_is_not_utf8_costs_no_record():
    item = BatchRecord(0, headers=[(b"\xff", b"1")])
    assert decode_record_set(TP, build_batch([item]), 0).entries[0][6] == [("�", b"1")]


def test_a_length_that_makes_no_sense_ends_decoding_with_what_was_read():
    bad = bytearray(build_batch([1]))
    struct.pack_into(">i", bad, 8, 3)
    decoded = decode_record_set(TP, build_batch([0]) + bytes(bad), 0)
    assert (get_offsets(decoded), decoded.next_offset) == ([0], 1)
    assert decoded.error is not None and "offset 1" in decoded.error


def test_a_first_batch_that_never_ends_is_an_error():
    decoded = decode_record_set(TP, build_batch([0])[:-1], 0)
    assert (decoded.entries, decoded.next_offset) == ([], 0)
    assert decoded.error is not None


def test_a_lost_abort_marker_does_not_hide_what_the_producer_commits_later():
    """The set of aborting producers is only right if every marker was read: ask again."""
    data = (
        build_batch([0], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + flip_byte(build_marker(1, 7, ABORT_MARKER))
        + build_batch([2], attributes=TRANSACTIONAL_FLAG, producer_id=7)
        + build_marker(3, 7, COMMIT_MARKER)
    )
    first = decode_record_set(TP, data, 0, aborted=[(7, 0)])
    assert (first.entries, first.next_offset) == ([build_corrupt_gap(1, 2)], 2)
    assert get_offsets(decode_record_set(TP, data[first.batch_bytes :], 2)) == [2]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_old_formats_are_one_gap(magic: int):
    data = build_message(5, b"a", magic=magic) + build_message(6, None, magic=magic)
    decoded = decode_record_set(TP, data + build_batch([7]), 5)
    assert decoded.entries[0] == Gap(TP, 5, 7, -1, GapReason.CORRUPT)
    assert get_offsets(decoded) == [7]


holey = st.lists(st.integers(0, 3), min_size=1, max_size=30)


@given(holey, st.integers(0, 4), st.integers(0, 40), st.data())
def test_every_offset_is_covered_once_whatever_is_damaged(steps, codec, start, data):
    """Records are exact; entries never overlap or go back; damage is told, not hidden."""
    batches, truth, offset = [], {}, 0
    for step in steps:
        offset += step
        items = [BatchRecord(offset + index, b"%d" % (offset + index)) for index in range(step + 1)]
        truth |= {item.offset: item.value for item in items}
        batches.append(build_batch(items, codec=codec))
        offset += step + 1
    start = min(start, offset)
    hurt = data.draw(st.sets(st.integers(0, len(batches) - 1)))
    kept = [b for b in batches if _parse_last_offset(b) >= start]
    raw = b"".join(
        flip_byte(one, data.draw(st.integers(21, len(one) - 1))) if index in hurt else one
        for index, one in enumerate(kept)
    )
    position, seen = start, set[int]()
    rest = raw
    for _ in range(len(kept) + 1):
        decoded = decode_record_set(TP, rest, position, high_watermark=offset)
        for entry in decoded.entries:
            assert entry.offset >= position
            assert entry.next_offset > entry.offset
            if isinstance(entry, Record):
                assert truth[entry.offset] == entry.value
            if isinstance(entry, Skip):
                assert not get_covered_offsets(entry) & truth.keys()
            seen |= get_covered_offsets(entry)
            position = entry.next_offset
        assert position == decoded.next_offset
        rest = rest[decoded.batch_bytes :]
        if not rest:
            break
    assert {at for at in truth if at >= start} <= seen


def get_covered_offsets(entry: Entry) -> set[int]:
    return (
        {entry.offset} if isinstance(entry, Record) else set(range(entry.offset, entry.next_offset))
    )


def _parse_last_offset(data: bytes) -> int:
    return int.from_bytes(data[:8]) + int.from_bytes(data[23:27])


@given(st.binary(max_size=300), st.integers(0, 100))
def test_no_bytes_make_it_raise_or_go_back(data: bytes, start: int):
    decoded = decode_record_set(TP, data, start)
    assert decoded.next_offset >= start


@given(st.binary(min_size=1, max_size=40))
def test_no_damage_within_a_checked_record_makes_it_raise(junk: bytes):
    """A producer's nonsense with a right checksum."""
    items = [
        BatchRecord(0, b"a" * 20),
        BatchRecord(1, encoded_fields=junk),
        BatchRecord(2, b"b" * 20),
    ]
    decoded = decode_record_set(TP, build_batch(items), 0)
    assert decoded.next_offset == 3
    assert {0, 1, 2} <= set().union(*(get_covered_offsets(entry) for entry in decoded.entries))


# Slices, and what is large


def read_slices(data: bytes, fetch_offset: int = 0, records: int = 5_000) -> list[DecodedSlice]:
    decoding = RecordSetDecoder(TP, data, fetch_offset)
    found = []
    while not decoding.is_done:
        if decoding.is_large:
            decoding.decompress()
        found.append(decoding.read_slice(records))
    return found


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("records", [1, 7, 1000])
def test_slices_come_to_what_is_read_at_once(codec: int, records: int):
    data = build_batch(list(range(40)), codec=codec) + build_batch(
        [45, 50], codec=codec, last_offset=55
    )
    found = read_slices(data, 3, records)
    assert [entry for each in found for entry in each.entries] == decode_record_set(
        TP, data, 3
    ).entries
    assert [each.next_offset for each in found] == sorted(each.next_offset for each in found)
    assert found[-1].next_offset == 56
    assert all(len(each.entries) <= records + 1 for each in found)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_broken_record_in_a_later_slice_is_one_gap(codec: int):
    items = [BatchRecord(n) for n in range(20)]
    items[12] = BatchRecord(
        12, encoded_fields=b"\0\0" + encode_varint(12) + encode_varint(900) + b"short"
    )
    data = build_batch(items, codec=codec) + build_batch([20])
    for records in (1, 5, 19, 100):
        entries = [entry for each in read_slices(data, 0, records) for entry in each.entries]
        assert [entry.offset for entry in entries] == list(range(21))
        assert [entry for entry in entries if isinstance(entry, Gap)] == [build_corrupt_gap(12, 13)]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_does_not_fit_into_a_small_buffer_waits_to_be_inflated(codec: int):
    items = [BatchRecord(1 + n, b"x" * 100_000) for n in range(30)]
    decoding = RecordSetDecoder(TP, build_batch([0]) + build_batch(items, codec=codec), 0)
    assert get_offsets(decoding.read_slice()) == [0]
    assert decoding.is_large and not decoding.is_done
    assert decoding.read_slice().entries == []
    decoding.decompress()
    assert decoding.large_bytes > 3_000_000
    slices = [decoding.read_slice()]
    while not decoding.is_done:
        slices.append(decoding.read_slice())
    assert len(slices) == 3  # of a MiB each
    assert sum(len(each.entries) for each in slices) == 30
    assert decoding.large_bytes == 0


@pytest.mark.parametrize("codec", [1, 3, 4])
def test_a_batch_that_holds_more_than_may_be_is_a_gap(codec: int, caplog: pytest.LogCaptureFixture):
    """15 KB of zstd could be decompressed into as much memory as a producer liked."""
    bomb = build_batch(
        [BatchRecord(1, bytes(MAX_DECOMPRESSED_BYTES + 1))], codec=codec, leader_epoch=4
    )
    small = measure_peak_memory(lambda: None)
    held = measure_peak_memory(
        lambda: decode_record_set(TP, build_batch([0]) + bomb + build_batch([2]), 0)
    )
    decoded = decode_record_set(TP, build_batch([0]) + bomb + build_batch([2]), 0)
    assert get_offsets(decoded) == [0, 2]
    assert decoded.entries[1] == Gap(TP, 1, 2, 4, GapReason.TOO_LARGE)
    assert held - small < 8 << 20
    assert f"{TP} is too large from 1 to 2" in caplog.text


async def test_large_batches_are_inflated_one_at_a_time():
    items = [BatchRecord(n, b"x" * 100_000) for n in range(30)]
    slot, most = DecompressionSlot(), 0

    async def read_batch() -> int:
        nonlocal most
        count, decoding = 0, RecordSetDecoder(TP, build_batch(items, codec=4), 0)
        async with aclosing(iter_slices(decoding, slot)) as some:
            async for each in some:
                most = max(most, slot.held_bytes)
                count += len(each.entries)
                await asyncio.sleep(0)
        return count

    assert await asyncio.gather(*(read_batch() for _ in range(4))) == [30] * 4
    assert 3_000_000 < most < 3_100_000
    assert slot.held_bytes == 0


async def test_who_is_cancelled_waits_for_the_thread_that_works_for_it():
    """The turn was given away while the thread went on: six batches of 120 MiB were decompressed
    at once for readers who had left."""
    at_once, most, release = 0, 0, threading.Event()

    class SlowDecoding(RecordSetDecoder):
        def decompress(self) -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            release.wait(30)
            super().decompress()
            at_once -= 1

    slot = DecompressionSlot()
    data = build_batch([BatchRecord(n, b"x" * 100_000) for n in range(30)], codec=4)
    readers = [
        asyncio.create_task(gather_slices(SlowDecoding(TP, data, 0), slot)) for _ in range(3)
    ]
    await wait_until(lambda: at_once)
    readers[0].cancel()
    await asyncio.sleep(0)
    assert slot.lock.locked() and not readers[0].done()
    release.set()
    found = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [len(each.entries) for each in found[1:]] == [30, 30]  # type: ignore[union-attr]
    assert most == 1


async def test_what_is_gathered_at_once_is_bounded_by_its_bytes_and_records():
    items = [BatchRecord(n, b"x" * 1_000_000) for n in range(40)]
    data = build_batch(items, codec=4)
    first = await gather_slices(RecordSetDecoder(TP, data, 0), DecompressionSlot())
    assert 16 <= len(first.entries) <= 18
    rest = await gather_slices(RecordSetDecoder(TP, data, first.next_offset), DecompressionSlot())
    assert rest.entries[0].offset == first.next_offset
    small = build_batch([BatchRecord(n, b"x") for n in range(40)], codec=4)
    few = await gather_slices(RecordSetDecoder(TP, small, 0), DecompressionSlot(), max_records=10)
    assert len(few.entries) == 10
    headers = ((b"h", b"v"),) * 30_000
    tagged = build_batch([BatchRecord(n, b"x", headers=headers) for n in range(40)], codec=4)
    decoder = RecordSetDecoder(TP, tagged, 0)
    few = await gather_slices(decoder, DecompressionSlot(), max_headers=100_000)
    assert 4 <= len(few.entries) < 20
