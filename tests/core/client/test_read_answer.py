from __future__ import annotations

import pytest

from gateway.core.client.read_buffer import ReadAnswer
from gateway.core.log.record import Entry, Gap, GapReason, Record, Skip, TopicPartition

TP = TopicPartition("orders", 0)


def build_record(offset: int) -> Record:
    return Record(TP, offset, 0, 0, b"k", b"v")


def find_entries(entries: list[Entry], offset: int) -> list[Entry] | None:
    run = ReadAnswer(entries).find_run(offset)
    return None if run is None else list(run)


def test_a_run_begins_with_what_covers_its_offset():
    entries = [build_record(2), Skip(TP, 3, 6, 0), build_record(6)]
    assert find_entries(entries, 2) == entries
    assert find_entries(entries, 4) == entries[1:]
    assert find_entries(entries, 6) == entries[2:]
    assert (find_entries(entries, 1), find_entries(entries, 7), find_entries([], 0)) == (None,) * 3


def test_a_run_knows_its_length_its_size_and_where_it_ends():
    answer = ReadAnswer(map(build_record, range(4)))
    run = answer.find_run(1)
    assert run is not None
    assert (len(run), run.bytes, run.next_offset) == (3, answer.bytes * 3 // 4, 4)
    assert run.answer is answer


@pytest.mark.parametrize("reason", [GapReason.RETENTION, GapReason.CORRUPT])
def test_of_a_gap_that_is_true_for_all_a_client_gets_its_part(reason: GapReason):
    gap = Gap(TP, 2, 9, 0, reason)
    assert find_entries([gap, build_record(9)], 5) == [gap._replace(offset=5), build_record(9)]


def test_a_gap_over_skipped_records_covers_no_other_offset():
    entries = [Gap(TP, 2, 9, 0, GapReason.SKIPPED), build_record(9)]
    assert find_entries(entries, 5) is None
    assert find_entries(entries, 9) == [build_record(9)]
